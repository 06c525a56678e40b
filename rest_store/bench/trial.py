"""The command `rest-store try`: what drafting is worth on your
model, your texts and your prompts, in one go.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click

import rest_store
from rest_store.bench.measurement_options import (
    Destination,
    chat_option,
    prepacked_option,
    prompts_option,
)
from rest_store.bench.prompts import encoding, interleaved, read_prompts, require_known_tokens
from rest_store.bench.record import write_recordings
from rest_store.bench.recordings import read_recordings
from rest_store.bench.replay import Outcome
from rest_store.bench.replay_command import measure
from rest_store.bench.report import in_order, page
from rest_store.bench.results import read_results, write_result, write_text
from rest_store.bench.speed import PACKAGES, make_methods, measure_speed, show
from rest_store.command_options import (
    PATH,
    device_option,
    dtype_option,
    json_option,
    max_new_tokens_option,
    max_nodes_option,
    model_option,
)
from rest_store.datastore.manifest import FILE_NAME, Manifest
from rest_store.datastore.render import counted
from rest_store.drafting.calibration import Calibration
from rest_store.generation.comparison import Speedup
from rest_store.terminal import loading

THEIRS, OURS = "transformers prompt lookup", "DraftSession"
METHODS = ("plain", THEIRS, OURS)
_MAX_SECONDS: float | None = 120.0  # of timing; None: one round
_STORE = "datastore"  # its folder, and its name in the results
_SAME = 0.05  # of M

tell = functools.partial(click.echo, err=True)


@dataclass(frozen=True)
class Trial:
    """The figures that a verdict rests on.

    Attributes:
        prompts: how many there were.
        timed: for how many of them there was time.
        speedup: of drafting with all sources, over plain generation.
        prompt_lookup_speedup: of prompt lookup as transformers has it.
        mean_tokens: M with all sources, by replay.
        without_datastore: M without the datastore, by replay.
        other_texts: prompts whose text was not that of plain generation.
    """

    prompts: int
    timed: int
    speedup: Speedup
    prompt_lookup_speedup: Speedup
    mean_tokens: float
    without_datastore: float
    other_texts: int

    def verdict(self) -> str:
        """Return the verdict, a few sentences."""
        number = counted(self.prompts, "prompt")
        if self.timed < self.prompts:
            number = f"{self.timed} of {number}, for which there was time"
        beside = f"{number}, drafts of all sources beside plain generation"
        sentences = [f"{beside}: {self.speedup}", self._prompt_lookup(), self._datastore()]
        if self.other_texts:
            sentences.append(f"{self.other_texts} of the texts differ from plain generation's")
        return ". ".join(sentences) + "."

    def _datastore(self) -> str:
        with_it, without = f"{self.mean_tokens:.2f}", f"{self.without_datastore:.2f}"
        if self.mean_tokens >= self.without_datastore + _SAME:
            return f"In replays, the datastore raised M from {without} to {with_it}"
        if self.mean_tokens > self.without_datastore - _SAME:
            return (
                f"In replays, the datastore brought nothing: M is {with_it} with it and {without}"
                " without"
            )
        return f"In replays, the datastore did harm: M is {with_it} with it and {without} without"

    def _prompt_lookup(self) -> str:
        other = self.prompt_lookup_speedup
        more = other.low > self.speedup.high
        return (
            "Prompt lookup alone, which transformers has, gives"
            f" {'more: ' if more else ''}{other.median:.2f}"
        )


@click.command(
    "try",
    epilog="Example: rest-store try --model MODEL --corpus src/ --prompts prompts.txt",
)
@model_option
@click.option(
    "--corpus",
    "corpora",
    multiple=True,
    required=True,
    metavar="PATH",
    help="What the datastore is built of: as for `rest-store build`. Repeatable.",
)
@prompts_option()
@chat_option
@max_new_tokens_option(128)
@max_nodes_option(16)
@dtype_option("float32")
@device_option
@prepacked_option
@click.option(
    "--out",
    metavar="DIR",
    type=PATH,
    default="trial",
    help="Where the result is written: the folder of the datastore, the results and the page.",
)
@json_option
def try_(
    model: str,
    corpora: tuple[str, ...],
    prompts_file: Path,
    chat: bool,
    max_new_tokens: int,
    max_nodes: int,
    dtype: str,
    device: str | None,
    prepacked_weights: bool,
    out: Path,
    as_json: bool,
) -> None:
    """Try drafting on your model, your texts and your prompts: five
    prompts are enough for a first look.

    Builds a datastore of the corpus, records what the model writes, replays that with and without
    each source, times plain generation, prompt lookup of transformers and drafts of all sources in
    turns, and writes a page. Timing ends when the result is certain, or when two minutes are over
    and all methods have continued the prompt of that moment. The last line is the verdict. Speeds
    are those of whole greedy generations, in the median. A datastore of the same corpora that is in
    the folder already is used again: remove it after changes to them.
    """
    from rest_store.generation.model import load_model
    from rest_store.generation.support import vocabulary_size

    began = time.perf_counter()
    # A fault in the file is reported before anything is built.
    read_prompts(prompts_file, lambda text: [0])
    results = out / "results"
    folder = datastore_of(corpora, model, out, without=[prompts_file])
    tell(f"model: {model}")
    loaded, tokenizer = load_model(model, dtype=dtype, device=device, announce=loading)
    if prepacked_weights:
        click.get_current_context().with_resource(rest_store.prepacked_weights(loaded))
    store = rest_store.Datastore.open(folder, tokenizer=tokenizer)
    prompts = interleaved(read_prompts(prompts_file, encoding(tokenizer, chat=chat)))
    require_known_tokens(prompts, vocabulary_size(loaded))
    tell(f"recording {counted(len(prompts), 'output')}")
    recorded = out / "recordings.jsonl"
    write_recordings(loaded, prompts, recorded, max_new_tokens=max_new_tokens)

    def show_row(drafting: str, nodes: int, outcome: Outcome) -> None:
        tell(f"{drafting}: M {outcome}")

    tell("replaying them, as many nodes in each step as it may have: M, tokens of a forward pass")
    recordings = [recording for recording in read_recordings(recorded) if recording.output.size]
    rows = measure(
        recordings, {_STORE: store}, Calibration.default(), budgets=(max_nodes,), progress=show_row
    )
    stored = {_STORE: store.info().token_count}
    quality = {"datastores": stored, "reported": len(recordings), "rows": rows}
    tell("timing plain generation, prompt lookup of transformers, and drafts of all sources")
    speed = measure_speed(
        loaded,
        lambda: make_methods([store], max_nodes=max_nodes, only=METHODS),
        prompts,
        max_new_tokens=max_new_tokens,
        max_seconds=_MAX_SECONDS,
        progress=tell,
    )
    families, speedups = (
        speed["families"],
        {name: Speedup(**figures) for name, figures in speed["rounds"].items()},
    )
    # As in the verdict: of whole rounds, not of the median runs of each prompt.
    for name, speedup in speedups.items():
        families["all"][name] |= {
            "speedup": speedup.median,
            "low": speedup.low,
            "high": speedup.high,
        }
    arguments = {**click.get_current_context().params, "recordings": recorded, "datastore": folder}
    write_result(
        Destination(results / "replay.json"), "replay", arguments, ("numpy", "rest-store"), quality
    )
    write_result(Destination(results / "speed.json"), "speed", arguments, PACKAGES, speed)
    of_rows = {row["drafting"]: row["M"] for row in rows}
    trial = Trial(
        prompts=len(prompts),
        timed=len(speed["prompts"]),
        speedup=speedups[OURS],
        prompt_lookup_speedup=speedups[THEIRS],
        mean_tokens=of_rows["session"],
        without_datastore=of_rows[f"session without {_STORE}"],
        other_texts=round(len(speed["prompts"]) * (1 - families["all"][OURS]["identical"])),
    )
    report = out / "report.html"
    title = f"rest-store on {Path(model).name}"
    write_text(report, page(in_order(read_results(results)), title=title, verdict=trial.verdict()))
    seconds = time.perf_counter() - began
    if as_json:
        facts = {"datastore": str(folder), "page": str(report), "seconds": round(seconds, 1)}
        click.echo(json.dumps({"verdict": trial.verdict(), **asdict(trial), **facts}))
        return
    show(families)
    click.echo(f"{report}: all figures, after {seconds:.0f} seconds")
    click.echo(trial.verdict())


def datastore_of(
    corpora: Sequence[str], model: str, out: Path, *, without: Sequence[Path] = ()
) -> Path:
    """Return the datastore in the folder `out`, built of `corpora`
    unless there is one of these already.

    Args:
        corpora: as `rest_store.build` takes them.
        model: names the tokenizer.
        out: a folder; not read where it is in a corpus.
        without: files that are not read there, either.

    Raises:
        BuildError, TokenizerLoadError: as `rest_store.build`.
    """
    from build_index.progress import ProgressLine

    folder = out / _STORE
    if (folder / FILE_NAME).exists() and [
        one["corpus"] for one in Manifest.read(folder).corpora
    ] == list(corpora):
        tell(f"datastore: {folder}, as built before")
        return folder
    tell(f"datastore: building {folder} of {', '.join(corpora)}")
    exclude = [
        glob for corpus in corpora for path in (out, *without) for glob in _inside(path, corpus)
    ]
    line = ProgressLine(sys.stderr) if ProgressLine.fits(sys.stderr) else None
    with rest_store.build(corpora, model, folder, exclude=exclude, progress=line) as store:
        info = store.info()
    tell(
        f"datastore: {counted(info.token_count, 'token')} in"
        f" {counted(info.document_count, 'document')}"
    )
    return folder


def _inside(path: Path, corpus: str) -> list[str]:
    """Return the glob that leaves `path` out of a corpus; none where it is elsewhere."""
    top = Path(corpus).expanduser().resolve()
    if top not in path.resolve().parents:
        return []
    return [f"/{path.resolve().relative_to(top)}"]
