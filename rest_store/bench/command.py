"""The commands `rest-store calibrate` and `rest-store bench quality`."""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rest_store.bench.record_command import record
from rest_store.bench.report_command import report
from rest_store.datastore.datastore import Datastore
from rest_store.drafting.calibration import Calibration
from rest_store.errors import CorpusError, RecordingError, ServeError, describe

if TYPE_CHECKING:
    from build_index.target_tokenizer import TargetTokenizer
    from rest_store.bench.replay import Encode, Outcome, Recording

_SHARES = (0.01, 0.1)  # of the datastores, for the curve against their size
_recordings = click.option(
    "--recordings",
    "paths",
    multiple=True,
    required=True,
    type=click.Path(path_type=Path),
    help="JSON lines of prompt and output, as token ids or text, also .gz. May be repeated.",
)
_datastores = click.option(
    "--datastore", "stores", multiple=True, type=click.Path(path_type=Path), help="To draft from. May be repeated."
)
_tokenizer = click.option(
    "--tokenizer", help="For recordings of text: name or path; default: the one kept in the first datastore."
)


@click.command(
    epilog="Example: rest-store calibrate --recordings mine.jsonl --datastore python.ds --out mine.calibration"
)
@_recordings
@_datastores
@_tokenizer
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The calibration to write.")
@click.option("--trees", default=250, show_default=True, type=click.IntRange(1, 2000), help="Boosted trees.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def calibrate(
    paths: tuple[Path, ...], stores: tuple[Path, ...], tokenizer: str | None, out: Path, trees: int, as_json: bool
) -> None:
    """Fit a calibration to recordings of your own model, and say how good it is.

    Seven tenths of the prompts, by a fixed hash, are fitted to; the figures are those of the others.
    """
    from rest_store.bench.replay import FIT_PARTS, fit_calibration, replay

    opened = _open(stores)
    recordings = _read(paths, opened, tokenizer)
    _require_folder(out)
    fit = [recording for recording in recordings if recording.part < FIT_PARTS and recording.output.size]
    held = [recording for recording in recordings if recording.part >= FIT_PARTS and recording.output.size]
    if not fit or not held:
        found = f"{len(fit)} recordings to fit and {len(held)} to report"
        raise RecordingError(describe("calibrate", "data", found, "some of each: record more prompts"))
    sources = _sources(opened)
    facts = {
        "recordings": [path.name for path in paths],
        "prompts": f"parts 0..{FIT_PARTS - 1} of 10",
        "datastores": [path.name for path in stores],
        "trees": trees,
    }
    calibration = fit_calibration([(fit, sources)], start=Calibration.default(), trees=trees, provenance=facts)
    calibration.save(out)
    rows = [
        {"calibration": name, "nodes": nodes, **replay(held, sources, one, max_nodes=nodes).as_json()}
        for name, one in (("default", Calibration.default()), ("fitted", calibration))
        for nodes in (16, 64)
    ]
    if as_json:
        click.echo(json.dumps({"out": str(out), "fitted": len(fit), "reported": len(held), "rows": rows}))
        return
    click.echo(f"{out}: fitted to {len(fit)} recordings; on {len(held)} others:")
    for row in rows:
        error = f"calibration error {row['calibration_error']:.4f}"
        click.echo(f"  {row['calibration']:<8} {row['nodes']:>3} nodes  M {row['M']:.3f}  {error}")


def _script(name: str, about: str) -> click.Command:
    """Return the command that hands its arguments to `main` of the module of that name, which has its own --help."""

    def run(arguments: tuple[str, ...]) -> None:
        importlib.import_module(f"rest_store.bench.{name}").main(list(arguments))

    return click.Command(
        name,
        callback=run,
        params=[click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED)],
        short_help=about,
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "help_option_names": []},
    )


@click.group()
def bench() -> None:
    """Measure what rest-store is worth on your data and machine."""


bench.add_command(record)
bench.add_command(report)
for _name, _about in (
    ("speed", "How much sooner text is there: drafting methods beside plain generation, on your model."),
):
    bench.add_command(_script(_name, _about))


