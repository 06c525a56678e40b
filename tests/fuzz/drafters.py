"""Drafters for generations: good ones, ones that fail in every way we know, and ones that must be refused."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
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
        refusals: names of errors that it may be refused with.
        refused: whether it must be.
    """

    name: str
    make: Callable[[], Any]
    refusals: frozenset[str] = frozenset()
    refused: bool = False


class UnspeakableError(Exception):
    """An error that cannot even be described."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def fault(chance: random.Random) -> BaseException:
    """An error such as the code of others raises."""
    return chance.choice([ValueError("no"), SystemExit(3), UnspeakableError(), StopIteration(), MemoryError()])


class Altered(TokenTree):
    """A tree whose columns are not what they were when they were checked."""

    reads = 0

    def _later(self, name: str, wrong: list[int]) -> Any:
        self.reads += 1
        return getattr(super(), name) if self.reads < 5 else np.array(wrong)

    @property
    def tokens(self) -> Any:
        return self._later("tokens", [10**6] * 3)

    @property
    def parents(self) -> Any:
        return self._later("parents", [5] * 3)

    @property
    def depths(self) -> Any:
        return self._later("depths", [9] * 4)


def nonsense(chance: random.Random) -> Any:
    """Something that is no tree to verify."""
    size = chance.choice([1, 3, 70, 2000])
    tokens = [chance.choice([0, 5, VOCABULARY - 1, VOCABULARY, 10**6, 2**31 - 1]) for _ in range(size)]
    match = SuffixMatch(chance.choice([0, 1, 2, 64]), chance.choice([1, 5]))
    wrong = [None, 3, "tree", [], [[]], object(), {"tokens": [1]}, (1, 2), np.zeros(4)]
    trees = [TokenTree(tokens, [-1] * size, [1] * size, match=match), Altered([1, 2, 3], [-1, 0, 1], [1, 1, 1])]
    return chance.choice([*wrong, *trees])


class Reader:
    """Finds how known texts go on, and makes trees of it, right ones and wrong ones."""

    def __init__(self, texts: Texts, chance: random.Random) -> None:
        self.texts, self.chance = texts, chance

    def tree(self, context: Sequence[int], max_nodes: int) -> TokenTree:
        end = list(context[-self.chance.choice([1, 2, 3]) :])
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


class Session(Reader):
    """A draft session of one row which fails at times, in the ways of `faults`."""

    def __init__(self, texts: Texts, chance: random.Random, prompt: list[int], faults: frozenset[str]) -> None:
        super().__init__(texts, chance)
        self.context, self.faults = list(prompt), faults

    def _fails(self, name: str) -> bool:
        return name in self.faults and self.chance.random() < 0.2

    def draft(self, *, max_nodes: int, costs: Any) -> Any:
        if self._fails("slow"):
            time.sleep(0.01)
        if self._fails("raises"):
            raise fault(self.chance)
        if self._fails("nonsense"):
            return nonsense(self.chance)
        tree = self.tree(self.context, max_nodes)
        if self._fails("mutates") and costs is not None and getattr(costs, "flags", None) is not None:
            costs[:] = -1
        return tree

    def accept(self, tokens: list[int], top_k: Any = None, node_top_k: Any = None) -> None:
        self.context += tokens
        if self._fails("mutates"):
            tokens[:] = [7] * self.chance.randrange(9)
            for array in (top_k, node_top_k):
                if array is not None:
                    array[...] = 7
        if self._fails("raises"):
            raise fault(self.chance)

    def close(self) -> None:
        if self._fails("raises"):
            raise fault(self.chance)


class Source(Reader):
    """A source whose member fails at times, in the ways of `faults`."""

    def __init__(self, texts: Texts, chance: random.Random, faults: frozenset[str]) -> None:
        super().__init__(texts, chance)
        self.faults = faults
        self.context: list[int] = []
        self.max_nodes = 0

    def _fails(self, name: str) -> bool:
        return name in self.faults and self.chance.random() < 0.2

    def members(self, settings: Any, text: Callable[[], Any]) -> list[Any]:
        if self._fails("raises"):
            raise fault(self.chance)
        self.context = text().tolist()
        return [self]

    def send(self, limits: Any) -> None:
        if self._fails("raises"):
            raise fault(self.chance)
        self.max_nodes = limits.max_nodes

    def receive(self, timeout: float | None) -> Any:
        if self._fails("slow"):
            time.sleep(self.chance.choice([0.001, 0.02]))
            raise DeadlineError("late")
        if self._fails("raises"):
            raise fault(self.chance)
        if self._fails("nonsense"):
            return nonsense(self.chance)
        tree = self.tree(self.context, self.max_nodes)
        scores, origins = 0.9**tree.depths, [self.chance.randrange(8)] * len(tree)
        return TokenTree(tree.tokens, tree.parents, tree.counts, scores=scores, origins=origins)

    def accept(self, tokens: Any, top_k: Any, node_top_k: Any) -> None:
        self.context += tokens.tolist()
        if self._fails("mutates"):
            for array in (tokens, top_k, node_top_k):
                if array is not None and array.flags.writeable:
                    array[...] = 7

    def close(self) -> None:
        pass


def some_faults(chance: random.Random) -> frozenset[str]:
    return frozenset(name for name in ("raises", "nonsense", "mutates", "slow") if chance.random() < 0.4)


def some_datastore(chance: random.Random, texts: Texts, directory: Path) -> tuple[rest_store.Datastore, int]:
    """A datastore of pieces of the texts and of noise, and its number of token ids."""
    size = VOCABULARY if chance.random() < 0.8 else chance.choice([12, VOCABULARY + 1, 70_000])
    documents = []
    for text in texts:
        start = chance.randrange(len(text) + 1)
        documents += [text[start:], text[: chance.randrange(len(text) + 1)]]
    documents += [[chance.randrange(size) for _ in range(chance.randrange(1, 40))] for _ in range(chance.randrange(6))]
    documents = [piece for piece in ([token for token in part if 0 <= token < size] for part in documents) if piece]
    cut = chance.randrange(len(documents) + 1)
    shards = [shard for shard in (documents[:cut], documents[cut:]) if shard] or [[[1]]]
    place = directory / f"datastore-{len(list(directory.iterdir()))}"
    place.mkdir()
    return rest_store.Datastore.open(write_datastore(place, Corpus(size, shards))), size


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
        "shared_calibration": chance.choice([None, "model"]),
        "timeout": chance.choice([0.005, PATIENCE]),
        "tokenizer": chance.choice([None, identity(VOCABULARY), identity(VOCABULARY), identity(12)]),
    }
    return f"service{options}", lambda: rest_store.DatastoreClient(target, **options)


def some_sources(chance: random.Random, texts: Texts, directory: Path, services: Services) -> Drafter:
    makers: list[Callable[[], Any]] = []
    names = []
    sizes = set()
    kinds = ["datastore", "lookup", "recycled", "own", "service"]
    alone = [
        "service",
        *chance.sample(["lookup", "recycled"], chance.randrange(3)),
    ]  # its tree is the session's
    for kind in alone if chance.random() < 0.3 else chance.choices(kinds, k=chance.randrange(1, 6)):
        if kind in ("lookup", "recycled") and kind in names:
            continue
        names.append(kind)
        if kind == "datastore":
            store, size = some_datastore(chance, texts, directory)
            sizes.add(size)
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
    refusals = {"TokenizerMismatchError"} if len(sizes) > 1 else set()
    refusals |= {"SystemExit"} if any("raises" in name for name in names) else set()  # passes through
    return Drafter(f"{names}", lambda: [make() for make in makers], frozenset(refusals))


def some_callable(chance: random.Random, texts: Texts) -> Drafter:
    faults, seed = some_faults(chance), chance.randrange(2**32)

    def make() -> Callable[[list[int]], Any]:
        own = random.Random(seed)

        def session(prompt: list[int]) -> Any:
            if "raises" in faults and own.random() < 0.1:
                raise fault(own)
            if "nonsense" in faults and own.random() < 0.1:
                return nonsense(own)
            made = Session(texts, own, prompt, faults)
            if "mutates" in faults:
                prompt[:] = [7]
            return made

        return session

    refusals = {"DrafterError"} if "nonsense" in faults else set()
    refusals |= {"SystemExit"} if "raises" in faults else set()  # passes through, as every interrupt does
    return Drafter(f"sessions{sorted(faults)}", make, frozenset(refusals))


def some_wrong_drafter(chance: random.Random, texts: Texts) -> Drafter:
    """Something that a caller gives by mistake."""
    wrong = [
        ("'a.ds'", lambda: "a.ds"),
        ("['a.ds']", lambda: ["a.ds"]),
        ("[PromptLookup]", lambda: [rest_store.PromptLookup]),
        ("[None]", lambda: [None]),
        ("[3]", lambda: [3]),
        ("7", lambda: 7),
        ("{}", lambda: {"a": rest_store.PromptLookup()}),
        ("[PromptLookup()] * 2", lambda: [rest_store.PromptLookup(), rest_store.PromptLookup()]),
        ("9 sources", lambda: [Source(texts, random.Random(0), frozenset()) for _ in range(9)]),
    ]
    name, make = chance.choice(wrong)
    return Drafter(name, make, refused=True)


def some_drafter(chance: random.Random, texts: Texts, directory: Path, services: Services) -> Drafter:
    kind = chance.random()
    if kind < 0.05:
        return Drafter("none", chance.choice([lambda: None, list]))
    if kind < 0.1:
        return some_wrong_drafter(chance, texts)
    return some_callable(chance, texts) if kind < 0.55 else some_sources(chance, texts, directory, services)
