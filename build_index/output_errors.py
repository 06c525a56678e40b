"""Errors of writing, turned into those of rest-store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rest_store.errors import OutputError, RestStoreError


@contextmanager
def output_errors(where: Path) -> Iterator[None]:
    """Turn errors of the operating system into OutputError, which names `where`."""
    try:
        yield
    except OSError as error:
        if isinstance(error, RestStoreError):
            raise
        raise OutputError(
            f"{where}: the datastore cannot be written ({error.strerror or error})"
        ) from error
