"""Drafters for generations: good ones, and ones that fail in every way we know."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import rest_store
from rest_store.bench.baselines import tree_of
from rest_store.datastore.tree import SuffixMatch, TokenTree
from rest_store.errors import DeadlineError
from tests.shared.services import PATIENCE, Service, running
from tests.shared.strategies import Corpus, identity, write_datastore
from tests.shared.tiny import VOCABULARY

Texts = list[list[int]]


@dataclass(frozen=True)
class Drafter:
    """What goes into `drafter`.

    Attributes:
        name: in words.
        make: returns it, new for each generation.
    """

    name: str
    make: Callable[[], Any]


class UnspeakableError(Exception):
    """An error that cannot even be described."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def fault(chance: random.Random) -> BaseException:
    """An error such as the code of others raises."""
    return chance.choice([ValueError("no"), UnspeakableError(), StopIteration(), MemoryError()])


def nonsense(chance: random.Random) -> Any:
    """Something that is no tree to verify."""
    size = chance.choice([1, 3, 70, 2000])
    tokens = [chance.choice([0, 5, VOCABULARY - 1, VOCABULARY, 10**6, 2**31 - 1]) for _ in range(size)]
    match = SuffixMatch(chance.choice([0, 1, 2, 64]), chance.choice([1, 5]))
    wrong = [None, 3, "tree", [], [[]], object(), {"tokens": [1]}, (1, 2), np.zeros(4)]
    return chance.choice([*wrong, *[TokenTree(tokens, [-1] * size, [1] * size, match=match)] * 3])


class Faulty:
    """Drafts how known texts go on, in right trees and in wrong ones, and fails at times in the ways of `faults`."""

    def __init__(self, texts: Texts, chance: random.Random, faults: frozenset[str]) -> None:
        self.texts, self.chance, self.faults = texts, chance, faults
        self.context: list[int] = []
        self.max_nodes = 0

    def fails(self, name: str) -> bool:
        return name in self.faults and self.chance.random() < 0.2

    def raise_at_times(self) -> None:
        if self.fails("raises"):
            raise fault(self.chance)

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
                    future = text[place + len(end) : place + len(end) + self.chance.choice([1, 4, 9])]
                    return self._around([token for token in future if token >= 0], max_nodes)
        return self._around([], max_nodes)

    def _around(self, future: list[int], max_nodes: int) -> TokenTree:
        paths = [future] if future else []
        for _ in range(self.chance.randrange(4)):
            cut = self.chance.randrange(len(future) + 1)
            paths.append(future[:cut] + [self.chance.randrange(VOCABULARY) for _ in range(self.chance.randrange(1, 4))])
        self.chance.shuffle(paths)
        while paths:
            tree = tree_of(paths)
            if len(tree) <= max_nodes:
                return tree
            paths.pop()
        return TokenTree([], [], [])


class Session(Faulty):
    """A draft session of one row."""

    def draft(self, *, max_nodes: int, costs: Any) -> Any:
        if self.fails("slow"):
            time.sleep(0.01)
        self.raise_at_times()
        tree = nonsense(self.chance) if self.fails("nonsense") else self.tree(max_nodes)
        self.mutate_at_times(costs)
        return tree

    def accept(self, tokens: list[int], top_k: Any = None, node_top_k: Any = None) -> None:
        self.context += tokens
        self.mutate_at_times(top_k, node_top_k)
        if self.fails("mutates"):
            tokens[:] = [7] * self.chance.randrange(9)
        self.raise_at_times()

    def close(self) -> None:
        self.raise_at_times()


class Source(Faulty):
    """A source that is its own member."""

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
        scores, origins = 0.9**tree.depths, [self.chance.randrange(8)] * len(tree)
        return TokenTree(tree.tokens, tree.parents, tree.counts, scores=scores, origins=origins)

    def accept(self, tokens: Any, top_k: Any, node_top_k: Any) -> None:
        self.context += tokens.tolist()
        self.mutate_at_times(tokens, top_k, node_top_k)

    def close(self) -> None:
        self.raise_at_times()


