"""The command `rest-store try`: a trial of drafting on your model, texts and prompts, in one go."""

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
from rest_store.bench.prompts import encoding, interleave, read_prompts, require_known_tokens
from rest_store.bench.record_command import write_recordings
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

THEIRS = "transformers prompt lookup"
OURS = "DraftSession"
METHODS = ("plain", THEIRS, OURS)
_MAX_SECONDS: float | None = 120.0  # for timing; None: one round
_STORE = "datastore"  # its folder, and its name in the results
_SAME = 0.05  # of M

tell = functools.partial(click.echo, err=True)


@dataclass(frozen=True)
class Trial:
    """The figures that a verdict rests on.

    Attributes:
        prompts: number of prompts.
        timed: number of prompts for which there was time.
        speedup: speedup of drafting with all sources over plain generation.
        prompt_lookup_speedup: speedup of transformers' prompt lookup.
        mean_tokens: M with all sources, by replay.
        without_datastore: M without the datastore, by replay.
        other_texts: number of prompts whose text differs from plain generation's.
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
        with_it = f"{self.mean_tokens:.2f}"
        without = f"{self.without_datastore:.2f}"
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
        more = "more: " if other.low > self.speedup.high else ""
        return f"Prompt lookup alone, which transformers has, gives {more}{other.median:.2f}"


@click.command(
    "try",
    epilog="Example: rest-store try --model MODEL --corpus src/ --prompts prompts.txt",
)
@model_option
@click.option(
    "--corpus",
    "corpora",
    multiple=True,
    metavar="PATH",
    help="Text for the datastore: as for `rest-store build`. Repeatable.",
)
@prompts_option(required=False)
@click.option(
    "--transcripts",
    metavar="PATH",
    help=(
        "In place of prompts, transcripts of agents, a file or a directory: their answers are"
        " replayed with an agent's memory of those before. Of the model, only the tokenizer is"
        " loaded."
    ),
)
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
    help="Destination of the result: the folder of the datastore, the results and the page.",
)
@json_option
def try_(
    model: str,
    corpora: tuple[str, ...],
    prompts_file: Path | None,
    transcripts: str | None,
    chat: bool,
    max_new_tokens: int,
    max_nodes: int,
    dtype: str,
    device: str | None,
    prepacked_weights: bool,
    out: Path,
    as_json: bool,
) -> None:
    """Try drafting on your model, your texts and your prompts; five prompts suffice for a look.

    The command builds a datastore of the corpus and records the model's outputs. It replays them
    with and without each source. It times plain generation, prompt lookup of transformers and
    drafts of all sources in turns, and writes a page. Timing ends when the result is certain, or
    after two minutes, once all methods have continued the current prompt. The last line is the
    verdict. Speeds are medians of whole greedy generations. A datastore of the same corpora that is
    in the folder already is used again: remove it after changes to them.

    With --transcripts, nothing is generated. The last 200 answers are replayed, with prompt lookup
    alone, with an agent's memory of the conversations before, and without each source. The last
    line is the verdict for each source.
    """
    if transcripts is not None:
        if prompts_file is not None:
            raise click.UsageError("--prompts and --transcripts exclude each other")
        _try_transcripts(transcripts, model, corpora, out, max_nodes=max_nodes, as_json=as_json)
        return
    if prompts_file is None or not corpora:
        raise click.UsageError("--corpus and --prompts are needed, or --transcripts")
    from rest_store.generation.model import load_model
    from rest_store.generation.support import vocabulary_size

    began = time.perf_counter()
    read_prompts(prompts_file, lambda text: [0])  # a fault in the file fails before the build
    results = out / "results"
    folder = open_or_build(corpora, model, out, without=[prompts_file])
    tell(f"model: {model}")
    loaded, tokenizer = load_model(model, dtype=dtype, device=device, announce=loading)
    if prepacked_weights:
        click.get_current_context().with_resource(rest_store.prepacked_weights(loaded))
    store = rest_store.Datastore.open(folder, tokenizer=tokenizer)
    prompts = interleave(read_prompts(prompts_file, encoding(tokenizer, chat=chat)))
    require_known_tokens(prompts, vocabulary_size(loaded))
    tell(f"recording {counted(len(prompts), 'output')}")
    recorded = out / "recordings.jsonl"
    write_recordings(loaded, prompts, recorded, max_new_tokens=max_new_tokens)

    def show_row(drafting: str, nodes: int, outcome: Outcome) -> None:
        tell(f"{drafting}: M {outcome}")

    tell("replaying them, as many nodes in each step as it may have: M, tokens of a forward pass")
    recordings = [recording for recording in read_recordings(recorded) if recording.output.size]
    table_rows = measure(
        recordings, {_STORE: store}, Calibration.default(), budgets=(max_nodes,), progress=show_row
    )
    stored = {_STORE: store.info().token_count}
    quality = {"datastores": stored, "reported": len(recordings), "rows": table_rows}
    tell("timing plain generation, prompt lookup of transformers, and drafts of all sources")
    speed = measure_speed(
        loaded,
        lambda: make_methods([store], max_nodes=max_nodes, only=METHODS),
        prompts,
        max_new_tokens=max_new_tokens,
        max_seconds=_MAX_SECONDS,
        progress=tell,
    )
    families = speed["families"]
    speedups = {name: Speedup(**figures) for name, figures in speed["rounds"].items()}
    # Speeds of whole rounds, as in the verdict, and not of the median runs of each prompt.
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
    means = {row["drafting"]: row["M"] for row in table_rows}
    trial = Trial(
        prompts=len(prompts),
        timed=len(speed["prompts"]),
        speedup=speedups[OURS],
        prompt_lookup_speedup=speedups[THEIRS],
        mean_tokens=means["session"],
        without_datastore=means[f"session without {_STORE}"],
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


def _try_transcripts(
    path: str, model: str, corpora: Sequence[str], out: Path, *, max_nodes: int, as_json: bool
) -> None:
    from build_index.documents import CorpusCounts
    from build_index.tokenization import load_tokenizer
    from rest_store.bench.transcript_trial import conversations_in, try_transcripts

    began = time.perf_counter()
    conversations = conversations_in(path, CorpusCounts())
    answers = sum(len(one.answers) for one in conversations)
    in_conversations = counted(len(conversations), "conversation")
    tell(f"transcripts: {counted(answers, 'answer')} in {in_conversations}")
    with loading(f"tokenizer of {model}"):
        target = load_tokenizer(model)
    target.accelerate()
    corpus = None
    if corpora:
        folder = open_or_build(corpora, model, out, without=[Path(path)])
        corpus = rest_store.Datastore.open(folder, tokenizer=target.identity)
    tried = try_transcripts(conversations, target, corpus, max_nodes=max_nodes, progress=tell)
    seconds = round(time.perf_counter() - began, 1)
    if as_json:
        click.echo(json.dumps({**tried.as_json(), "seconds": seconds}))
        return
    for name, outcome in tried.outcomes.items():
        click.echo(f"{name}: M {outcome}")
    click.echo(tried.verdict())


def open_or_build(
    corpora: Sequence[str], model: str, out: Path, *, without: Sequence[Path] = ()
) -> Path:
    """Return the datastore in the folder `out`; without one of `corpora` there, build it.

    Args:
        corpora: as `rest_store.build` takes them.
        model: names the tokenizer.
        out: a folder; it is left out of a corpus that holds it.
        without: other files to leave out.

    Raises:
        BuildError, TokenizerLoadError: as `rest_store.build`.
    """
    from build_index.progress import ProgressLine

    folder = out / _STORE
    if (folder / FILE_NAME).exists():
        stored_corpora = [one["corpus"] for one in Manifest.read(folder).corpora]
        if stored_corpora == list(corpora):
            tell(f"datastore: {folder}, as built before")
            return folder
    tell(f"datastore: building {folder} of {', '.join(corpora)}")
    exclude = []
    for corpus in corpora:
        for path in (out, *without):
            exclude += _inside(path, corpus)
    line = ProgressLine(sys.stderr) if ProgressLine.fits(sys.stderr) else None
    with rest_store.build(corpora, model, folder, exclude=exclude, progress=line) as store:
        info = store.info()
    tell(
        f"datastore: {counted(info.token_count, 'token')} in"
        f" {counted(info.document_count, 'document')}"
    )
    return folder


def _inside(path: Path, corpus: str) -> list[str]:
    """Return the glob that leaves `path` out of a corpus; none if it is not inside."""
    top = Path(corpus).expanduser().resolve()
    if top not in path.resolve().parents:
        return []
    return [f"/{path.resolve().relative_to(top)}"]
