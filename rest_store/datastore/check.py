"""A full read of a datastore, which finds faults that
opening it cannot see (FORMAT.md, section 6).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rest_store.datastore.datastore import Datastore
from rest_store.datastore.header import HEADER_SIZE, separator_id
from rest_store.datastore.manifest import TOKENIZER_FILE_NAME
from rest_store.datastore.mapped_file import regular_file
from rest_store.datastore.shard import Shard
from rest_store.errors import DatastoreFormatError, MemoryBudgetError, describe

_BLOCK = 1 << 18  # symbols read at once
Sort = Callable[
    [npt.NDArray[np.uint8], int, int], tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint8]]
]


def check_datastore(
    path: str | Path,
    *,
    sort: Sort | None = None,
    announce: Callable[[str], object] = lambda stage: None,
) -> Datastore:
    """Verify the checksums of a datastore: its files are those that were written.

    Args:
        path: directory of the datastore.
        sort: `rest_store.datastore.suffix_array.sorted_suffixes`. With it the content is verified,
            too: the symbols, and the suffix arrays, which are sorted again. None: without.
        announce: called with the shard and the stage that begins.

    Returns:
        The datastore.

    Raises:
        DatastoreError: the subclass that names the first fault.
        DatastoreUnavailableError: a file was truncated meanwhile, or its disk fails.
        MemoryBudgetError: there is too little memory to sort a shard, about 12 to 18 bytes a token.
    """
    store = Datastore.open(path)
    _check_tokenizer(store)
    stages: dict[str, Callable[[Shard], None]] = {"checksums": Shard.require_checksums}
    if sort is not None:
        stages |= {"symbols": _check_symbols, "suffixes": partial(_check_suffixes, sort=sort)}
    for record, shard in zip(store.manifest.shards, store.shards, strict=True):
        for stage, verify in stages.items():
            announce(f"{record.name} {stage}")
            try:
                verify(shard)
            finally:  # zeros in index of lost pages are no fault of the content
                store.require_readable()
    return store


def _check_tokenizer(store: Datastore) -> None:
    """Compare `tokenizer.json` with its checksum in the manifest, if that has one."""
    path, expected = store.path / TOKENIZER_FILE_NAME, store.manifest.tokenizer_sha256
    if expected is None:
        return
    try:
        with regular_file(path) as file:
            found = hashlib.sha256(file.read()).hexdigest()
    except OSError as error:
        problem = f"unreadable ({error.strerror})"
        raise DatastoreFormatError(
            "missing file", describe(path, "file", problem, "a file that the manifest names")
        ) from None
    if found != expected:
        raise DatastoreFormatError(
            "checksum", describe(path, "SHA-256 of the content", found, expected)
        )


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
            found, expected = (
                int(symbols[outside[0]]),
                f"0..{header.vocabulary_size - 1} or the separator",
            )
            raise DatastoreFormatError(
                "header", describe(path, f"symbol at position {where}", found, expected)
            )
        separators += int(np.count_nonzero(ends))
    if separators != header.document_count:
        raise DatastoreFormatError(
            "header", describe(path, "number of separators", separators, header.document_count)
        )


def _check_suffixes(shard: Shard, sort: Sort) -> None:
    tokens, suffixes = shard.tokens, shard.suffixes
    try:
        symbols = tokens.raw[HEADER_SIZE:].copy()  # a mapping may change while it is sorted
        keys, entries = sort(symbols, tokens.header.width, tokens.header.token_count)
    except MemoryError as error:
        raise MemoryBudgetError(
            f"{tokens.path}: there is not enough memory to sort it again"
        ) from error
    for what, found, expected in (
        ("key", suffixes.key_bytes.view("<u8"), keys),
        ("byte", suffixes.packed, entries),
    ):
        differing = np.flatnonzero(found != expected)
        if differing.size:
            index = int(differing[0])
            where = f"{what} {index} of the suffix array"
            raise DatastoreFormatError(
                "suffix order",
                describe(suffixes.path, where, int(found[index]), int(expected[index])),
            )
