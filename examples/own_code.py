"""Draft from a folder of your own code: build a datastore of it, generate with it, and compare.

python examples/own_code.py MODEL src/ --prompt "def test_"
"""

from pathlib import Path

import click
from transformers import AutoModelForCausalLM, AutoTokenizer

import rest_store


@click.command()
@click.argument("model")
@click.argument("folder", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--datastore", default="code.ds", show_default=True, help="Where the datastore is, or is built."
)
@click.option("--prompt", default="def ", show_default=True, help="What the model continues.")
@click.option("--max-new-tokens", default=64, show_default=True, help="Most tokens to write.")
def main(model: str, folder: Path, datastore: str, prompt: str, max_new_tokens: int) -> None:
    """Continue a prompt with MODEL, and drafts from the files in FOLDER."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    if Path(datastore).exists():
        store = rest_store.Datastore.open(datastore, tokenizer=tokenizer)
    else:
        store = rest_store.build(folder, model, datastore)
    sources = [store, rest_store.PromptLookup(), rest_store.RecycledLogits()]
    generator = rest_store.Generator(
        AutoModelForCausalLM.from_pretrained(model), tokenizer, sources
    )
    output = generator.generate(prompt, max_new_tokens=max_new_tokens, compare=True)
    print(prompt + output.text)
    print(output)


if __name__ == "__main__":
    main()
