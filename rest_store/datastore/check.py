"""A full read of a datastore, which finds faults that opening it cannot see (FORMAT.md, section 6)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rest_store.datastore.datastore import Datastore
from rest_store.datastore.header import KEY_STRIDE, separator_id
from rest_store.datastore.manifest import TOKENIZER_FILE_NAME
from rest_store.datastore.shard import Shard
from rest_store.errors import (
    ChecksumError,
    MissingShardError,
    ShardHeaderError,
    SuffixOrderError,
    describe,
)

_BLOCK = 1 << 18  # ranks, symbols or bytes read at once


def check_datastore(
    path: str | Path, *, full: bool = False, announce: Callable[[str], object] = lambda stage: None
) -> Datastore:
    """Verify the checksums of a datastore: its files are those that were written.

    Args:
        path: directory of the datastore.
        full: verify what was written, too: symbols, keys, and the order of the suffix arrays, in which each token is
            then listed once. Takes far more time.
        announce: called with the shard and the stage that begins.

    Returns:
        The datastore.

    Raises:
        DatastoreError: the subclass that names the first fault.
        DatastoreUnavailableError: a file was truncated meanwhile, or its disk fails.
    """
    store = Datastore.open(path)
    _check_tokenizer(store)
    for record, shard in zip(store.manifest.shards, store.shards, strict=True):
        check_shard(shard, record.name, store.require_readable, full=full, announce=announce)
    return store


def check_shard(
    shard: Shard, name: str, require_readable: Callable[[], None], *, full: bool, announce: Callable[[str], object]
) -> None:
    """Verify one shard; raises what `check_datastore` does.

    Args:
        shard: mapped, and structurally valid.
        name: of the shard, for `announce`.
        require_readable: raises DatastoreUnavailableError if a page of its files has been lost.
        full: as in `check_datastore`.
        announce: as in `check_datastore`.
    """
    stages: dict[str, Callable[[Shard], None]] = {"checksums": Shard.require_checksums}
    if full:
        stages |= {"symbols": _check_symbols, "keys": _check_keys, "suffix order": _check_order}
    for stage, verify in stages.items():
        announce(f"{name} {stage}")
        try:
            verify(shard)
        finally:  # zeros in place of lost pages are no fault of the content
            require_readable()


def _check_tokenizer(store: Datastore) -> None:
    """Compare `tokenizer.json` with its checksum in the manifest, if that has one."""
    path, expected = store.path / TOKENIZER_FILE_NAME, store.manifest.tokenizer_sha256
    if expected is None:
        return
    try:
        with path.open("rb") as file:
            sha256 = hashlib.sha256()
            for block in iter(lambda: file.read(_BLOCK), b""):
                sha256.update(block)
    except OSError as error:
        found = f"unreadable ({error.strerror})"
        raise MissingShardError(describe(path, "file", found, "a file that the manifest names")) from None
    if sha256.hexdigest() != expected:
        raise ChecksumError(describe(path, "SHA-256 of the content", sha256.hexdigest(), expected))


def _check_symbols(shard: Shard) -> None:
    header, path = shard.tokens.header, shard.tokens.path
    separator = separator_id(header.vocabulary_size)
    separators = 0
    for start in range(0, header.position_count, _BLOCK):
        symbols = shard.tokens.symbols(start, min(start + _BLOCK, header.position_count))
        ends = symbols == separator
        outside = np.flatnonzero((symbols >= header.vocabulary_size) & ~ends)
        if outside.size:
            where = start + int(outside[0])
            found, expected = int(symbols[outside[0]]), f"0..{header.vocabulary_size - 1} or the separator"
            raise ShardHeaderError(describe(path, f"symbol at position {where}", found, expected))
        separators += int(np.count_nonzero(ends))
    if separators != header.document_count:
        raise ShardHeaderError(describe(path, "number of separators", separators, header.document_count))


def _check_keys(shard: Shard) -> None:
    suffixes = shard.suffixes
    count, limit = suffixes.header.key_count, shard.tokens.header.position_count
    for start in range(0, count, _BLOCK):
        stop = min(start + _BLOCK, count)
        positions = suffixes.gather(np.arange(start, stop, dtype=np.int64) * KEY_STRIDE)
        _require_positions(shard, positions, limit)
        differing = np.flatnonzero(shard.tokens.keys(positions) != suffixes.keys[start:stop])
        if differing.size:
            key = start + int(differing[0])
            found = f"{int(suffixes.keys[key]):#018x}"
            raise SuffixOrderError(describe(suffixes.path, f"key {key}", found, "the first bytes of its suffix"))


def _check_order(shard: Shard) -> None:
    count = shard.suffixes.header.entry_count
    for start in range(0, count - 1, _BLOCK):
        _compare_neighbours(shard, np.arange(start, min(start + _BLOCK, count - 1), dtype=np.int64))
    # In this order all suffixes differ, and those that begin with a separator, the greatest symbol, come last.
    last = shard.suffixes.gather(np.array([count - 1]))
    _require_positions(shard, last, shard.tokens.header.position_count)
    if shard.tokens.symbols(int(last[0]), int(last[0]) + 1)[0] == separator_id(shard.tokens.header.vocabulary_size):
        raise SuffixOrderError(describe(shard.suffixes.path, "the last entry", "a separator's", "a token's position"))


def _compare_neighbours(shard: Shard, ranks: npt.NDArray[np.int64]) -> None:
    """Raise SuffixOrderError unless each suffix at `ranks` int64[n] is less than its successor."""
    tokens, suffixes = shard.tokens, shard.suffixes
    limit, width = tokens.header.position_count, tokens.header.width
    left, right = suffixes.gather(ranks), suffixes.gather(ranks + 1)
    _require_positions(shard, left, limit)
    _require_positions(shard, right, limit)
    compared = 0  # whole symbols known to be equal
    step = 8 // width
    unused = np.uint64(8 * (8 - step * width))
    while ranks.size:
        # A suffix that has ended is a proper prefix of the other, so it must be the left one.
        ended_left, ended_right = left + compared >= limit, right + compared >= limit
        x = tokens.keys(np.minimum(left + compared, limit)) >> unused
        y = tokens.keys(np.minimum(right + compared, limit)) >> unused
        wrong = np.flatnonzero(ended_right | (~ended_left & (x > y)))
        if wrong.size:
            found, expected = f"not after that at rank {int(ranks[wrong[0]])}", "in ascending order"
            raise SuffixOrderError(
                describe(suffixes.path, f"suffix at rank {int(ranks[wrong[0]]) + 1}", found, expected)
            )
        equal = ~ended_left & (x == y)
        ranks, left, right = ranks[equal], left[equal], right[equal]
        compared += step


def _require_positions(shard: Shard, positions: npt.NDArray[np.int64], limit: int) -> None:
    beyond = positions[positions >= limit]
    if beyond.size:
        raise SuffixOrderError(describe(shard.suffixes.path, "an entry", int(beyond[0]), f"below {limit}"))
