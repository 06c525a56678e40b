"""The drafts of heavy matches, made when all shards are there (FORMAT.md, section 8)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path

from rest_store.datastore.kernel import MAX_NODES, Kernel, kernel_name, open_kernel
from rest_store.datastore.manifest import PreparedRecord
from rest_store.datastore.prepared import MAX_COUNT, pack_draft, write_prepared
from rest_store.datastore.shard import Shard
from rest_store.datastore.tree import TokenTree

# What a draft is asked for unless the caller says otherwise.
LENGTH = 16
NODES = 64
DEPTH = 10
# A match is heavy with so many occurrences, or this share of all tokens: so the number of heavy matches hardly depends
# on the size of a large datastore.
LEAST = 2048
SHARE = 1 / (1 << 18)
BYTES_A_TOKEN = 0.1  # that the file may take, and
MOST_BYTES = 1 << 26  # in all; the heaviest matches come first

# Bytes of a shard's pages that one draft reads, at most: those of the most frequent token, of shards of 1.3 GB, 200 MB.
PAGES_OF_A_DRAFT = 256 << 20

_TABLES_SIZE = 24  # bytes of a draft's share of the tables before the drafts, at most
_IDS_BETWEEN = 256  # that are counted before the caller is told
_LONGER = 2.5  # heavy matches of any greater length, for each that is a token longer: about, to tell how many are left


def room_for_pages(shard_sizes: Sequence[int]) -> int:
    """Return the bytes that shards of these sizes need to have resident for preparing drafts, at least.

    With less than all of them, pages are given back between drafts, of which each may read as many again.
    """
    return min(sum(shard_sizes), 2 * sum(min(size, PAGES_OF_A_DRAFT) for size in shard_sizes))


def prepare_drafts(
    path: Path,
    shards: Sequence[Shard],
    vocabulary_size: int,
    told: Callable[[int, int | None], None] = lambda made, total: None,
) -> PreparedRecord | None:
    """Write the drafts of all heavy matches of at most 16 tokens.

    Args:
        path: file to create.
        shards: the datastore's, in the order of the manifest.
        vocabulary_size: ids are `0 .. vocabulary_size - 1`.
        told: called often, with the number of drafts made so far and about how many it will be, None while unknown.

    Returns:
        What the manifest says of the file; None if no match is heavy, or without the native kernel, on which this
        would take hours.
    """
    token_count = sum(shard.tokens.header.token_count for shard in shards)
    if kernel_name() != "native" or token_count > MAX_COUNT:
        return None
    kernel = open_kernel(shards, vocabulary_size)
    heaviest = _Heaviest(least=_least(token_count), room=min(int(BYTES_A_TOKEN * token_count), MOST_BYTES))
    level = []
    for token in range(vocabulary_size):
        if token % _IDS_BETWEEN == 0:
            told(0, None)
        if kernel.count([token]) >= heaviest.least:
            level.append([token])
    made = 0
    for length in range(1, LENGTH + 1):
        longer: list[list[int]] = []
        for done, tokens in enumerate(level, 1):
            tree = kernel.draft(tokens, NODES, length, DEPTH)
            heaviest.add(tree.match.count, tuple(tokens), pack_draft(tokens, tree, vocabulary_size))
            made += 1
            total = made + len(level) - done + round(_LONGER * len(longer) * len(level) / done)
            told(made, total)
            if length < LENGTH:
                longer += [[*tokens, token] for token in _continuing(kernel, tokens, tree, heaviest.least)]
                told(made, total)
        level = longer
    drafts = heaviest.drafts()
    if not drafts:
        return None
    limits = {"max_nodes": NODES, "max_depth": DEPTH}
    return PreparedRecord.of(write_prepared(path, shards, drafts, vocabulary_size=vocabulary_size, **limits))


def _least(token_count: int) -> int:
    return max(LEAST, int(SHARE * token_count))


def _continuing(kernel: Kernel, tokens: list[int], tree: TokenTree, least: int) -> list[int]:
    """Return the tokens that follow `tokens`, whose draft is `tree`, at least `least` times; 1,024 of them at most."""
    if len(tree) == NODES and tree.counts[-1] >= least:  # there may be more than it shows
        tree = kernel.draft(tokens, MAX_NODES, len(tokens), 1)
    return [int(token) for token in tree.tokens[(tree.depths == 1) & (tree.counts >= least)]]


class _Heaviest:
    """Keeps the drafts of the heaviest matches, of equals the first, as far as they find room: not one behind.

    Args:
        least: occurrences of a match that is worth preparing; grows when room gets short.
        room: bytes that the drafts kept, and the tables before them, may take.
    """

    def __init__(self, least: int, room: int) -> None:
        self.least = least
        self._room = room
        self._size = 0
        self._kept: list[tuple[int, tuple[int, ...], bytes]] = []

    def add(self, count: int, tokens: tuple[int, ...], packed: bytes) -> None:
        if count < self.least:
            return
        self._kept.append((-count, tokens, packed))
        self._size += len(packed) + _TABLES_SIZE
        if self._size > 2 * self._room:
            # The first that finds no room stays, and shows which others find none either.
            self._prune(kept_beyond=1)
            self.least = -self._kept[-1][0]

    def drafts(self) -> list[tuple[tuple[int, ...], bytes]]:
        self._prune(kept_beyond=0)
        return [(tokens, packed) for _, tokens, packed in self._kept]

    def _prune(self, kept_beyond: int) -> None:
        self._kept.sort()
        sizes = [len(packed) + _TABLES_SIZE for _, _, packed in self._kept]
        room = bisect_right(list(accumulate(sizes)), self._room)
        del self._kept[room + kept_beyond :]
        self._size = sum(sizes[: len(self._kept)])
