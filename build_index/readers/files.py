"""The files of a corpus, opened for reading: on this machine, in an object store or on a web server (`fsspec`).

The content of gzip (RFC 1952) and zstd (RFC 8878) files is decompressed. A truncated or damaged file is an error that
names it. Credentials, endpoints, proxies and retries are those of each library.
"""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

from build_index.errors import build_packages, first_line
from build_index.path import scheme_of
from rest_store.errors import CorpusError, CorpusFormatError, CorpusNotFoundError, RestStoreError, describe

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
SCHEMES = {"s3": "s3fs", "gs": "gcsfs", "https": "aiohttp", "http": "aiohttp", "hf": "huggingface_hub"}
"""Of addresses, and the packages that read them."""
BUFFER_BYTES = 1 << 18
_BLOCK_BYTES = 4 << 20  # of one request
_BLOCKS = 4  # kept of a remote file: pyarrow reads up to three columns in turns
_NOT_FOUND = 404  # RFC 9110; fsspec takes other answers for the same
_TIMEOUT_SECONDS = 60  # of one request over HTTP; the other libraries have limits of their own
_QUERY = re.compile(r"(?<=//)([^\s'\"?]+)\?[^\s'\")]*")  # of an address in a message; it may hold a signature


def public_address(url: str) -> str:
    """Return an address without the query of a web address, which may hold a signature."""
    return url.partition("?")[0] if url.startswith(("http://", "https://")) else url


def file_system(url: str) -> Any:
    """Return the `fsspec.AbstractFileSystem` of an address.

    Raises:
        CorpusError: a package of the extra `remote` is not installed.
    """
    scheme = scheme_of(url) or ""
    options: dict[str, Any] = {"use_listings_cache": False}
    with build_packages(public_address(url), CorpusError, "remote"):
        import fsspec

        __import__(SCHEMES[scheme])
        if scheme.startswith("http"):
            import aiohttp

            timeout = aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS)
            # Ranges of a compressed answer are not ranges of the file. Proxies and ~/.netrc are those of `trust_env`.
            headers = {"Accept-Encoding": "identity"}
            options["client_kwargs"] = {"timeout": timeout, "headers": headers, "trust_env": True}
        return fsspec.filesystem(scheme, **options)


def open_file(path: str) -> BinaryIO:
    """Open a file as it is, by its path or address; raises what `read_errors` turns into errors of ours."""
    if scheme_of(path) is None:
        return open(path, "rb", buffering=0)  # noqa: PTH123 - many small files
    file = file_system(path).open(
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
    try:
        yield
    except RestStoreError:
        raise
    except FileNotFoundError as error:
        cause = error.__cause__
        if where.startswith("http") and cause is not None and getattr(cause, "status", None) != _NOT_FOUND:
            raise CorpusError(f"{where}: the corpus cannot be read ({_public(cause)})") from error
        reason = "absent" if scheme_of(where) is None else f"absent ({_public(error.__cause__ or error)})"
        raise CorpusNotFoundError(describe(where, "corpus", reason, "a file, a directory or an address")) from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _damaged(where, error) from error
    except OSError as error:
        if error.errno is None and scheme_of(where) is None:  # of pyarrow, which decompresses zstd
            raise _damaged(where, error) from error
        raise CorpusError(f"{where}: the corpus cannot be read ({error.strerror or _public(error)})") from error
    except Exception as error:  # those of the libraries for object stores have no common base
        if scheme_of(where) is None:
            raise
        raise CorpusError(f"{where}: the corpus cannot be read ({_public(error)})") from error


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
        with build_packages(where, CorpusError):
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


def _damaged(where: str, error: Exception) -> CorpusFormatError:
    problem = f"damaged or truncated ({first_line(error)})"
    return CorpusFormatError(describe(where, "compressed file", problem, "an intact one"))


def _public(error: BaseException) -> str:
    return _QUERY.sub(r"\1", first_line(error))