def some_faults(chance: random.Random) -> frozenset[str]:
    return frozenset(name for name in ("raises", "nonsense", "mutates", "slow") if chance.random() < 0.4)


def some_datastore(chance: random.Random, texts: Texts, directory: Path) -> rest_store.Datastore:
    """A datastore of pieces of the texts and of noise."""
    documents = []
    for text in texts:
        start = chance.randrange(len(text) + 1)
        documents += [text[start:], text[: chance.randrange(len(text) + 1)]]
    documents += [some_noise(chance) for _ in range(chance.randrange(6))]
    documents = [piece for piece in ([token for token in part if token >= 0] for part in documents) if piece]
    cut = chance.randrange(len(documents) + 1)
    shards = [shard for shard in (documents[:cut], documents[cut:]) if shard] or [[[1]]]
    place = directory / f"datastore-{len(list(directory.iterdir()))}"
    place.mkdir()
    return rest_store.Datastore.open(write_datastore(place, Corpus(VOCABULARY, shards)))


def some_noise(chance: random.Random) -> list[int]:
    return [chance.randrange(VOCABULARY) for _ in range(chance.randrange(1, 40))]


class Services:
    """One service for all cases.

    Args:
        directory: of its datastore.
        stack: ends it.
    """

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._place, self._stack = directory / "served", stack
        self._service: Service | None = None

    def target(self, documents: list[list[int]]) -> str:
        """Return its address; the first case says which documents it has."""
        if self._service is None:
            self._place.mkdir()
            write_datastore(self._place, Corpus(VOCABULARY, [documents]))
            self._service = self._stack.enter_context(running(self._place))
        return self._service.target


def some_client(chance: random.Random, texts: Texts, services: Services) -> tuple[str, Callable[[], Any]]:
    """A client of a service."""
    target = services.target([[token for token in text if 0 <= token < VOCABULARY] or [1] for text in texts])
    options = {
        "send_text": chance.random() < 0.7,
        "timeout": chance.choice([0.005, PATIENCE]),
        "tokenizer": chance.choice([None, identity(VOCABULARY), identity(VOCABULARY), identity(12)]),
    }
    return f"service{options}", lambda: rest_store.DatastoreClient(target, **options)


def some_sources(chance: random.Random, texts: Texts, directory: Path, services: Services) -> Drafter:
    makers: list[Callable[[], Any]] = []
    names: list[str] = []
    kinds = ["datastore", "lookup", "recycled", "own", "service"]
    alone = ["service", *chance.sample(["lookup", "recycled"], chance.randrange(3))]  # its tree is the session's
    for kind in alone if chance.random() < 0.3 else chance.choices(kinds, k=chance.randrange(6)):
        if kind in ("lookup", "recycled") and kind in names:
            continue
        names.append(kind)
        if kind == "datastore":
            store = some_datastore(chance, texts, directory)
            makers.append(lambda store=store: store)
        elif kind == "lookup":
            makers.append(rest_store.PromptLookup)
        elif kind == "recycled":
            makers.append(rest_store.RecycledLogits)
        elif kind == "service":
            names[-1], make = some_client(chance, texts, services)
            makers.append(make)
        else:
            faults, seed = some_faults(chance), chance.randrange(2**32)
            names[-1] += str(sorted(faults))
            makers.append(lambda f=faults, s=seed: Source(texts, random.Random(s), f))
    return Drafter(f"{names}", lambda: [make() for make in makers])


def some_sessions(chance: random.Random, texts: Texts) -> Drafter:
    faults, seed = some_faults(chance), chance.randrange(2**32)

    def make() -> Callable[[list[int]], Any]:
        own = random.Random(seed)

        def session(prompt: list[int]) -> Any:
            if "raises" in faults and own.random() < 0.1:
                raise fault(own)
            made = Session(texts, own, faults)
            made.context += prompt
            if "mutates" in faults:
                prompt[:] = [7]
            return made

        return session

    return Drafter(f"sessions{sorted(faults)}", make)


def some_drafter(chance: random.Random, texts: Texts, directory: Path, services: Services) -> Drafter:
    if chance.random() < 0.5:
        return some_sessions(chance, texts)
    return some_sources(chance, texts, directory, services)
