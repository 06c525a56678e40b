"""The command `rest-store bench record`, and the recording of a model's outputs."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from rest_store.bench.measurement_options import chat_option, every_option, prompts_option
from rest_store.bench.prompts import Prompt, encoding, read_prompts, require_known_tokens
from rest_store.command_options import (
    FILE,
    check_writable,
    device_option,
    dtype_option,
    json_option,
    max_new_tokens_option,
    model_option,
)
from rest_store.datastore.render import counted
from rest_store.errors import DataFileError, describe
from rest_store.terminal import loading

TOP = 8  # likely tokens that are recorded for each position


@click.command(
    epilog=(
        "Example: rest-store bench record --model MODEL --prompts questions.txt --chat --out"
        " recordings.jsonl.gz"
    )
)
@model_option
@prompts_option()
@click.option(
    "--out",
    metavar="FILE",
    required=True,
    type=FILE,
    callback=check_writable,
    help="Destination of the result: the recordings; .gz compresses.",
)
@chat_option
@max_new_tokens_option()
@every_option
@dtype_option("auto")
@device_option
@json_option
def record(
    model: str,
    prompts_file: Path,
    out: Path,
    chat: bool,
    max_new_tokens: int,
    every: int,
    dtype: str,
    device: str | None,
    as_json: bool,
) -> None:
    """Record a model's outputs for your prompts, for `bench replay` and `calibrate` to replay.

    Outputs are greedy. The recordings also have the model's eight most likely tokens at each
    position, for recycled logits.
    """
    from rest_store.generation.model import load_model
    from rest_store.generation.support import vocabulary_size

    loaded, tokenizer = load_model(model, dtype=dtype, device=device, announce=loading)
    prompts = read_prompts(prompts_file, encoding(tokenizer, chat=chat))[::every]
    require_known_tokens(prompts, vocabulary_size(loaded))
    tokens = write_recordings(loaded, prompts, out, max_new_tokens=max_new_tokens)
    if as_json:
        click.echo(json.dumps({"out": str(out), "recordings": len(prompts), "tokens": tokens}))
    else:
        click.echo(f"{out}: {counted(len(prompts), 'recording')}, {counted(tokens, 'token')}")


def write_recordings(
    model: Any, prompts: Sequence[Prompt], out: Path, *, max_new_tokens: int
) -> int:
    """Write the recordings of `record_outputs` to `out`, and return the number of their tokens.

    A line on standard error follows each recording.

    Raises:
        DataFileError: the file cannot be written.
    """
    tokens = 0
    open_file: Any = gzip.open if out.suffix == ".gz" else open
    try:
        with open_file(out, "wt", encoding="utf-8") as file:
            outputs = record_outputs(model, prompts, max_new_tokens=max_new_tokens)
            for number, recording in enumerate(outputs, 1):
                file.write(json.dumps(recording) + "\n")
                size = len(recording["output"])
                tokens += size
                progress = f"{number}/{len(prompts)} {recording['set']}: {counted(size, 'token')}"
                click.echo(progress, err=True)
    except OSError as error:
        raise DataFileError(
            describe(out, "file", f"not writable ({error.strerror})", "a writable path")
        ) from error
    return tokens


def record_outputs(
    model: Any, prompts: Sequence[Prompt], *, max_new_tokens: int
) -> Iterator[dict[str, Any]]:
    """Yield a recording for each prompt: the greedy output, and likely tokens at every position.

    Args:
        model: a causal language model of transformers.
        prompts: the prompts, which it answers one after the other.
        max_new_tokens: bound on the tokens of an output.

    Yields:
        "set", "id", "prompt", "output" (token ids) and "topk" (8 ids for each position of prompt +
        output, the most likely first; those after the last token are the model's next choices).
    """
    import torch

    for prompt in prompts:
        ids = torch.tensor([prompt.tokens], device=model.device)
        with torch.no_grad():
            written = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=max_new_tokens,
                do_sample=False,
            )
            likely = model(input_ids=written, use_cache=False).logits[0].topk(TOP, dim=-1).indices
        yield {
            "set": prompt.family,
            "id": prompt.key,
            "prompt": prompt.tokens,
            "output": written[0, ids.shape[1] :].tolist(),
            "topk": likely.tolist(),
        }
