"""The second stage of a build: from a tokens file to the suffix array beside it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from build_index.output_errors import output_errors
from build_index.size import size_text
from build_index.staging import whole_file
from rest_store.datastore.header import HEADER_SIZE
from rest_store.datastore.shard import SuffixesFile, TokensFile, write_suffixes
from rest_store.datastore.suffix_array import peak_bytes, sorted_suffixes
from rest_store.errors import DatastoreError, MemoryBudgetError


def sort_shard(
    directory: Path, name: str, vocabulary_size: int, is_wanted: Callable[[], bool] = lambda: True
) -> float:
    """Sort the suffixes of a complete tokens file and write the suffix array, unless it is there.

    Args:
        directory: the directory of the shard.
        name: name of the shard.
        vocabulary_size: `V`.
        is_wanted: whether to write the result; False if the build has ended meanwhile.

    Returns:
        The seconds that it took.

    Raises:
        OutputError: a file cannot be written.
        MemoryBudgetError: there is not enough memory.
        DatastoreFormatError: the tokens file was changed.
    """
    start = time.perf_counter()
    path = directory / f"{name}.tokens"
    output = directory / f"{name}.suffixes"
    with output_errors(path):
        tokens = TokensFile.open(path)
        if _is_sorted(tokens, output):
            return 0.0
        tokens.require_checksum()  # it may be from a build that was interrupted long ago
        header = tokens.header
        del tokens
    try:
        with output_errors(path):
            # A mapping would change if the file did.
            symbols = np.fromfile(path, np.uint8, offset=HEADER_SIZE)
        keys, entries = sorted_suffixes(symbols, header.width, header.token_count)
    except MemoryError as error:
        size = size_text(peak_bytes(header.position_count, vocabulary_size))
        raise MemoryBudgetError(
            f"{name}: sorting needs {size} of free memory, which are not there; choose a smaller"
            " --memory"
        ) from error
    if is_wanted():
        with whole_file(output) as unfinished:
            write_suffixes(unfinished, header, keys, entries)
    return time.perf_counter() - start


def _is_sorted(tokens: TokensFile, output: Path) -> bool:
    """Return whether the suffix array of a tokens file is there.

    A suffix array of other tokens is left from a build of other corpora.
    """
    if not output.exists():
        return False
    try:
        return SuffixesFile.open(output).header.tokens_sha256 == tokens.header.sha256
    except DatastoreError:
        return False
