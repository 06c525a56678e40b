"""Chat with a model that drafts from its own earlier answers, those of earlier chats included.

python examples/chat_that_remembers.py MODEL history
"""

import click
from transformers import AutoModelForCausalLM, AutoTokenizer

import rest_store


@click.command()
@click.argument("model")
@click.argument("history", type=click.Path(file_okay=False))
@click.option("--max-new-tokens", default=256, show_default=True, help="Most tokens of an answer.")
def main(model: str, history: str, max_new_tokens: int) -> None:
    """Chat with MODEL. Its answers are kept in the directory HISTORY.

    An empty line or Ctrl-D ends the chat.
    """
    tokenizer = AutoTokenizer.from_pretrained(model)
    with rest_store.LiveDatastore.open(
        history, tokenizer=tokenizer, max_tokens=20_000_000
    ) as answers:
        sources = [answers, rest_store.PromptLookup(), rest_store.RecycledLogits()]
        generator = rest_store.Generator(
            AutoModelForCausalLM.from_pretrained(model), tokenizer, sources, remember=answers
        )
        chat: list[dict[str, str]] = []
        while question := asked():
            chat.append({"role": "user", "content": question})
            answer = ""
            with generator.stream(chat, max_new_tokens=max_new_tokens) as pieces:
                for piece in pieces:
                    print(piece.text, end="", flush=True)
                    answer += piece.text
            print(f"\n[M {pieces.statistics.mean_tokens:.2f}]")
            chat.append({"role": "assistant", "content": answer})
        generator.flush()


def asked() -> str:
    """Return the next question, empty at the end."""
    try:
        return input("> ")
    except EOFError:
        print()
        return ""


if __name__ == "__main__":
    main()
