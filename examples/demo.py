"""One question, with drafts from a datastore and from services of which one dies.

Then a related one, from the remembered answer.

python examples/demo.py MODEL code.ds history

`make demo` runs it on a datastore of Python's standard library.
"""

import itertools
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any

import click
from transformers import AutoModelForCausalLM, AutoTokenizer

import rest_store

QUESTION = "Write a Python class Stack with push and pop."
RELATED = "Write a Python class Stack with push, pop and peek."


def loaded(model: str) -> tuple[Any, Any]:
    """Return a model and its tokenizer: of a `.gguf`, a directory or a name."""
    path = Path(model)
    place = {"pretrained_model_name_or_path": model}
    if path.suffix == ".gguf":
        place = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    return AutoModelForCausalLM.from_pretrained(
        **place, dtype="float32"
    ), AutoTokenizer.from_pretrained(**place)


@contextmanager
def service(datastore: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Serve a datastore on a Unix socket; yield the process and its address."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "rest_store",
            "serve",
            datastore,
            "--listen",
            f"unix:{folder}/socket",
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                # "listening on ADDRESS".
                lines = [*takewhile(lambda line: line != "ready\n", process.stdout)]
                if not lines:
                    sys.exit("The service did not start.")  # it has said why
                yield process, lines[0].split()[-1]
            finally:
                process.kill()


class Asker:
    """Asks one model, with drafts from the sources of a question and from its prompt."""

    def __init__(self, model: Any, tokenizer: Any, max_new_tokens: int) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.max_new_tokens = max_new_tokens

    def ask(
        self,
        title: str,
        question: str,
        store: Any,
        *,
        remember: Any = None,
        compare: bool = False,
        on_piece: Any = None,
    ) -> Any:
        """Print the answer as it is written, and its figures; return it."""

        def show(piece: Any) -> None:
            click.echo(piece.text, nl=False)
            if on_piece is not None:
                on_piece()

        click.secho(f"\n{title}: {question}", bold=True)
        if compare:
            click.echo(
                "plain generation and drafts take turns, for half a minute at most ...", err=True
            )
        sources = [store, rest_store.PromptLookup(), rest_store.RecycledLogits()]
        generator = rest_store.Generator(self.model, self.tokenizer, sources, remember=remember)
        chat = [{"role": "user", "content": question}]
        prompt = self.tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, return_dict=True, return_tensors="pt"
        )
        output = generator.generate(
            prompt, max_new_tokens=self.max_new_tokens, compare=compare, on_piece=show
        )
        generator.flush()
        click.echo(f"\n{output}")
        return output


@click.command()
@click.argument("model")
@click.argument("datastore", type=click.Path(exists=True))
@click.argument("history", type=click.Path(file_okay=False))
@click.option("--max-new-tokens", default=96, show_default=True, help="Most tokens of an answer.")
def main(model: str, datastore: str, history: str, max_new_tokens: int) -> None:
    """Ask MODEL with drafts of DATASTORE, and remember its answer in the directory HISTORY."""
    click.echo(f"loading {model} ...", err=True)
    network, tokenizer = loaded(model)
    asker = Asker(network, tokenizer, max_new_tokens)
    with (
        # Laid out for this CPU: a tree takes little longer than a token.
        rest_store.prepacked_weights(network),
        rest_store.Datastore.open(datastore, tokenizer=tokenizer) as store,
        rest_store.LiveDatastore.open(history, tokenizer=tokenizer) as answers,
    ):
        first = asker.ask("From a datastore", QUESTION, store, remember=answers, compare=True)
        with (
            service(datastore) as (process, address),
            rest_store.DatastoreClient(address, tokenizer=tokenizer) as client,
        ):
            asker.ask("From a service, asked in each step", QUESTION, client)
            written = itertools.count()
            last = asker.ask(
                "Once more, and the service is killed after ten passes",
                QUESTION,
                client,
                on_piece=lambda: next(written) == 10 and process.kill(),
            )
        click.echo("The text is the same." if last.text == first.text else "The text is another.")
        before = asker.ask("A related question, from the datastore", RELATED, store)
        after = asker.ask("The same, from the first answer", RELATED, answers)
    passes = [f"M {output.statistics.mean_tokens:.2f}" for output in (before, after)]
    click.echo(f"\n{passes[0]} from the datastore, {passes[1]} from the answer that was remembered")


if __name__ == "__main__":
    main()
