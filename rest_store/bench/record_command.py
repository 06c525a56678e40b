"""The command `rest-store bench record`."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import click

from rest_store.errors import RecordingError, describe


@click.command(
    epilog="Example: rest-store bench record --model MODEL --prompts questions.jsonl --chat --out recordings.jsonl.gz"
)
@click.option("--model", required=True, help="Hugging Face name, directory or GGUF file.")
@click.option(
    "--prompts",
    "source",
    required=True,
    type=click.Path(path_type=Path),
    help="JSON lines with prompt (text or token ids) or turns (texts, of which the first), also .gz.",
)
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The recordings to write; .gz compresses.")
@click.option("--chat", is_flag=True, help="Render texts with the tokenizer's chat template.")
@click.option("--max-new-tokens", default=256, show_default=True, type=click.IntRange(1), help="Of each output.")
@click.option("--every", default=1, show_default=True, type=click.IntRange(1), help="Take each n-th prompt only.")
@click.option("--dtype", default="auto", show_default=True, help="Type of the weights, such as float32.")
@click.option("--device", help="Where the model runs, such as cuda.")
def record(
    model: str,
    source: Path,
    out: Path,
    chat: bool,
    max_new_tokens: int,
    every: int,
    dtype: str,
    device: str | None,
) -> None:
    """Record what a model writes for your prompts: what `bench quality` and `calibrate` replay.

    Outputs are greedy; with each position the model's eight most likely tokens are kept, for recycled logits.
    """
    from rest_store.bench import record as recording
    from rest_store.bench.questions import chat_tokens
    from rest_store.generation.generator import load_model

    if not out.absolute().parent.is_dir():
        raise RecordingError(describe(out, "folder", "absent", "one that exists"))
    loaded, tokenizer = load_model(model, dtype=dtype, device=device)

    def encode(text: str) -> list[int]:
        return chat_tokens(tokenizer, [text]) if chat else list(tokenizer(text)["input_ids"])

    prompts = recording.read_prompts(source, encode)[::every]
    tokens = 0
    opened: Any = gzip.open if out.suffix == ".gz" else open
    try:
        with opened(out, "wt", encoding="utf-8") as file:
            for number, row in enumerate(recording.record(loaded, prompts, max_new_tokens=max_new_tokens), 1):
                file.write(json.dumps(row) + "\n")
                tokens += len(row["output"])
                click.echo(f"{number}/{len(prompts)} {row['set']}: {len(row['output'])} tokens", err=True)
    except OSError as error:
        raise RecordingError(
            describe(out, "file", f"not writable ({error.strerror})", "a place to write to")
        ) from error
    click.echo(f"{out}: {len(prompts)} recordings, {tokens} tokens")
