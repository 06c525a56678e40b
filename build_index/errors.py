"""Errors of the operating system and of missing packages, turned into the errors of rest-store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rest_store.errors import CorpusError, CorpusNotFoundError, OutputError, RestStoreError, describe


@contextmanager
def build_packages(where: object, error: type[RestStoreError], extra: str = "build") -> Iterator[None]:
    """Import packages of an extra inside; a missing one raises `error`, which names it and the extra.

    Args:
        where: the input that needs the package, for the message.
        error: class of the error.
        extra: what installs the package.
    """
    try:
        yield
    except ImportError as cause:
        package = (cause.name or str(cause)).partition(".")[0]
        hint = f"install it with: pip install 'rest-store[{extra}]'"
        raise error(f"{where}: the package '{package}' cannot be imported ({cause}); {hint}") from cause


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


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its class if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