@bench.command(epilog="Example: rest-store bench quality --recordings traces.jsonl.gz --datastore python.ds")
@_recordings
@_datastores
@_tokenizer
@click.option(
    "--calibration",
    default="fit",
    show_default=True,
    help="'fit': fitted here to seven tenths of the prompts; 'default': the one of the package; or a file.",
)
@click.option("--nodes", "budgets", multiple=True, default=(16, 64), show_default=True, type=click.IntRange(1, 1024))
@click.option("--every", default=1, show_default=True, type=click.IntRange(1), help="Take each n-th recording only.")
@click.option("--no-ablations", is_flag=True, help="Leave out rows with each source alone or left out.")
@click.option("--through-service", is_flag=True, help="Replay through a service of the datastores, too; starts one.")
@click.option("--plots", type=click.Path(path_type=Path), help="Folder for plots; takes the extra [plots].")
@click.option(
    "--curves",
    "curved",
    is_flag=True,
    help="M against nodes, against the longest suffix, and against the size of the datastores: without --series, 1% "
    "and 10% of their documents are laid out in a temporary folder.",
)
@click.option(
    "--series",
    nargs=2,
    multiple=True,
    type=(click.FloatRange(0, 1, min_open=True, max_open=True), click.Path(path_type=Path)),
    help="For the plot against size: size relative to that of --datastore, between 0 and 1, and a datastore of that "
    "size. May be repeated, also for one size: these are taken together.",
)
@click.option("--json", "result", type=click.Path(path_type=Path), help="Write all figures to this file.")
def quality(
    paths: tuple[Path, ...],
    stores: tuple[Path, ...],
    tokenizer: str | None,
    calibration: str,
    budgets: tuple[int, ...],
    every: int,
    no_ablations: bool,
    through_service: bool,
    plots: Path | None,
    curved: bool,
    series: tuple[tuple[float, Path], ...],
    result: Path | None,
) -> None:
    """Replay recordings and print M, tokens per forward pass: the session, its parts, REST's rule, prompt lookup.

    The figures are of three tenths of the prompts, by a fixed hash; no calibration is fitted to those.
    """
    from rest_store.bench.quality import measure, measure_series, plot
    from rest_store.bench.replay import FIT_PARTS, fit_calibration

    opened = _open(stores)
    sizes = {size: _open(tuple(path for other, path in series if other == size)) for size, _ in series}
    start = Calibration.default() if calibration in ("fit", "default") else Calibration.load(calibration)
    if through_service and not stores:
        raise RecordingError(describe("--through-service", "number of datastores", 0, "at least one --datastore"))
    if plots is not None:
        _require_matplotlib()
    if result is not None:
        _require_folder(result)
    recordings = _read(paths, opened, tokenizer)[::every]
    held = [recording for recording in recordings if recording.part >= FIT_PARTS and recording.output.size]
    fit = [recording for recording in recordings if recording.part < FIT_PARTS and recording.output.size]
    if not held or (calibration == "fit" and not fit):
        found = f"{len(fit)} recordings to fit and {len(held)} to report"
        raise RecordingError(describe("bench quality", "data", found, "some of each: record more prompts"))
    used = fit_calibration([(fit, _sources(opened))], start=start) if calibration == "fit" else start

    def show(drafting: str, outcome: Outcome) -> None:
        by_family = "  ".join(
            f"{name} {tokens / steps:.2f}" for name, (tokens, steps) in sorted(outcome.families.items())
        )
        click.echo(f"{drafting:<52}{outcome.mean_accepted:6.3f}   {by_family}")

    click.echo(f"{len(held)} recordings, {sum(one.output.size for one in held)} tokens; M, and by family:")
    with contextlib.ExitStack() as ending:
        through = ending.enter_context(_served(stores)) if through_service else None
        rows = measure(held, opened, used, budgets=budgets, ablations=not no_ablations, through=through, progress=show)
    for row in rows:
        if "reliability" in row:
            click.echo(f"calibration error with {row['nodes']} nodes: {row['calibration_error']:.4f}")
    curves: dict[str, list[tuple[float, float]]] = {}
    if plots is not None or curved:
        with contextlib.ExitStack() as ending:
            if curved and not sizes:
                sizes = ending.enter_context(_parts(stores))
            curves = measure_series(held, {**sizes, 1.0: opened}, used)
    if plots is not None:
        plot(rows, curves, plots)
    if result is not None:
        from rest_store.bench.environment import data_hashes, environment

        facts: dict[str, Any] = {"benchmark": "quality", **environment(("numpy", "rest-store"))}
        facts["data"] = data_hashes([*paths, *stores, calibration])
        facts |= {"recordings": [path.name for path in paths], "calibration": calibration}
        facts |= {
            "datastores": {name: store.manifest.token_count for name, store in opened.items()},
            "reported": len(held),
        }
        result.write_text(json.dumps({**facts, "rows": rows, "curves": curves}, indent=1) + "\n", encoding="utf-8")


