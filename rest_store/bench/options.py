"""Options that the commands of `rest-store bench` and the scripts in `benchmarks/` share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from rest_store.errors import RecordingError, describe

SHOW_DEFAULTS = {"show_default": True}  # context settings of a command
PATH = click.Path(path_type=Path)

recordings_option = click.option(
    "--recordings",
    multiple=True,
    required=True,
    type=PATH,
    help="JSON lines of prompt and output, as token ids or text; may end in .gz. May be repeated.",
)
datastores_option = click.option(
    "--datastore", "datastores", multiple=True, type=PATH, help="Datastore to draft from. May be repeated."
)
through_service_option = click.option(
    "--through-service", is_flag=True, help="Start a service of the datastores, and measure sessions through it, too."
)
tokenizer_option = click.option(
    "--tokenizer", help="For recordings of text: name or path. Default: the copy in the first datastore."
)
every_option = click.option(
    "--every", default=1, type=click.IntRange(1), help="Take every n-th recording or prompt only."
)
model_option = click.option("--model", required=True, help="Hugging Face name, directory or GGUF file.")
dtype_option = click.option("--dtype", default="float32", help="Type of the weights.")
device_option = click.option("--device", help="Where the model runs, such as cuda.")
seed_option = click.option("--seed", default=0, help="Seed of random choices.")
json_option = click.option("--json", "json_file", type=PATH, help="Write all figures to this file.")
plots_option = click.option("--plots", type=PATH, help="Folder for charts as PNG and SVG; needs the extra [plots].")


def require_folder(file: Path) -> None:
    """Raise, before anything costly is done, unless there is a folder to write `file` into.

    Raises:
        RecordingError: the folder does not exist.
    """
    if not file.absolute().parent.is_dir():
        raise RecordingError(describe(file, "folder", "missing", "one that exists"))


def require_datastores(datastores: Sequence[Path], where: str = "--through-service") -> None:
    """Raise, before anything costly is done, unless there is a datastore, which `where` needs.

    Raises:
        RecordingError: there is none.
    """
    if not datastores:
        raise RecordingError(describe(where, "number of datastores", 0, "at least one --datastore"))
