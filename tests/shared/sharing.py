"""Random walks over shared live datastores: every answer to a group is that of an oracle."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np

from rest_store import _kernel  # type: ignore[attr-defined]
from rest_store.datastore.store import Store
from rest_store.datastore.tree import TokenTree
from rest_store.drafting.session import DraftSession
from rest_store.live.live_datastore import LiveDatastore
from tests.shared.live import new_live, refresh, some_document
from tests.shared.oracle import SharedOracle
from tests.shared.strategies import Document

GROUPS = ("", "ann", "bob", "cleo", "dan")
Written = tuple[str, Document]  # group and tokens

FEATURES = int(_kernel.FEATURES)
# Columns of the table of candidates: of the best live datastore, and within them.
BLOCK = 16
RECYCLED = 9
LIVE = FEATURES - RECYCLED - BLOCK
LENGTH = 0
SHARES = 4
COUNTS = 10
SAMPLED = 24  # occurrences of a suffix from which on not all are read, if it is long


def paths(tree: TokenTree) -> set[tuple[int, ...]]:
    """Return the path to each node."""
    sequences: list[tuple[int, ...]] = []
    for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
        sequences.append((*(sequences[parent] if parent >= 0 else ()), token))
    return set(sequences)


def drafted(store: Store, prompt: Document, group: str = "", max_nodes: int = 16) -> TokenTree:
    with DraftSession([store], prompt, group=group) as session:
        return session.draft(max_nodes)


def require_shared_answers(
    store: Store, written: list[Written], shared_after: int, reader: str, chance: random.Random
) -> None:
    """Compare answers to a group with those of the oracle, and look at what its session drafts."""
    size = store.vocabulary_size
    oracle = SharedOracle(size, written, shared_after, reader)
    reads = store.read_as(reader)
    alphabet = [0, 1, 2, size // 2, size - 1]
    for _ in range(3):
        context = [chance.choice(alphabet) for _ in range(chance.randint(1, 3))]
        if written:
            _, document = chance.choice(written)
            end = chance.randint(1, len(document))
            context += document[max(0, end - chance.randint(1, 12)) : end]
        assert reads.count(context[-3:]) == oracle.count(context[-3:])
        assert reads.longest_suffix_match(context) == oracle.longest_suffix_match(context)
        limits = {"max_nodes": 12, "max_suffix": 8, "max_depth": 4}
        assert reads.draft(context, **limits) == oracle.draft(context, **limits)
        tree = drafted(store, context, reader)
        for path in paths(tree):
            # Whichever suffix has proposed the token: it ends with the last token before.
            assert oracle.count([*context, *path][-2:]), f"{path} after {context}"
        require_evidence(store, oracle, context, chance.choice(alphabet), reader)


def require_evidence(
    store: Store, oracle: SharedOracle, context: Document, token: int, reader: str
) -> None:
    """Compare the features of a candidate with the counts of the oracle."""
    with DraftSession([store], context, group=reader) as session:
        session.record_candidates(True)
        session.draft(16)
        session.accept([token])
        packed, labels, ends = session.recorded_candidates()
    features = np.frombuffer(packed, np.float32).reshape(-1, FEATURES)
    first = int(np.frombuffer(ends, np.uint32)[0]) if ends else 0
    [rows] = np.nonzero(np.frombuffer(labels, np.uint8)[:first])
    if not rows.size:
        occurrences = len(oracle.positions(context[-1:]))
        assert not oracle.count([*context[-1:], token]) or occurrences > SAMPLED
        return
    row = features[rows[0], LIVE : LIVE + BLOCK]
    longest = oracle.longest_suffix_match(context)
    assert (row[LENGTH], row[COUNTS]) == longest
    for column, length in enumerate((4, 3, 2, 1), start=2):
        suffix = context[-min(length, longest.length) :]
        assert row[COUNTS + column] == oracle.count(suffix)
        visible = oracle.count([*suffix, token])
        is_sampled = len(oracle.positions(suffix)) > SAMPLED
        share = visible / max(1, oracle.count(suffix))
        assert row[SHARES + column] == np.float32(share) or is_sampled
        assert visible or row[SHARES + column] == 0


class Walk:
    """A live datastore with its reader, and what the groups have written."""

    def __init__(self, directory: Path, chance: random.Random, shared_after: int) -> None:
        self.directory = directory
        self.chance = chance
        self.shared_after = shared_after
        self.written: dict[str, Written] = {}
        self.live = new_live(directory, 300, shared_after=shared_after)
        self.reader = LiveDatastore.open(directory, read_only=True)

    def step(self) -> None:
        acts = [self.add, self.delete, self.compact, self.reopen, self.change]
        self.chance.choices(acts, [12, 4, 1, 1, 1])[0]()
        written = list(self.written.values())
        group = self.chance.choice(GROUPS)
        require_shared_answers(self.live, written, self.shared_after, group, self.chance)
        if self.chance.random() < 0.4:
            refresh(self.reader)
            require_shared_answers(self.reader, written, self.shared_after, group, self.chance)

    def add(self) -> None:
        count = self.chance.choice([1, 1, 2, 8])
        documents = [some_document(self.chance, 300) for _ in range(count)]
        groups = [self.chance.choice(GROUPS) for _ in documents]
        ids = self.live.add(documents, group=groups)
        self.written.update(zip(ids, zip(groups, documents, strict=True), strict=True))

    def delete(self) -> None:
        ids = self.chance.sample(list(self.written), min(len(self.written), 3))
        assert self.live.delete(ids) == len(ids)
        for id in ids:
            del self.written[id]

    def compact(self) -> None:
        self.live.compact()

    def reopen(self) -> None:
        self.live.close()
        self.live = LiveDatastore.open(self.directory)

    def change(self) -> None:
        self.shared_after = self.chance.randint(1, 4)
        self.live.close()
        self.live = LiveDatastore.open(self.directory, shared_after=self.shared_after)

    def close(self) -> None:
        self.live.close()
        self.reader.close()
