"""A file in an object store or on a server, read in blocks through `fsspec`.

A block is one request. One that fails is repeated a few times, then it is an error that names the file and what
happened. Credentials, endpoints and proxies are those of each library's own environment variables and files.
"""

from __future__ import annotations

import io
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TypeAlias, TypeVar, cast

from build_index.errors import build_packages, first_line
from build_index.path import scheme_of
from rest_store.errors import CorpusError, CorpusNotFoundError, RestStoreError, describe

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_Result = TypeVar("_Result")

SCHEMES = ("s3", "gs", "https", "http", "hf")
BLOCK_BYTES = 4 << 20
_BLOCKS = 4  # kept of a file: pyarrow reads up to three columns in turns
DELAYS = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Seconds between tries of one request."""
_TIMEOUT_SECONDS = 60  # of one request over HTTP; the other libraries have limits of their own
# Another try would fail in the same way.
_LASTING = (FileNotFoundError, PermissionError, IsADirectoryError, ValueError, NotImplementedError, ImportError)
_TRANSIENT_STATUS = (408, 429)
_ABSENT_STATUS = (404, 410)
_QUERY = re.compile(r"(?<=//)([^\s'\"?]+)\?[^\s'\")]*")  # of an address in a message; it may hold a signature


def file_system(url: str) -> Any:
    """Return the `fsspec.AbstractFileSystem` of an address.

    It belongs to this process. `fsspec` keeps and shares it, so this is cheap.

    Raises:
        CorpusError: a package of the extra `remote` is not installed.
    """
    scheme = scheme_of(url)
    options: dict[str, Any] = {"use_listings_cache": False}
    with build_packages(public_address(url), CorpusError, "remote"):
        import fsspec

        if scheme == "s3":
            import s3fs  # noqa: F401
        elif scheme == "gs":
            import gcsfs  # noqa: F401
        elif scheme == "hf":
            import huggingface_hub  # noqa: F401
        else:
            import aiohttp

            timeout = aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS)
            # Ranges of a compressed answer are not ranges of the file. Proxies and ~/.netrc are those of `trust_env`.
            headers = {"Accept-Encoding": "identity"}
            options["client_kwargs"] = {"timeout": timeout, "headers": headers, "trust_env": True}
        return fsspec.filesystem(scheme, **options)


def public_address(url: str) -> str:
    """Return an address without the query of a web address, which may hold a signature."""
    return url.partition("?")[0] if url.startswith(("http://", "https://")) else url


def requested(where: str, request: Callable[[], _Result], *, once: bool = False) -> _Result:
    """Return the result of a request, which is repeated when it fails.

    Args:
        where: what is requested, for messages.
        request: does it.
        once: whether to try it only once.

    Raises:
        CorpusNotFoundError: there is no such file, directory or bucket.
        CorpusError: access is refused, or the last try failed as well.
    """
    for tries, delay in enumerate((*(() if once else DELAYS), None), 1):
        try:
            return request()
        except RestStoreError:
            raise
        except Exception as caught:  # each library has its own
            error = _cause(where, caught)
            if delay is None or _is_lasting(error):
                raise _failure(where, error, tries) from error
            time.sleep(delay)
    raise AssertionError("unreachable")


def _cause(where: str, error: Exception) -> Exception:
    """Return why a request failed: `fsspec` calls a web address that it cannot look at a file that is not found."""
    cause = error.__cause__
    if isinstance(error, FileNotFoundError) and isinstance(cause, Exception) and where.startswith("http"):
        return error if getattr(cause, "status", None) in _ABSENT_STATUS else cause
    return error


def _is_lasting(error: Exception) -> bool:
    status = getattr(error, "status", None)  # of aiohttp
    if isinstance(status, int):
        return 400 <= status < 500 and status not in _TRANSIENT_STATUS
    return isinstance(error, _LASTING)


def _failure(where: str, error: Exception, tries: int) -> CorpusError:
    reason = _QUERY.sub(r"\1", first_line(error))
    if isinstance(error, FileNotFoundError):
        return CorpusNotFoundError(describe(where, "corpus", f"absent ({reason})", "a file, a directory or a glob"))
    after = f", {tries} tries" if tries > 1 else ""
    return CorpusError(f"{where}: the corpus cannot be read ({reason}{after})")


class RemotePath:
    """A file at an address, opened as a `pathlib.Path` is. All that opens it shares the blocks read last.

    Args:
        url: its address.

    Attributes:
        name: its name, without directories.

    Not thread-safe.
    """

    def __init__(self, url: str) -> None:
        self.where = public_address(url)
        self.name = self.where.rpartition("/")[2]
        self._url = url
        self._file: Any = None
        self._blocks: dict[int, bytes] = {}  # by number, the last used last

    def open(self, mode: Literal["rb"] = "rb", buffering: Literal[0] = 0) -> BinaryIO:
        """Open it for reading bytes, unbuffered.

        Raises:
            CorpusNotFoundError: there is no such file.
            CorpusError: it cannot be read, or the server sends whole files only.
        """
        if self._file is None:
            self._file = requested(self.where, self._opened)
        return cast(BinaryIO, _RemoteFile(self))

    @property
    def size(self) -> int:
        """Bytes of the opened file."""
        return int(self._file.size)

    def read_at(self, place: int, size: int) -> bytes:
        """Return up to `size` bytes of the opened file from `place` on, and no further than the end of a block.

        Raises:
            CorpusError: they cannot be read.
        """
        number = place // BLOCK_BYTES
        if place >= self.size or size <= 0:
            return b""
        block = self._blocks.pop(number, None)
        if block is None:
            block = requested(self.where, lambda: self._fetched(number))
        self._blocks[number] = block
        if len(self._blocks) > _BLOCKS:
            del self._blocks[next(iter(self._blocks))]
        start = place - number * BLOCK_BYTES
        return block[start : start + size]

    def _opened(self) -> Any:
        file = file_system(self._url).open(self._url, "rb", block_size=BLOCK_BYTES, cache_type="none")
        if file.size is None:
            found, expected = "one that does not say how large the file is", "one that sends parts of a file (ranges)"
            raise CorpusError(describe(self.where, "server", found, expected))
        return file

    def _fetched(self, number: int) -> bytes:
        start = number * BLOCK_BYTES
        size = min(BLOCK_BYTES, self.size - start)
        self._file.seek(start)
        block: bytes = self._file.read(size)
        if len(block) != size:
            raise ConnectionError(f"{len(block):,} bytes of {size:,} arrived")
        return block


FilePath: TypeAlias = Path | RemotePath
"""Where readers find a file."""


class _RemoteFile(io.RawIOBase):
    """An opened `RemotePath`, with a place of its own."""

    def __init__(self, path: RemotePath) -> None:
        self._path = path
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._place = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._path.size}[whence]
        return self._place

    def tell(self) -> int:
        return self._place

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        done = 0
        while done < len(view) and (data := self._path.read_at(self._place, len(view) - done)):
            view[done : done + len(data)] = data
            done += len(data)
            self._place += len(data)
        return done
