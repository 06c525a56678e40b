"""Repeat the experiments of REST's paper (arXiv 2311.08252) with its own rule, by replay of recordings.

M and the time of retrieval by size of the datastore (Table 2, Figure 2; give several), the most frequent continuations
against random ones (Table 3), and M by longest suffix (Figure 3).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
from timing import percentiles

from rest_store.bench.datastores import open_datastores
from rest_store.bench.environment import write_result
from rest_store.bench.exhibits import shown
from rest_store.bench.options import (
    Destination,
    datastores_option,
    every_option,
    plots_option,
    recordings_option,
    result_options,
    seed_option,
)
from rest_store.bench.recordings import Recording, read_recordings
from rest_store.bench.replay import Draft, walk
from rest_store.bench.tables import paper_tables
from rest_store.datastore.datastore import Datastore
from rest_store.datastore.tree import TokenTree
from rest_store.errors import RecordingError, describe
from rest_store.options import SETTINGS

NODES = 64  # of a draft, as in the paper
DEPTH = 10  # tokens of a continuation
SUFFIX = 16  # longest suffix


@click.command(
    help=__doc__,
    context_settings=SETTINGS,
    epilog="Example: python benchmarks/bench_paper.py --recordings traces.jsonl.gz --datastore a.ds --datastore b.ds",
)
@recordings_option()
@datastores_option
@every_option
@seed_option
@result_options
@plots_option
def main(
    recordings: tuple[Path, ...],
    datastores: tuple[Path, ...],
    every: int,
    seed: int,
    out: Destination,
    plots: Path | None,
) -> None:
    if not datastores:
        raise click.UsageError("at least one --datastore is needed")
    chosen = [recording for path in recordings for recording in read_recordings(path)][::every]
    if not chosen:
        raise RecordingError(describe("bench_paper.py", "number of recordings", 0, "at least one"))
    figures = {"recordings": len(chosen), "rows": experiments(chosen, open_datastores(datastores), seed=seed)}
    for table in paper_tables(figures):
        click.echo(table.title)
        texts = [list(table.header), *([shown(cell) for cell in row] for row in table.rows)]
        widths = [max(len(row[column]) for row in texts) for column in range(len(table.header))]
        for row in texts:
            cells = [f"{text:>{width}}" for text, width in zip(row[1:], widths[1:], strict=True)]
            click.echo(f"  {row[0]:<{widths[0]}}  {'  '.join(cells)}")
    write_result(out, "paper", click.get_current_context().params, ("numpy", "rest-store"), figures)


def trie_rule(store: Datastore, *, max_nodes: int = NODES, max_suffix: int = SUFFIX) -> Draft:
    """Return REST's rule: the most frequent prefixes of what follows the longest match (section 3.2)."""

    def draft(context: npt.NDArray[np.int32]) -> TokenTree:
        return store.draft(context, max_nodes=max_nodes, max_suffix=max_suffix, max_depth=DEPTH)

    return draft


def random_rule(store: Datastore, *, max_nodes: int = NODES, max_suffix: int = SUFFIX, seed: int = 0) -> Draft:
    """Return the rule that Table 3 compares with: random continuations of the longest match, merged into one tree.

    Args:
        store: the datastore.
        max_nodes: of the tree; the last continuation may be cut.
        max_suffix: longest suffix tried.
        seed: the choice depends on it and on the context alone.
    """
    shards = [shard.view for shard in store.shards]

    def draft(context: npt.NDArray[np.int32]) -> TokenTree:
        match = store.longest_suffix_match(context, max_suffix=max_suffix)
        if not match.length:
            return TokenTree([], [], [])
        suffix = context[context.size - match.length :].astype(np.int64)
        chance = np.random.default_rng([seed, *suffix.tolist()])
        begins = [shard.first_rank(suffix, after=False) for shard in shards]
        counts = [shard.first_rank(suffix, after=True) - begin for shard, begin in zip(shards, begins, strict=True)]
        ends = np.cumsum(counts)
        chosen = chance.choice(match.count, min(match.count, max_nodes), replace=False)
        tokens: list[int] = []
        parents: list[int] = []
        nodes: dict[tuple[int, int], int] = {}  # by parent and token
        for number in chosen.tolist():
            place = int(np.searchsorted(ends, number, side="right"))
            rank = begins[place] + number - int(ends[place] - counts[place])
            position = shards[place].positions(rank, rank + 1)
            following = shards[place].symbols_at(position + match.length + np.arange(DEPTH))
            stop = np.flatnonzero(following >= store.vocabulary_size)
            node = -1
            for token in following[: stop[0] if stop.size else DEPTH].tolist():
                if (node, token) not in nodes:
                    if len(tokens) == max_nodes:
                        return TokenTree(tokens, parents, [1] * len(tokens))
                    nodes[node, token] = len(tokens)
                    tokens.append(token)
                    parents.append(node)
                node = nodes[node, token]
        return TokenTree(tokens, parents, [1] * len(tokens))

    return draft


