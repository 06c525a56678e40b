"""The command `rest-store bench speed`: drafting methods beside plain `generate` in one run."""

from __future__ import annotations

import functools
from pathlib import Path

import click

import rest_store
from rest_store.bench.measurement_options import (
    Destination,
    calibration_option,
    chat_option,
    datastores_option,
    prepacked_option,
    prompts_option,
    recordings_option,
    result_options,
)
from rest_store.bench.prompts import (
    Prompt,
    encoding,
    interleave,
    read_prompts,
    require_known_tokens,
)
from rest_store.bench.recordings import encoder, read_recordings, unfitted, without
from rest_store.bench.results import write_result
from rest_store.bench.speed import PACKAGES, make_methods, measure_speed, show
from rest_store.command_options import (
    device_option,
    dtype_option,
    max_new_tokens_option,
    max_nodes_option,
    model_option,
)
from rest_store.datastore.render import counted
from rest_store.drafting.calibration import Calibration
from rest_store.errors import DataFileError, describe
from rest_store.live.open_store import open_store
from rest_store.terminal import loading


@click.command(
    epilog=(
        "Example: rest-store bench speed --model MODEL --recordings traces.jsonl.gz --datastore"
        " python.ds --out results/speed.json"
    )
)
@model_option
@prompts_option(required=False)
@chat_option
@recordings_option(required=False)
@datastores_option
@click.option(
    "--method",
    "methods",
    metavar="NAME",
    multiple=True,
    help="Measure only this method and plain generation. Repeatable.",
)
@click.option(
    "--sampling",
    type=click.Choice(["greedy", "nucleus"]),
    default="greedy",
    help="The choice of tokens.",
)
@click.option(
    "--per-family",
    metavar="N",
    type=click.IntRange(1),
    show_default="all",
    help="Most prompts of each family.",
)
@max_new_tokens_option()
@max_nodes_option(16, minimum=0)
@calibration_option
@dtype_option("float32")
@device_option
@prepacked_option
@result_options
def speed(
    model: str,
    prompts_file: Path | None,
    chat: bool,
    recordings: tuple[Path, ...],
    datastores: tuple[Path, ...],
    methods: tuple[str, ...],
    sampling: str,
    per_family: int | None,
    max_new_tokens: int,
    max_nodes: int,
    calibration: Path | None,
    dtype: str,
    device: str | None,
    prepacked_weights: bool,
    out: Destination,
) -> None:
    """Measure the speed of drafting methods beside plain generation, on your model.

    The prompts are those of --prompts and --recordings; --per-family limits their number. Prompts
    that the calibration was fitted to are left out, with a message. The package's calibration was
    fitted to none of yours.

    Every method continues every prompt, after a warm-up. The methods take turns, and each prompt
    begins with another method, so that a slow while of the machine slows all of them. The report
    has, for each family of prompts and over all: tokens per second relative to plain `generate` of
    transformers (of all seconds, and the median over prompts), M (tokens per forward pass), and the
    share of texts that equal those of plain `generate`. Where a text differs, the rounding of a
    wider pass decided between two tokens.

    --sampling nucleus uses the temperatures and top-p of REST's Table 1, with one seed for each
    prompt. The package's loop still writes the tokens of plain `generate`; prompt lookup of
    transformers draws other texts from the same distribution.
    """
    import torch  # noqa: F401  a missing package fails before anything is read

    from rest_store.generation.model import load_model
    from rest_store.generation.support import vocabulary_size

    if prompts_file is None and not recordings:
        raise click.UsageError("prompts are needed: --prompts or --recordings")
    own = None if calibration is None else Calibration.load(calibration)
    encode = encoder(None, model)
    recorded = []
    for path in recordings:
        recorded += read_recordings(path, encode)
    reported = unfitted(recorded, own or Calibration.default(), "bench speed") if recorded else []
    target, tokenizer = load_model(model, dtype=dtype, device=device, announce=loading)
    stores = [open_store(path, tokenizer=tokenizer) for path in datastores]
    prompts = (
        [] if prompts_file is None else read_prompts(prompts_file, encoding(tokenizer, chat=chat))
    )
    prompts += [
        Prompt(one.family, one.key, one.prompt.tolist()) for one in reported if one.prompt.size
    ]
    prompts = interleave(prompts, per_family)
    if not prompts:
        raise DataFileError(describe("bench speed", "number of prompts", 0, "at least one"))
    require_known_tokens(prompts, vocabulary_size(target))
    make = functools.partial(
        make_methods, stores, max_nodes=max_nodes, only=methods, calibration=own
    )
    make()  # a wrong name of a method fails first
    if prepacked_weights:
        click.get_current_context().with_resource(rest_store.prepacked_weights(target))
    click.echo(f"{counted(len(prompts), 'prompt')}{without(recorded, reported)}")
    results = measure_speed(
        target, make, prompts, sampling=sampling, max_new_tokens=max_new_tokens, progress=click.echo
    )
    show(results["families"])
    write_result(out, "speed", click.get_current_context().params, PACKAGES, results)
