"""Errors of the operating system, turned into the errors of rest-store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rest_store.errors import (
    CorpusError,
    CorpusNotFoundError,
    OutputError,
    RestStoreError,
    describe,
)


@contextmanager
def output_errors(where: Path) -> Iterator[None]:
    """Turn errors of the operating system into OutputError, which names `where`."""
    try:
        yield
    except OSError as error:
        if isinstance(error, RestStoreError):
            raise
        raise OutputError(f"{where}: the datastore cannot be written ({error.strerror or error})") from error


def read_error(where: str, error: OSError) -> CorpusError:
    """Return our error for one that the operating system raised while `where` was opened or read."""
    if isinstance(error, FileNotFoundError):
        return CorpusNotFoundError(describe(where, "corpus", "absent", "a file, a directory or an address"))
    return CorpusError(f"{where}: the corpus cannot be read ({error.strerror or error})")