def timed_walk(recordings: Sequence[Recording], draft: Draft) -> dict[str, Any]:
    """Replay with a rule; return the figures of its outcome and the time of retrieval.

    Returns:
        "M", "tokens", "steps" and "families" as `Outcome.as_json`; "microseconds a token": all drafts over all tokens,
        as the paper counts; "microseconds a step": percentiles of a draft.
    """
    times: list[float] = []

    def timed(context: npt.NDArray[np.int32]) -> TokenTree:
        start = time.perf_counter()
        tree = draft(context)
        times.append((time.perf_counter() - start) * 1e6)
        return tree

    outcome = walk(recordings, timed)
    figures = outcome.as_json()
    del figures["promised"], figures["calibration_error"]
    figures["microseconds a token"] = round(sum(times) / max(1, outcome.tokens), 2)
    figures["microseconds a step"] = percentiles(times)
    return figures


def experiments(
    recordings: Sequence[Recording],
    stores: Mapping[str, Datastore],
    *,
    suffixes: Sequence[int] = (1, 2, 3, 4, 6, 8, 12, 16),
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Run all experiments.

    Args:
        recordings: to replay.
        stores: datastores by name: each is a row of the table by size; the largest serves the other tables.
        suffixes: longest suffixes, in tokens.
        seed: of the random continuations.

    Returns:
        Rows: "experiment" ("size", "selection", "suffix"), "datastore", "tokens in it", what varies ("continuations"
        and "nodes", "longest suffix") and the figures of `timed_walk`, without times for random continuations, which
        numpy chooses. Rules are timed with pages in memory and an empty tree cache.
    """
    rows: list[dict[str, Any]] = []

    def add(experiment: str, name: str, rule: Callable[[Datastore], Draft], **what: Any) -> None:
        store = stores[name]
        walk(recordings, rule(store))  # brings pages into memory
        figures = timed_walk(recordings, rule(Datastore.open(store.path)))  # opened anew: without cached trees
        rows.append(
            {"experiment": experiment, "datastore": name, "tokens in it": store.manifest.token_count, **what, **figures}
        )

    by_size = sorted(stores, key=lambda name: stores[name].manifest.token_count)
    largest = by_size[-1]
    for name in by_size:
        add("size", name, trie_rule)
    for nodes in (24, NODES):
        add("selection", largest, partial(trie_rule, max_nodes=nodes), continuations="most frequent", nodes=nodes)
        chosen = walk(recordings, random_rule(stores[largest], max_nodes=nodes, seed=seed)).as_json()
        figures = {key: chosen[key] for key in ("M", "tokens", "steps", "families")}
        what = {"experiment": "selection", "datastore": largest, "continuations": "random", "nodes": nodes}
        rows.append({**what, "tokens in it": stores[largest].manifest.token_count, **figures})
    for length in suffixes:
        add("suffix", largest, partial(trie_rule, max_suffix=length), **{"longest suffix": length})
    return rows


if __name__ == "__main__":
    main()
