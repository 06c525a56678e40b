"""The files of a corpus, opened for reading: on this machine or in an object store (`fsspec`).

The content of gzip (RFC 1952), zstd (RFC 8878), xz, bzip2 and LZ4 files is decompressed. A
truncated or damaged file is an error that names it. Credentials, endpoints, proxies and retries are
those of each library.
"""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, BinaryIO, cast

from rest_store.datastore.mapped_file import regular_file
from rest_store.errors import (
    CorpusError,
    CorpusFormatError,
    CorpusNotFoundError,
    RestStoreError,
    describe,
    first_line,
)
from rest_store.loading.remote_files import file_system, scheme_of

_MAGICS = {
    b"\x1f\x8b\x08": "gzip",  # with the only method that there is
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
    b"\xfd7zXZ\0": "xz",
    **{b"BZh%d1AY&SY" % level: "bz2" for level in range(1, 10)},
    **{b"BZh%d\x17\x72\x45\x38\x50\x90" % level: "bz2" for level in range(1, 10)},  # empty
}
_MAGIC = re.compile(b"|".join(map(re.escape, _MAGICS)))
COMPRESSED_ENDINGS = (".gz", ".zst", ".xz", ".bz2", ".lz4")
# A skippable frame of zstd (RFC 8878, 3.1.2) or LZ4, which has no content.
_SKIPPABLE = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18")
BUFFER_BYTES = 1 << 18
# A dictionary of 128 MiB, as much as the window of zstd may have; `xz -9` has 64 MiB.
_XZ_MEMORY = 160 << 20
_BLOCK_BYTES = 4 << 20  # of one request
_BLOCKS = 4  # cached of a remote file: pyarrow reads up to three columns in turns


def open_file(path: str) -> AbstractContextManager[BinaryIO]:
    """Open a file as it is, by its path or address.

    `read_errors` turns the errors into ours.
    """
    if scheme_of(path) is None:
        return regular_file(path, buffering=0)
    file = file_system(path, CorpusError).open(
        path,
        "rb",
        block_size=_BLOCK_BYTES,
        cache_type="blockcache",
        cache_options={"maxblocks": _BLOCKS},
    )
    return cast(BinaryIO, file)


@contextmanager
def read_errors(where: str) -> Iterator[None]:
    """Turn errors of opening and reading a file into ours.

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
        problem = "absent"
        if is_remote:
            problem += f" ({first_line(error.__cause__ or error)})"
        raise CorpusNotFoundError(
            describe(where, "corpus", problem, "a file, a directory or an address")
        ) from error
    except Exception as error:  # errors of the libraries for object stores have no common base
        strerror = getattr(error, "strerror", None)
        # pyarrow, which decompresses, raises an OSError without a number.
        is_pyarrow_error = isinstance(error, OSError) and error.errno is None and not is_remote
        if (
            isinstance(error, EOFError | zlib.error | gzip.BadGzipFile | _DamagedXzError)
            or is_pyarrow_error
        ):
            problem = f"damaged or truncated ({first_line(error)})"
            raise CorpusFormatError(
                describe(where, "compressed file", problem, "an intact one")
            ) from error
        if not (is_remote or isinstance(error, OSError)):
            raise
        raise CorpusError(
            f"{where}: the corpus cannot be read ({strerror or first_line(error)})"
        ) from error


def detect_compression(file: BinaryIO) -> str | None:
    """Return the compression of an open file, such as `"gzip"`, by its first bytes.

    None: it is not compressed.

    Skippable frames at the beginning are passed over; `pzstd` writes one into each file.
    """
    file.seek(0)
    head = file.read(16)
    position = 0
    has_skippable = False
    while _SKIPPABLE.match(head) and len(head) >= 8:
        has_skippable = True
        position += 8 + int.from_bytes(head[4:8], "little")
        file.seek(position)
        head = file.read(16)
    magic = _MAGIC.match(head)
    kind = None if magic is None else _MAGICS[magic.group()]
    if not has_skippable:
        return kind
    if not head:
        return "zstd"  # without content
    return kind if kind in ("zstd", "lz4") else None


@contextmanager
def open_content(file: BinaryIO, where: str) -> Iterator[io.BufferedReader]:
    """Yield the content of an open file from its beginning, decompressed. The file stays open.

    A zstd file may need a window of 128 MiB, the limit of the library.
    """
    kind = detect_compression(file)
    file.seek(0)
    if kind == "gzip":
        with gzip.GzipFile(fileobj=file, mode="rb") as stream:
            yield cast(io.BufferedReader, stream)
        return
    raw: Any = file
    if kind == "xz":
        raw = _XzStreams(file)
    elif kind is not None:
        import pyarrow

        raw = pyarrow.CompressedInputStream(pyarrow.PythonFile(_Unclosed(file), "r"), kind)
    buffered = io.BufferedReader(raw, BUFFER_BYTES)
    try:
        yield buffered
    finally:
        buffered.detach()


class _DamagedXzError(Exception):
    """The content of an xz file is damaged."""


class _XzStreams(io.RawIOBase):
    """The content of an xz file, which may hold several streams and padding between them.

    `lzma.LZMAFile` has no limit to memory, and takes unreadable bytes behind the first stream for
    the end.

    Args:
        file: the compressed bytes.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._data = b""  # bytes that the decoder has not got yet
        self._decoder: Any = None  # of the current stream; None: between two

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Decompress into `buffer`.

        Raises:
            _DamagedXzError: the content is damaged.
            EOFError: the file ends too early.
        """
        import lzma

        while True:
            if self._decoder is None and not self._begin():
                return 0
            if not self._data and self._decoder.needs_input:
                self._data = self._file.read(BUFFER_BYTES)
                if not self._data:
                    raise EOFError("the file ends inside a stream of xz")
            try:
                content = self._decoder.decompress(self._data, len(buffer))
            except lzma.LZMAError as error:
                raise _DamagedXzError(str(error)) from error
            self._data = b""  # the decoder has all of it
            if self._decoder.eof:
                self._data = self._decoder.unused_data
                self._decoder = None
            if content:
                buffer[: len(content)] = content
                return len(content)

    def _begin(self) -> bool:
        """Begin the next stream; return False at the end of the file."""
        import lzma

        while not (data := self._data.lstrip(b"\0")):  # padding
            self._data = self._file.read(BUFFER_BYTES)
            if not self._data:
                return False
        self._data = data
        self._decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)
        return True


class _Unclosed:
    """A file that pyarrow cannot close."""

    closed = False

    def __init__(self, file: BinaryIO) -> None:
        self.read = file.read

    def close(self) -> None:
        self.closed = True