@contextlib.contextmanager
def _served(paths: tuple[Path, ...]) -> Iterator[object]:
    """Give a service of datastores as a source, of which every question must be answered."""
    from rest_store.bench.serving import PATIENCE, serving
    from rest_store.service.client.client import DatastoreClient

    with serving(paths) as target, DatastoreClient(target, timeout=PATIENCE) as client:
        client.connect()
        yield client
        asked = client.statistics
        if asked.answers != asked.calls:
            found = f"{asked.answers} of {asked.calls} questions"
            raise ServeError(describe("--through-service", "answered", found, "all of them"))


def _open(paths: tuple[Path, ...]) -> dict[str, Datastore]:
    """Return datastores by the names of their folders, by their paths where several folders have one name."""
    resolved = [path.resolve() for path in paths]
    for path in paths:
        if resolved.count(path.resolve()) > 1:
            raise RecordingError(describe("--datastore", "datastore", f"{path} twice", "each one once"))
    names = [path.name for path in resolved]
    return {
        name if names.count(name) == 1 else str(path): Datastore.open(path)
        for name, path in zip(names, paths, strict=True)
    }


@contextlib.contextmanager
def _parts(paths: tuple[Path, ...]) -> Iterator[dict[float, dict[str, Datastore]]]:
    """Give a hundredth and a tenth of each datastore, laid out in a folder that goes away afterwards."""
    from rest_store.bench.datastores import thinned

    with tempfile.TemporaryDirectory(prefix="rest-store-") as folder:
        parts: dict[float, dict[str, Datastore]] = {}
        for share in _SHARES:
            made = tuple(thinned(path, Path(folder, f"{place}-{share}"), share) for place, path in enumerate(paths))
            parts[share] = _open(made)
        yield parts


def _require_folder(file: Path) -> None:
    """Raise, before anything costly is done, unless there is a folder to write `file` into."""
    if not file.absolute().parent.is_dir():
        raise RecordingError(describe(file, "folder", "missing", "one that exists"))


def _require_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise RecordingError(
            describe("--plots", "matplotlib", "missing", "installed, with the extra [plots]")
        ) from error


def _sources(stores: dict[str, Datastore]) -> list[object]:
    from rest_store.drafting.sources import PromptLookup, RecycledLogits

    return [PromptLookup(), RecycledLogits(), *stores.values()]


def _read(paths: tuple[Path, ...], stores: dict[str, Datastore], tokenizer: str | None) -> list[Recording]:
    from rest_store.bench.replay import read_recordings

    encode = _encoder(next(iter(stores.values()), None), tokenizer)
    return [recording for path in paths for recording in read_recordings(path, encode)]


def _encoder(store: Datastore | None, name: str | None) -> Encode | None:
    """Return what turns a prompt and its answer into tokens as a chat would, or None without a tokenizer."""
    from rest_store.datastore.manifest import TOKENIZER_FILE_NAME

    kept = None if store is None else store.path / TOKENIZER_FILE_NAME
    if name is None and (kept is None or not kept.exists()):
        return None

    @functools.cache  # once, and not for recordings of token ids
    def tokenizer() -> TargetTokenizer:
        from build_index.tokenization import load_tokenizer

        return load_tokenizer(name if name is not None else os.fspath(kept or ""))

    if name is not None:
        tokenizer()

    def encode(prompt: str, answer: str) -> tuple[list[int], list[int]]:
        from build_index.documents import Document

        target = tokenizer()
        output = target.encode(answer).tolist()
        try:
            chat = Document(messages=(("user", prompt), ("assistant", answer)))
            whole = target.encode_conversations([chat])[0].tolist()
        except CorpusError:  # no chat template
            return target.encode(prompt).tolist(), output
        for end in range(len(whole), len(output) - 1, -1):
            if whole[end - len(output) : end] == output:
                return whole[: end - len(output)], output
        return target.encode(prompt).tolist(), output

    return encode
