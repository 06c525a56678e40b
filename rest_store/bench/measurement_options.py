"""Options that the commands of `rest-store bench` and the scripts in `benchmarks/` share."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import click

from rest_store.command_options import (
    FILE,
    PATH,
    Decorator,
    FloatRange,
    check_writable,
    json_option,
)
from rest_store.drafting.calibration import Calibration


def recordings_option(*, required: bool = True) -> Decorator[Any]:
    """Return `--recordings`."""
    return click.option(
        "--recordings",
        metavar="FILE",
        multiple=True,
        required=required,
        type=PATH,
        help=(
            "JSON lines of prompt and output or of messages, as token ids or text; may end in .gz."
            " Repeatable."
        ),
    )


datastores_option = click.option(
    "--datastore",
    "datastores",
    metavar="DIR",
    multiple=True,
    type=PATH,
    help="Datastore to draft from: frozen or live. Repeatable.",
)
history_from_option = click.option(
    "--history-from",
    "history_from",
    metavar="FILE",
    multiple=True,
    type=PATH,
    help=(
        "Replay also with the outputs of these recordings and of the files before this one in a"
        " live datastore, but never with the replayed output itself. Repeatable."
    ),
)
tokenizer_option = click.option(
    "--tokenizer",
    metavar="NAME_OR_PATH",
    show_default="the copy in the first datastore",
    help="Tokenizer of the target model: encodes recordings that are text.",
)


def cost_model_options(command: Any) -> Any:
    """Add `--cost-model`, `--batch` and `--drafting-us`."""
    for option in (
        click.option(
            "--drafting-us",
            metavar="N",
            type=FloatRange(0),
            show_default="as measured here",
            help="Microseconds of drafting in a modelled step, for each sequence.",
        ),
        click.option(
            "--batch",
            "batches",
            metavar="N",
            multiple=True,
            type=click.IntRange(1, 4096),
            default=(1, 8, 32, 128),
            help="Sequences of a modelled step. Repeatable.",
        ),
        click.option(
            "--cost-model",
            metavar="FILE",
            type=PATH,
            help=(
                "Model an engine's speed: JSON with the seconds fixed, overhead, cached_token and"
                " verified_token. Drafts are cut by these costs."
            ),
        ),
    ):
        command = option(command)
    return command


every_option = click.option(
    "--every",
    metavar="N",
    default=1,
    type=click.IntRange(1),
    help="Take every n-th recording or prompt only.",
)
chat_option = click.option(
    "--chat",
    is_flag=True,
    help="Render texts with the model's chat template: each is a user's turn.",
)
calibration_option = click.option(
    "--calibration",
    metavar="FILE",
    type=PATH,
    show_default="the one of the package",
    help="A calibration that `rest-store calibrate` wrote.",
)
prepacked_option = click.option(
    "--prepacked-weights",
    is_flag=True,
    help=(
        "Copy float32 weights into the layout that this CPU is fastest with: for all methods, plain"
        " generation too."
    ),
)
_out_option = click.option(
    "--out",
    metavar="FILE",
    type=FILE,
    callback=check_writable,
    help="Destination of the result: all figures, as JSON.",
)


@dataclass(frozen=True)
class Destination:
    """The destination of a measurement's results.

    Attributes:
        file: the file of `--out`.
        stream: standard output, with `--json`.
    """

    file: Path | None = None
    stream: TextIO | None = None


def result_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--out` and `--json` to a command that measures.

    The command gets them as one argument `out`, for `write_result`. With `--json`, its own prints
    go to standard error.
    """

    @functools.wraps(command)
    def measured(*arguments: Any, out: Path | None, as_json: bool, **options: Any) -> None:
        stream = sys.stdout if as_json else None
        with contextlib.redirect_stdout(sys.stderr if as_json else sys.stdout):
            command(*arguments, out=Destination(out, stream), **options)

    wrapped: Callable[..., None] = _out_option(json_option(measured))
    return wrapped


def prompts_option(*, required: bool = True) -> Decorator[Any]:
    """Return the option --prompts FILE, as `read_prompts` reads it."""
    return click.option(
        "--prompts",
        "prompts_file",
        metavar="FILE",
        required=required,
        type=PATH,
        help=(
            "Prompts for the model: plain text, one prompt a line; or JSON lines of texts, token"
            " ids, or objects with prompt or turns (texts, of which the first is used). May end in"
            " .gz."
        ),
    )


def load_calibration(path: Path | None) -> Calibration:
    """Return the calibration that `--calibration` names."""
    return Calibration.default() if path is None else Calibration.load(path)
