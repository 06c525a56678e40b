"""How good drafts are: M of the session, of its parts and of the rules it is compared with, on recordings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rest_store.bench.baselines import LongestMatch
from rest_store.bench.replay import Draft, Outcome, Recording, replay, walk
from rest_store.datastore.datastore import Datastore
from rest_store.datastore.tree import TokenTree
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.sources import PromptLookup, RecycledLogits

Progress = Callable[[str, Outcome], None]


def rest_rule(stores: Sequence[Datastore], *, max_nodes: int = 24) -> Draft:
    """Return REST's rule (arXiv 2311.08252, section 3.2): the most frequent continuations of the one longest match.

    Of several datastores the one with the longest match is asked; about what follows the last token of the context that
    is none of theirs.
    """
    longest = LongestMatch(stores)

    def draft(context: npt.NDArray[np.int32]) -> TokenTree:
        return longest.draft(context, max_nodes=max_nodes, max_suffix=16, max_depth=10)

    return draft


def prompt_lookup_rule(*, longest: int = 3, tokens: int = 10) -> Draft:
    """Return prompt lookup as it is commonly done: what followed the first earlier occurrence of the last three tokens.

    Without one, of the last two, of the last one; a chain of ten tokens.
    """

    def draft(context: npt.NDArray[np.int32]) -> TokenTree:
        text = np.ascontiguousarray(context, np.int32).tobytes()
        for size in range(min(longest, context.size - 1), 0, -1):
            place = text.find(text[-4 * size :])
            while place % 4:
                place = text.find(text[-4 * size :], place + 1)
            if place + 4 * size < len(text):
                chain = np.frombuffer(text[place + 4 * size : place + 4 * (size + tokens)], np.int32)
                return TokenTree(chain, np.arange(chain.size) - 1, np.ones(chain.size, np.int64))
        return TokenTree([], [], [])

    return draft


def measure(
    recordings: Sequence[Recording],
    stores: Mapping[str, Datastore],
    calibration: Calibration,
    *,
    budgets: Sequence[int] = (16, 64),
    ablations: bool = True,
    through: object = None,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """Replay recordings with the session and with what it is compared with.

    Args:
        recordings: to report on; nothing of them may have gone into `calibration`.
        stores: datastores by name.
        calibration: of the session; not changed.
        budgets: nodes of a step.
        ablations: whether to replay with each source alone and with each left out, too.
        through: a service of `stores` as a source, to replay with it in their place, too.
        progress: called after each row with what was measured and its outcome.

    Returns:
        One row for each way of drafting and budget: "drafting", "nodes" and the figures of `Outcome.as_json`; with
        "reliability" (nodes, promised, accepted of 20 bins of the score) for the whole session.
    """
    rows: list[dict[str, Any]] = []

    def add(drafting: str, nodes: int, outcome: Outcome, *, whole: bool = False) -> None:
        rows.append({"drafting": drafting, "nodes": nodes, **outcome.as_json()})
        if whole:
            rows[-1]["reliability"] = outcome.reliability.tolist()
        if progress is not None:
            progress(f"{drafting}, {nodes} nodes", outcome)

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
    series: Mapping[float, Mapping[str, Datastore]],
    calibration: Calibration,
    *,
    suffixes: Sequence[int] = (1, 2, 4, 8, 16, 32),
    budgets: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128),
    nodes: int = 16,
) -> dict[str, list[tuple[float, float]]]:
    """Return M against nodes, against the size of the datastores and against the longest suffix, as pairs to plot.

    Args:
        recordings: as `measure`.
        series: datastores by their relative size; the largest serves the other two curves.
        calibration: as `measure`.
        suffixes: longest suffixes, in tokens.
        budgets: nodes of a step.
        nodes: budget where it is not what varies.
    """

    def score(stores: Mapping[str, Datastore], budget: int = nodes, longest: int = 16) -> float:
        sources = [PromptLookup(), RecycledLogits(), *stores.values()]
        return round(replay(recordings, sources, calibration, max_nodes=budget, max_suffix=longest).mean_accepted, 4)

    whole = series[max(series)]
    return {
        "nodes": [(budget, score(whole, budget)) for budget in budgets],
        "size": [(size, score(stores)) for size, stores in sorted(series.items())],
        "suffix": [(length, score(whole, nodes, length)) for length in suffixes],
    }


def plot(rows: Sequence[Mapping[str, Any]], curves: Mapping[str, Sequence[tuple[float, float]]], folder: Path) -> None:
    """Write reliability and one plot for each curve into `folder`, as PNG and SVG; takes matplotlib (extra `plots`)."""
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    labels = {"nodes": "nodes of a step", "size": "size of the datastores", "suffix": "longest suffix, tokens"}
    for name, points in curves.items():
        figure = Figure(figsize=(5, 3.5), layout="constrained")
        axes = figure.add_subplot()
        axes.plot([x for x, _ in points], [y for _, y in points], marker="o")
        axes.set(xscale="log", xlabel=labels[name], ylabel="M, tokens per forward pass")
        for ending in ("png", "svg"):
            figure.savefig(folder / f"{name}.{ending}", dpi=120)
    figure = Figure(figsize=(4, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.plot([0, 1], [0, 1], color="grey", linewidth=0.7)
    for row in rows:
        if "reliability" in row:
            nodes, promised, accepted = np.array(row["reliability"])
            there = nodes > 0
            axes.plot(
                promised[there] / nodes[there],
                accepted[there] / nodes[there],
                marker="o",
                label=f"{row['nodes']} nodes",
            )
    axes.set(xlabel="score of a draft token", ylabel="accepted")
    axes.legend()
    for ending in ("png", "svg"):
        figure.savefig(folder / f"reliability.{ending}", dpi=120)
