"""Drafters for generations: good ones, and ones that fail in every way we know."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import rest_store
from rest_store.bench.baselines import merge_paths
from rest_store.datastore.tree import SuffixMatch, TokenTree
from rest_store.errors import DeadlineError
from tests.shared.services import PATIENCE
from tests.shared.strategies import Corpus, identity, write_datastore
from tests.shared.tiny import VOCABULARY


def nonsense(chance: random.Random) -> Any:
    """Something that is no tree to verify."""
    size = chance.choice([1, 3, 70, 2000])
    tokens = [
        chance.choice([0, 5, VOCABULARY - 1, VOCABULARY, 10**6, 2**31 - 1]) for _ in range(size)
    ]
    match = SuffixMatch(chance.choice([0, 1, 2, 64]), chance.choice([1, 5]))
    wrong = [None, 3, "tree", [], [[]], object(), {"tokens": [1]}, (1, 2), np.zeros(4)]
    return chance.choice([*wrong, *[TokenTree(tokens, [-1] * size, [1] * size, match=match)] * 3])


class Source:
    """A source that is its own member.

    It drafts how known texts go on, in right trees and in wrong ones, and fails at times in the
    ways of `faults`.
    """

    has_references = False

    def __init__(
        self, texts: list[list[int]], chance: random.Random, faults: frozenset[str]
    ) -> None:
        self.texts = texts
        self.chance = chance
        self.faults = faults
        self.context: list[int] = []
        self.max_nodes = 0

    def fails(self, name: str) -> bool:
        return name in self.faults and self.chance.random() < 0.2

    def raise_at_times(self) -> None:
        if self.fails("raises"):
            raise self.chance.choice([ValueError("no"), StopIteration(), MemoryError()])

    def mutate_at_times(self, *arrays: Any) -> None:
        if self.fails("mutates"):
            for array in arrays:
                if array is not None and array.flags.writeable:
                    array[...] = 7

    def tree(self, max_nodes: int) -> TokenTree:
        end = self.context[-self.chance.choice([1, 2, 3]) :]
        for text in self.texts:
            for place in range(len(text) - len(end), -1, -1):
                if end and text[place : place + len(end)] == end:
                    future = text[
                        place + len(end) : place + len(end) + self.chance.choice([1, 4, 9])
                    ]
                    return self._around([token for token in future if token >= 0], max_nodes)
        return self._around([], max_nodes)

    def _around(self, future: list[int], max_nodes: int) -> TokenTree:
        paths = [future] if future else []
        for _ in range(self.chance.randrange(4)):
            cut = self.chance.randrange(len(future) + 1)
            paths.append(
                future[:cut]
                + [self.chance.randrange(VOCABULARY) for _ in range(self.chance.randrange(1, 4))]
            )
        self.chance.shuffle(paths)
        while paths:
            tree = merge_paths(paths)
            if len(tree) <= max_nodes:
                return tree
            paths.pop()
        return TokenTree([], [], [])

    def members(self, settings: Any, text: Callable[[], Any]) -> list[Any]:
        self.raise_at_times()
        self.context = text().tolist()
        return [self]

    def send(self, limits: Any) -> None:
        self.raise_at_times()
        self.max_nodes = limits.max_nodes

    def receive(self, timeout: float | None) -> Any:
        if self.fails("slow"):
            time.sleep(self.chance.choice([0.001, 0.02]))
            raise DeadlineError("late")
        self.raise_at_times()
        if self.fails("nonsense"):
            return nonsense(self.chance)
        tree = self.tree(self.max_nodes)
        scores = 0.9**tree.depths
        origins = [self.chance.randrange(8)] * len(tree)
        return TokenTree(tree.tokens, tree.parents, tree.counts, scores=scores, origins=origins)

    def accept(self, tokens: Any, top_k: Any, node_top_k: Any) -> None:
        self.context += tokens.tolist()
        self.mutate_at_times(tokens, top_k, node_top_k)

    def close(self) -> None:
        self.raise_at_times()


def some_datastore(
    chance: random.Random, texts: list[list[int]], directory: Path
) -> rest_store.Datastore:
    """A datastore of pieces of the texts and of noise."""
    documents = []
    for text in texts:
        start = chance.randrange(len(text) + 1)
        documents += [text[start:], text[: chance.randrange(len(text) + 1)]]
    noise = [
        [chance.randrange(VOCABULARY) for _ in range(chance.randrange(1, 40))]
        for _ in range(chance.randrange(6))
    ]
    documents = [
        piece
        for piece in ([token for token in part if token >= 0] for part in documents + noise)
        if piece
    ]
    cut = chance.randrange(len(documents) + 1)
    shards = [shard for shard in (documents[:cut], documents[cut:]) if shard] or [[[1]]]
    place = directory / f"datastore-{len(list(directory.iterdir()))}"
    return rest_store.Datastore.open(write_datastore(place, Corpus(VOCABULARY, shards)))


def some_drafter(
    chance: random.Random, texts: list[list[int]], directory: Path, target: str
) -> tuple[str, list[Any]]:
    """Return what goes into `sources`, in words and as it is.

    Args:
        chance: decides.
        texts: that are written.
        directory: for datastores.
        target: address of a service.
    """
    sources: list[Any] = []
    names: list[str] = []
    kinds = ["datastore", "lookup", "recycled", "own", "service"]
    only = chance.choice(["service", "own", "own"])  # its tree is the session's
    alone = [only, *chance.sample(["lookup", "recycled"], chance.randrange(3))]
    for kind in alone if chance.random() < 0.5 else chance.choices(kinds, k=chance.randrange(6)):
        if kind in ("lookup", "recycled") and kind in names:
            continue
        names.append(kind)
        if kind == "datastore":
            sources.append(some_datastore(chance, texts, directory))
        elif kind == "lookup":
            sources.append(rest_store.PromptLookup())
        elif kind == "recycled":
            sources.append(rest_store.RecycledLogits())
        elif kind == "service":
            options = {
                "send_text": chance.random() < 0.7,
                "timeout": chance.choice([0.005, PATIENCE]),
                "tokenizer": chance.choice(
                    [None, identity(VOCABULARY), identity(VOCABULARY), identity(12)]
                ),
            }
            names[-1] += str(options)
            sources.append(rest_store.DatastoreClient(target, **options))
        else:
            faults = frozenset(
                name for name in ("raises", "nonsense", "mutates", "slow") if chance.random() < 0.4
            )
            names[-1] += str(sorted(faults))
            sources.append(Source(texts, random.Random(chance.randrange(2**32)), faults))
    return str(names), sources
