"""The files of a corpus, opened for reading: on this machine or in an object store (`fsspec`).

The content of gzip (RFC 1952) and zstd (RFC 8878) files is decompressed. A truncated or damaged file is an error that
names it. Credentials, endpoints, proxies and retries are those of each library.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, BinaryIO, cast

from rest_store.datastore.mapped_file import regular_file
from rest_store.errors import CorpusError, CorpusFormatError, CorpusNotFoundError, RestStoreError, describe, first_line
from rest_store.loading.remote_files import file_system, scheme_of

GZIP_MAGIC = b"\x1f\x8b\x08"  # with the only method that there is
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
BUFFER_BYTES = 1 << 18
_BLOCK_BYTES = 4 << 20  # of one request
_BLOCKS = 4  # kept of a remote file: pyarrow reads up to three columns in turns


def open_file(path: str) -> AbstractContextManager[BinaryIO]:
    """Open a file as it is, by its path or address; raises what `read_errors` turns into errors of ours."""
    if scheme_of(path) is None:
        return regular_file(path, buffering=0)
    file = file_system(path, CorpusError).open(
        path, "rb", block_size=_BLOCK_BYTES, cache_type="blockcache", cache_options={"maxblocks": _BLOCKS}
    )
    return cast(BinaryIO, file)


@contextmanager
def read_errors(where: str) -> Iterator[None]:
    """Turn what opening and reading a file raises inside into errors of ours.

    Args:
        where: the file, for messages; an address is recognized by its scheme.

    Raises:
        CorpusNotFoundError: there is no such file, directory or bucket.
        CorpusFormatError: a compressed file is truncated or damaged.
        CorpusError: it cannot be read.
    """
    is_remote = scheme_of(where) is not None
    try:
        yield
    except (RestStoreError, ModuleNotFoundError):
        raise
    except FileNotFoundError as error:
        found = f"absent ({first_line(error.__cause__ or error)})" if is_remote else "absent"
        raise CorpusNotFoundError(describe(where, "corpus", found, "a file, a directory or an address")) from error
    except Exception as error:  # those of the libraries for object stores have no common base
        strerror = getattr(error, "strerror", None)
        is_of_pyarrow = isinstance(error, OSError) and error.errno is None and not is_remote  # it decompresses zstd
        if isinstance(error, EOFError | zlib.error | gzip.BadGzipFile) or is_of_pyarrow:
            problem = f"damaged or truncated ({first_line(error)})"
            raise CorpusFormatError(describe(where, "compressed file", problem, "an intact one")) from error
        if not (is_remote or isinstance(error, OSError)):
            raise
        raise CorpusError(f"{where}: the corpus cannot be read ({strerror or first_line(error)})") from error


def compression_of(head: bytes) -> str | None:
    """Return `"gzip"`, `"zstd"` or None, by the first bytes of a file."""
    if head.startswith(GZIP_MAGIC):
        return "gzip"
    return "zstd" if head.startswith(ZSTD_MAGIC) else None


@contextmanager
def content_of(file: BinaryIO, where: str) -> Iterator[io.BufferedReader]:
    """Give the content of an open file from its beginning, decompressed. The file stays open.

    A zstd file may need a window of 128 MiB, as the library's own limit is.
    """
    file.seek(0)
    kind = compression_of(file.read(4))
    file.seek(0)
    if kind == "gzip":
        with gzip.GzipFile(fileobj=file) as stream:
            yield cast(io.BufferedReader, stream)
        return
    raw: Any = file
    if kind == "zstd":
        import pyarrow

        raw = pyarrow.CompressedInputStream(pyarrow.PythonFile(_Unclosed(file), "r"), "zstd")
    buffered = io.BufferedReader(raw, BUFFER_BYTES)
    try:
        yield buffered
    finally:
        buffered.detach()


class _Unclosed:
    """A file that pyarrow cannot close."""

    closed = False

    def __init__(self, file: BinaryIO) -> None:
        self.read = file.read

    def close(self) -> None:
        self.closed = True
