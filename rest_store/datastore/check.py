"""The check of a datastore: it reads all of it, which opening does not (FORMAT.md, section 6)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rest_store.datastore.datastore import Datastore
from rest_store.datastore.header import HEADER_SIZE, separator_id
from rest_store.datastore.manifest import TOKENIZER_FILE_NAME
from rest_store.datastore.mapped_file import regular_file
from rest_store.datastore.shard import Shard, SuffixesFile
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
    """Verify the checksums of a datastore, and with `sort` its content.

    Args:
        path: directory of the datastore.
        sort: `rest_store.datastore.suffix_array.sorted_suffixes`, to verify the symbols and to sort
            the suffix arrays again; None: only the checksums are verified.
        announce: called with the names of a shard and of a stage, at the beginning of the stage.

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
            finally:  # a lost page reads as zeros, which are no fault of the content
                store.require_readable()
    return store


def _check_tokenizer(store: Datastore) -> None:
    """Compare `tokenizer.json` with its checksum in the manifest, if that has one."""
    path = store.path / TOKENIZER_FILE_NAME
    expected = store.manifest.tokenizer_sha256
    if expected is None:
        return
    try:
        with regular_file(path) as file:
            actual = hashlib.sha256(file.read()).hexdigest()
    except OSError as error:
        problem = f"unreadable ({error.strerror})"
        raise DatastoreFormatError(
            "missing file", describe(path, "file", problem, "a file that the manifest names")
        ) from None
    if actual != expected:
        raise DatastoreFormatError(
            "checksum", describe(path, "SHA-256 of the content", actual, expected)
        )


def _check_symbols(shard: Shard) -> None:
    """Verify that the symbols are ids or separators, and count the separators."""
    header = shard.tokens.header
    path = shard.tokens.path
    separator = separator_id(header.vocabulary_size)
    separators = 0
    for start in range(0, header.position_count, _BLOCK):
        symbols = shard.tokens.symbols(start, min(start + _BLOCK, header.position_count))
        ends = symbols == separator
        outside = np.flatnonzero((symbols >= header.vocabulary_size) & ~ends)
        if outside.size:
            first = int(outside[0])
            what = f"symbol at position {start + first}"
            expected = f"0..{header.vocabulary_size - 1} or the separator"
            raise DatastoreFormatError(
                "header", describe(path, what, int(symbols[first]), expected)
            )
        separators += int(np.count_nonzero(ends))
    if separators != header.document_count:
        raise DatastoreFormatError(
            "header", describe(path, "number of separators", separators, header.document_count)
        )


def _check_suffixes(shard: Shard, sort: Sort) -> None:
    """Verify the suffix array against one that is sorted here."""
    tokens = shard.tokens
    suffixes = shard.suffixes
    try:
        symbols = tokens.raw[HEADER_SIZE:].copy()  # a mapping may change while it is sorted
        keys, entries = sort(symbols, tokens.header.width, tokens.header.token_count)
    except MemoryError as error:
        raise MemoryBudgetError(
            f"{tokens.path}: there is not enough memory to sort it again"
        ) from error
    _require_equal(suffixes, "key", suffixes.key_bytes.view("<u8"), keys)
    _require_equal(suffixes, "byte", suffixes.packed, entries)


def _require_equal(
    suffixes: SuffixesFile, what: str, actual: npt.NDArray[Any], expected: npt.NDArray[Any]
) -> None:
    """Raise DatastoreFormatError, which names the first difference, if two arrays differ."""
    differing = np.flatnonzero(actual != expected)
    if differing.size:
        index = int(differing[0])
        where = f"{what} {index} of the suffix array"
        raise DatastoreFormatError(
            "suffix order",
            describe(suffixes.path, where, int(actual[index]), int(expected[index])),
        )
