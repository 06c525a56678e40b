"""Files in object stores, on the Hugging Face hub and on web servers, read by `fsspec`.

Credentials, endpoints, proxies and retries are those of each library.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from rest_store.errors import (
    DatastoreNotFoundError,
    FetchError,
    RestStoreError,
    describe,
    first_line,
)
from rest_store.extras import named_extras
from rest_store.loading.hub import hub_failure

PACKAGES = {
    "s3": "s3fs",
    "gs": "gcsfs",
    "hf": "huggingface_hub",
    "https": "aiohttp",
    "http": "aiohttp",
}
"""The package that reads the addresses of each scheme."""
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_PIECE_BYTES = 8 << 20  # of one request


def scheme_of(path: str) -> str | None:
    """Return the scheme of an address such as `s3://bucket/key`, as it is written; None: a path."""
    match = _SCHEME.match(path)
    return match[1] if match else None


def file_system(address: str, error: type[RestStoreError]) -> Any:
    """Return the `fsspec.AbstractFileSystem` of an address.

    Raises:
        RestStoreError: `error`, if there is no such scheme.
        MissingExtraError: a package is not installed.
    """
    scheme = scheme_of(address) or ""
    if scheme not in PACKAGES:
        raise error(describe(address, "scheme", f"'{scheme}'", f"one of {', '.join(PACKAGES)}"))
    with named_extras(address):
        import fsspec

        __import__(PACKAGES[scheme])
    return fsspec.filesystem(scheme, use_listings_cache=False)


def require_hub(address: str, error: type[RestStoreError]) -> None:
    """Raise `error` if an address is on the Hugging Face hub, and that cannot be reached."""
    if scheme_of(address) == "hf":
        parts = address.split("/")[2:]
        kind, names = ("dataset", parts[1:3]) if parts[0] == "datasets" else ("model", parts[:2])
        if failure := hub_failure("/".join(names).partition("@")[0], kind=kind):
            raise error(f"{address}: the Hugging Face hub cannot be reached ({failure})")


class RemoteFiles:
    """Reads the files of a datastore below an address; a `rest_store.datastore.fetch.FileReader`.

    Args:
        location: address of its directory. A web server has to answer requests for a range of a
            file.

    Raises:
        FetchError: there is no such scheme.
        MissingExtraError: its package is not installed.
    """

    build = ""  # any build

    def __init__(self, location: str) -> None:
        self.location = location.rstrip("/")
        self._system = file_system(location, FetchError)

    def read(self, name: str, offset: int) -> Iterator[bytes]:
        """Yield a file in pieces from the byte `offset` on.

        Raises:
            DatastoreNotFoundError: there is none.
            FetchError: it cannot be read, or the hub cannot be reached.
        """
        require_hub(self.location, FetchError)
        try:
            with self._system.open(
                f"{self.location}/{name}", block_size=_PIECE_BYTES, cache_type="none"
            ) as file:
                file.seek(offset)
                while piece := file.read(_PIECE_BYTES):
                    yield piece
        except Exception as error:  # those of the libraries have no common base
            failure: BaseException = error
            # `fsspec` raises it for any answer of a web server, and for none.
            if isinstance(error, FileNotFoundError):
                failure = error.__cause__ or error
            if isinstance(failure, FileNotFoundError) or getattr(failure, "status", 0) == 404:
                actual = f"without {name}"
                expected = "complete"
                raise DatastoreNotFoundError(
                    describe(self.location, "datastore", actual, expected)
                ) from error
            reason = getattr(failure, "strerror", None) or first_line(failure)
            raise FetchError(f"{self.location}: {name} cannot be read ({reason})") from error

    def close(self) -> None:
        """Do nothing: connections are the libraries'."""
