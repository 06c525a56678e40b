"""Random damage to files of a datastore, and what is promised of a datastore that opens all the same."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np

from rest_store.datastore.datastore import Datastore
from rest_store.datastore.tree import SuffixMatch, TokenTree
from tests.shared.strategies import Corpus, write_datastore


def heavy(rng: random.Random, alphabet: list[int], size: int) -> list[list[int]]:
    """Documents with many repeats: matches with many more occurrences than are sampled for up to 4 nodes."""
    ids = [alphabet[min(int(rng.expovariate(0.7)), len(alphabet) - 1)] for _ in range(size)]
    cuts = sorted(rng.sample(range(1, size), max(1, size // 60)))
    return [ids[a:b] for a, b in zip([0, *cuts], [*cuts, size], strict=True)]


def write_pristine(directory: Path) -> None:
    """Write the datastores that are to be damaged: both token widths, one to three shards."""
    rng = random.Random(0)
    top = 2**24 - 2
    corpora = [
        Corpus(300, [[[7] * 600, [7] * 40 + [8, 9] * 30]]),
        Corpus(65_535, [heavy(rng, [0, 1, 255, 65_534], 500), heavy(rng, [1, 255, 256], 400), [[65_534]]]),
        Corpus(70_000, [heavy(rng, [5, 255, 65_535, 69_999], 600), heavy(rng, [5, 256], 300)]),
        Corpus(top + 1, [heavy(rng, [0, top, top - 1, 0xFFFF00], 200) for _ in range(3)]),
        Corpus(3, [[[0, 1, 2]], [[2]]]),
    ]
    for place, corpus in enumerate(corpora):
        (directory / str(place)).mkdir()
        write_datastore(directory / str(place), corpus)


def damage(rng: random.Random, data: bytearray) -> None:
    """Change, cut or lengthen `data` in one to three ways."""
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        size = max(1, len(data))
        # Half of the time the header is left intact, so that the payload is read.
        start = min(size - 1, rng.choice([0, 256])) if rng.random() < 0.9 else 0
        at = rng.randrange(start, size)
        run = min(size - at, rng.choice([1, 2, 8, 64, 512]))
        kind = rng.randrange(8)
        if kind == 0 and data:
            for _ in range(rng.choice([1, 8, 64])):
                bit = rng.randrange(8 * start, 8 * size)
                data[bit // 8] ^= 1 << bit % 8
        elif kind == 1:
            data[at : at + run] = rng.randbytes(run)
        elif kind == 2:
            data[at : at + run] = bytes(run)
        elif kind == 3:
            data[at : at + run] = b"\xff" * run
        elif kind == 4:
            other = rng.randrange(start, size)
            run = min(run, size - other)
            data[at : at + run], data[other : other + run] = data[other : other + run], data[at : at + run]
        elif kind == 5:
            del data[at : rng.choice([at + run, size])]
        elif kind == 6:
            data[at:at] = rng.randbytes(run) if rng.random() < 0.5 else data[at : at + run]
        elif len(data) >= 256:  # a header field
            offset, size = rng.choice([(12, 2), (14, 2), (16, 4), (20, 4), (24, 8), (32, 8), (40, 8), (80, 8)])
            old = int.from_bytes(data[offset : offset + size], "little")
            new = rng.choice([0, 1, old + 1, old - 1, old * 2, old // 2, 64, 2**30, 2 ** (8 * size) - 1, old * 2**32])
            data[offset : offset + size] = (new % 2 ** (8 * size)).to_bytes(size, "little")


def some_context(rng: random.Random, symbols: list[int], vocabulary_size: int) -> list[int]:
    """A piece of the undamaged `symbols`, or any token."""
    at = rng.randrange(len(symbols))
    piece = [symbol for symbol in symbols[at : at + rng.choice([1, 1, 2, 5, 70])] if symbol < vocabulary_size]
    return piece or [rng.randrange(vocabulary_size)]


def require_match_bounds(store: Datastore, match: SuffixMatch, max_suffix: int) -> None:
    assert 0 <= match.length <= max_suffix
    assert 0 <= match.count <= store.manifest.token_count
    assert (match.length > 0) == (match.count > 0)


def require_bounds(store: Datastore, tree: TokenTree, limits: dict[str, int]) -> None:
    assert len(tree) <= limits["max_nodes"]
    require_match_bounds(store, tree.match, limits["max_suffix"])
    if len(tree) == 0:
        return
    tokens, parents, depths, counts = tree.tokens, tree.parents, tree.depths, tree.counts
    assert tree.match.length > 0
    assert 0 <= tokens.min() <= tokens.max() < store.vocabulary_size
    assert parents.min() >= -1
    assert np.all(parents < np.arange(len(tree)))
    assert np.array_equal(depths, np.where(parents < 0, 1, depths[parents] + 1))
    assert depths.max() <= limits["max_depth"]
    assert 1 <= counts[-1] <= counts[0] <= tree.match.count
    assert np.all(np.diff(counts) <= 0)
