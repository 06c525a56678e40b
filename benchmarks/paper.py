"""The experiments of REST's paper (arXiv 2311.08252) with its own rule, by replay of recordings.

Table 2 and Figure 2, size of the datastore; Figure 3, longest suffix; Table 3, the most frequent continuations against
random ones; and the time of retrieval for each token. What a draft session makes of the same is `quality`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from rest_store.bench.recordings import Recording
from rest_store.bench.replay import Draft, Outcome, walk
from rest_store.datastore.datastore import Datastore
from rest_store.datastore.kernel import shard_view
from rest_store.datastore.tree import TokenTree

NODES = 64  # of a draft, as in the paper
DEPTH = 10  # tokens of a continuation
SUFFIX = 16  # longest suffix


def trie_rule(store: Datastore, *, max_nodes: int = NODES, max_suffix: int = SUFFIX) -> Draft:
    """Return REST's rule: the most frequent prefixes of what follows the longest match (section 3.2)."""

    def draft(context: npt.NDArray[np.int32]) -> TokenTree:
        return store.draft(context, max_nodes=max_nodes, max_suffix=max_suffix, max_depth=DEPTH)

    return draft


def random_rule(store: Datastore, *, max_nodes: int = NODES, max_suffix: int = SUFFIX, seed: int = 0) -> Draft:
    """Return what Table 3 compares with: continuations of the longest match chosen at random, merged into one tree.

    Args:
        store: the datastore.
        max_nodes: of the tree; the last continuation is cut where they end.
        max_suffix: longest suffix tried.
        seed: of the choice, which depends on it and on the context alone.
    """
    shards = [shard_view(shard) for shard in store.shards]

    def draft(context: npt.NDArray[np.int32]) -> TokenTree:
        match = store.longest_suffix_match(context, max_suffix=max_suffix)
        if not match.length:
            return TokenTree([], [], [])
        suffix = context[context.size - match.length :].astype(np.int64)
        chance = np.random.default_rng([seed, *suffix.tolist()])
        begins = [shard.first_rank(suffix, after=False) for shard in shards]
        counts = [shard.first_rank(suffix, after=True) - begin for shard, begin in zip(shards, begins, strict=True)]
        ends = np.cumsum(counts)
        taken = chance.choice(match.count, min(match.count, max_nodes), replace=False)
        tree = _Merged()
        for number in taken.tolist():
            place = int(np.searchsorted(ends, number, side="right"))
            rank = begins[place] + number - int(ends[place] - counts[place])
            position = shards[place].positions(rank, rank + 1)
            following = shards[place].symbols_at(position + match.length + np.arange(DEPTH))
            stop = np.flatnonzero(following >= store.vocabulary_size)
            tree.add(following[: stop[0] if stop.size else DEPTH].tolist(), max_nodes)
            if len(tree.tokens) == max_nodes:
                break
        return TokenTree(tree.tokens, tree.parents, [1] * len(tree.tokens))

    return draft


class _Merged:
    """Continuations merged at what they have in common, parents before children."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self._places: dict[tuple[int, int], int] = {}

    def add(self, continuation: Sequence[int], max_nodes: int) -> None:
        node = -1
        for token in continuation:
            if (node, token) not in self._places:
                if len(self.tokens) == max_nodes:
                    return
                self._places[node, token] = len(self.tokens)
                self.tokens.append(token)
                self.parents.append(node)
            node = self._places[node, token]


def timed_walk(recordings: Sequence[Recording], draft: Draft) -> dict[str, Any]:
    """Replay with a rule; return the figures of its outcome and the time of retrieval.

    Returns:
        "M", "tokens", "steps" and "families" as `Outcome.as_json`; "microseconds a token": all drafts over all tokens,
        as the paper counts; "microseconds a step": median, mean and 99th percentile of a draft.
    """
    times: list[float] = []

    def timed(context: npt.NDArray[np.int32]) -> TokenTree:
        began = time.perf_counter()
        tree = draft(context)
        times.append((time.perf_counter() - began) * 1e6)
        return tree

    outcome: Outcome = walk(recordings, timed)
    figures = outcome.as_json()
    del figures["promised"], figures["calibration_error"]
    median, high = (round(float(value), 2) for value in np.percentile(times, [50, 99]))
    figures["microseconds a token"] = round(sum(times) / max(1, outcome.tokens), 2)
    figures["microseconds a step"] = {"median": median, "mean": round(float(np.mean(times)), 2), "p99": high}
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
        recordings: what is replayed.
        stores: datastores by name: each is a row of the table by size, the largest serves the others.
        suffixes: longest suffixes, in tokens.
        seed: of the random continuations.

    Returns:
        Rows: "experiment" ("size", "selection", "suffix"), "datastore", "tokens in it", what varies ("continuations"
        and "nodes", "longest suffix") and the figures of `timed_walk`; without times for random continuations, which
        numpy chooses. Before a rule is timed, another datastore of the same mappings was asked the same, so that pages
        are in memory and no answer is.
    """
    rows: list[dict[str, Any]] = []

    def add(experiment: str, name: str, rule: Callable[[Datastore], Draft], **what: Any) -> None:
        store = stores[name]
        walk(recordings, rule(store))  # pages
        figures = timed_walk(recordings, rule(Datastore(store.path, store.manifest, store.shards, store.prepared)))
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
