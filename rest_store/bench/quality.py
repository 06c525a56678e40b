"""The command `rest-store bench quality`: M of a session, of its parts, and of known rules, by replay of recordings."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from rest_store.bench.baselines import LongestMatch
from rest_store.bench.datastores import open_datastores, thinned
from rest_store.bench.environment import write_result
from rest_store.bench.options import (
    Destination,
    datastores_option,
    every_option,
    plots_option,
    recordings_option,
    require_datastores,
    result_options,
    through_service_option,
    tokenizer_option,
)
from rest_store.bench.recordings import (
    LEAST_TO_FIT,
    Recording,
    amount,
    read_all,
    split,
    unfitted,
    without,
)
from rest_store.bench.replay import Draft, Outcome, fit_calibration, replay, walk
from rest_store.bench.serving import asking
from rest_store.datastore.render import counted
from rest_store.datastore.store import Store
from rest_store.datastore.tree import TokenTree
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.sources import PromptLookup, RecycledLogits, require_sources
from rest_store.errors import RecordingError, describe
from rest_store.options import max_nodes_option

_SHARES = (0.01, 0.1)  # of the datastores, for the curve against their size
_NODES = 16  # of a step, where they do not vary
_NGRAM, _CHAIN = 3, 10  # tokens that prompt lookup looks up at most, and drafts


@click.command(epilog="Example: rest-store bench quality --recordings traces.jsonl.gz --datastore python.ds")
@recordings_option()
@datastores_option
@tokenizer_option
@click.option(
    "--calibration",
    metavar="FILE",
    default="default",
    help="'default': the one of the package; a file; or 'fit': fitted to seven tenths of the prompts.",
)
@max_nodes_option((16, 64), multiple=True)
@every_option
@click.option("--no-ablations", is_flag=True, help="Leave out the rows with each source alone or left out.")
@through_service_option
@plots_option
@click.option(
    "--curves",
    is_flag=True,
    help="Measure M against nodes, longest suffix and size of the datastores, with 1% and 10% of their documents.",
)
@result_options
def quality(
    recordings: tuple[Path, ...],
    datastores: tuple[Path, ...],
    tokenizer: str | None,
    calibration: str,
    max_nodes: tuple[int, ...],
    every: int,
    no_ablations: bool,
    through_service: bool,
    plots: Path | None,
    curves: bool,
    out: Destination,
) -> None:
    """Replay recordings and print M, tokens per forward pass: the session, its parts, REST's rule, prompt lookup.

    The figures are those of all recordings that the calibration was not fitted to: with 'fit', of three tenths of the
    prompts, by a fixed hash.
    """
    if plots is not None:
        import rest_store.bench.charts  # noqa: F401  a missing package is reported before anything is measured
    if through_service:
        require_datastores(datastores)
    stores = open_datastores(datastores)
    require_sources("--datastore", list(stores.values()))
    for name, store in stores.items() if curves else ():
        if store.is_live:  # before anything is measured
            expected = "a frozen one, as `rest-store live export` writes it"
            raise RecordingError(describe("--curves", f"datastore {name}", "live", expected))
    start = Calibration.default() if calibration in ("fit", "default") else Calibration.load(calibration)
    chosen = read_all(recordings, stores, tokenizer)[::every]
    if calibration == "fit":
        fitting, reported = split(chosen, "bench quality --calibration fit", least=LEAST_TO_FIT)
        start = fit_calibration([(fitting, [PromptLookup(), RecycledLogits(), *stores.values()])], start=start)
    else:
        reported = unfitted(chosen, start, "bench quality")

    def show(drafting: str, outcome: Outcome) -> None:
        by_family = "  ".join(
            f"{name} {tokens / steps:.2f}" for name, (tokens, steps) in sorted(outcome.families.items())
        )
        click.echo(f"{drafting:<52}{outcome.mean_accepted:6.3f}   {by_family}")

    click.echo(f"{amount(reported)}{without(chosen, reported)}; M, and by family:")
    with contextlib.ExitStack() as stack:
        through = stack.enter_context(asking(datastores)) if through_service else None
        rows = measure(
            reported, stores, start, budgets=max_nodes, ablations=not no_ablations, through=through, progress=show
        )
    for row in rows:
        if "reliability" in row:
            click.echo(f"calibration error with {counted(row['nodes'], 'node')}: {row['calibration_error']:.4f}")
    measured: dict[str, list[tuple[float, float]]] = {}
    if curves:
        with tempfile.TemporaryDirectory(prefix="rest-store-") as folder:
            sizes = {1.0: stores}
            for share in _SHARES:
                parts = [thinned(path, Path(folder, f"{n}-{share}"), share) for n, path in enumerate(datastores)]
                sizes[share] = open_datastores(parts)
            measured = measure_series(reported, sizes, start)
    arguments = {"recordings": recordings, "datastore": datastores, "calibration": calibration, "plots": plots}
    tokens = {name: store.info().token_count for name, store in stores.items()}
    results = {"datastores": tokens, "reported": len(reported), "rows": rows, "curves": measured}
    write_result(out, "quality", arguments, ("numpy", "rest-store"), results)


def measure(
    recordings: Sequence[Recording],
    stores: Mapping[str, Store],
    calibration: Calibration,
    *,
    budgets: Sequence[int] = (16, 64),
    ablations: bool = True,
    through: object = None,
    progress: Callable[[str, Outcome], None] | None = None,
) -> list[dict[str, Any]]:
    """Replay recordings with the session, its parts and the rules that it is compared with.

    Args:
        recordings: to report on; `calibration` must not have been fitted to them.
        stores: datastores by name.
        calibration: of the session; not changed.
        budgets: nodes of a step.
        ablations: whether to replay also with each source alone and with each left out.
        through: a service of `stores` as a source, for rows with it in their place.
        progress: called after each row with its name and outcome.

    Returns:
        One row for each rule and budget: "drafting", "nodes" and the figures of `Outcome.as_json`, and for the whole
        session "reliability": nodes, promised and accepted in 20 bins of the score.
    """
    rows: list[dict[str, Any]] = []

    def add(drafting: str, nodes: int, outcome: Outcome, *, whole: bool = False) -> None:
        rows.append({"drafting": drafting, "nodes": nodes, **outcome.as_json()})
        if whole:
            rows[-1]["reliability"] = outcome.reliability.tolist()
        if progress is not None:
            progress(f"{drafting}, {counted(nodes, 'node')}", outcome)

    for name, store in stores.items():
        add(f"REST's rule, {name}", 24, walk(recordings, rest_rule([store])))
    if len(stores) > 1:
        add("REST's rule, longest match of all", 24, walk(recordings, rest_rule(list(stores.values()))))
    add("prompt lookup, 3-gram, 10 tokens", 10, walk(recordings, prompt_lookup_rule()))
    sources: dict[str, object] = {"prompt lookup": PromptLookup(), "recycled logits": RecycledLogits(), **stores}
    if not any(recording.top_k.size for recording in recordings):
        del sources["recycled logits"]
    for nodes in budgets:
        add("session", nodes, replay(recordings, list(sources.values()), calibration, max_nodes=nodes), whole=True)
        if through is not None:
            local = [source for name, source in sources.items() if name not in stores]
            add("session through a service", nodes, replay(recordings, [*local, through], calibration, max_nodes=nodes))
        for name in sources if ablations and len(sources) > 1 else ():
            add(f"session, {name} alone", nodes, replay(recordings, [sources[name]], calibration, max_nodes=nodes))
            others = [source for other, source in sources.items() if other != name]
            add(f"session without {name}", nodes, replay(recordings, others, calibration, max_nodes=nodes))
    return rows


def measure_series(
    recordings: Sequence[Recording],
    series: Mapping[float, Mapping[str, Store]],
    calibration: Calibration,
    *,
    suffixes: Sequence[int] = (1, 2, 4, 8, 16, 32),
    budgets: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128),
) -> dict[str, list[tuple[float, float]]]:
    """Return M against nodes, against the size of the datastores and against the longest suffix, as pairs.

    Args:
        recordings: as `measure`.
        series: datastores by their relative size; the largest serves the other two curves.
        calibration: as `measure`.
        suffixes: longest suffixes, in tokens.
        budgets: nodes of a step; the other two curves are of `_NODES`.
    """

    def score(stores: Mapping[str, Store], budget: int = _NODES, longest: int = 16) -> float:
        sources = [PromptLookup(), RecycledLogits(), *stores.values()]
        return round(replay(recordings, sources, calibration, max_nodes=budget, max_suffix=longest).mean_accepted, 4)

    whole = series[max(series)]
    return {
        "nodes": [(budget, score(whole, budget)) for budget in budgets],
        "size": [(size, score(stores)) for size, stores in sorted(series.items())],
        "suffix": [(length, score(whole, longest=length)) for length in suffixes],
    }


def rest_rule(stores: Sequence[Store], *, max_nodes: int = 24) -> Draft:
    """Return REST's rule (arXiv 2311.08252, section 3.2): the most frequent continuations of the one longest match.

    Of several datastores the one with the longest match drafts. The context begins after its last token outside the
    vocabulary.
    """
    longest = LongestMatch(stores)

    def draft(context: npt.NDArray[np.int32]) -> TokenTree:
        return longest.draft(context, max_nodes=max_nodes, max_suffix=16, max_depth=10)

    return draft


def prompt_lookup_rule() -> Draft:
    """Return common prompt lookup: a chain of what followed the first earlier occurrence of the last three tokens.

    Without such an occurrence, shorter suffixes are looked up.
    """

    def draft(context: npt.NDArray[np.int32]) -> TokenTree:
        text = np.ascontiguousarray(context, np.int32).tobytes()
        for size in range(min(_NGRAM, context.size - 1), 0, -1):
            place = text.find(text[-4 * size :])
            while place % 4:
                place = text.find(text[-4 * size :], place + 1)
            if place + 4 * size < len(text):
                chain = np.frombuffer(text[place + 4 * size : place + 4 * (size + _CHAIN)], np.int32)
                return TokenTree(chain, np.arange(chain.size) - 1, np.ones(chain.size, np.int64))
        return TokenTree([], [], [])

    return draft
