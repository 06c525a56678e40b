"""One service and two clients: the text of the first supplies drafts for the second.

python examples/service_and_clients.py MODEL shared

The clients could be programs on other machines. Here they take turns in this one, each with a
connection of its own.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from typing import Any

import click
from transformers import AutoModelForCausalLM, AutoTokenizer

import rest_store


@contextmanager
def service(directory: str, model: str) -> Iterator[str]:
    """Serve the live datastore in a directory, begun if it is absent, on a free port.

    Yield the address.
    """
    command = [
        sys.executable,
        "-m",
        "rest_store",
        "serve",
        "--live",
        f"shared={directory}",
        "--live-tokenizer",
        model,
    ]
    with subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            # "listening on ADDRESS".
            lines = [*takewhile(lambda line: line != "ready\n", process.stdout)]
            if not lines:
                sys.exit("The service did not start.")  # it has said why
            yield lines[0].split()[-1]
        finally:
            process.terminate()


def write(address: str, model: Any, tokenizer: Any, prompt: str, max_new_tokens: int) -> None:
    """Be a client: draft from the service, and let it remember the output."""
    with rest_store.DatastoreClient(address, tokenizer=tokenizer) as client:
        sources = [client, rest_store.PromptLookup(), rest_store.RecycledLogits()]
        generator = rest_store.Generator(model, tokenizer, sources, remember=client)
        output = generator.generate(prompt, max_new_tokens=max_new_tokens)
        generator.flush()
    print(prompt + output.text, output, sep="\n", end="\n\n")


@click.command()
@click.argument("model")
@click.argument("directory", type=click.Path(file_okay=False))
@click.option(
    "--prompt",
    "prompts",
    nargs=2,
    default=("def push(self, item):", "def push(self, item, count):"),
)
@click.option("--max-new-tokens", default=64, show_default=True, help="Most tokens to write.")
def main(model: str, directory: str, prompts: tuple[str, str], max_new_tokens: int) -> None:
    """Serve the live datastore in DIRECTORY, and let two clients write with MODEL."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    loaded = AutoModelForCausalLM.from_pretrained(model)
    with service(directory, model) as address:
        for prompt in prompts:
            write(address, loaded, tokenizer, prompt, max_new_tokens)


if __name__ == "__main__":
    main()
