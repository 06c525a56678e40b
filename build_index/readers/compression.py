"""Files opened for reading, decompressed where their content is gzip (RFC 1952) or zstd (RFC 8878).

A compressed file may consist of several members (frames), as `cat a.gz b.gz` makes them. A truncated or damaged file
is an error that names the file.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from build_index.errors import build_packages, read_error
from rest_store.errors import CorpusError, CorpusFormatError, describe

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_CHUNK_BYTES = 1 << 16  # read from disk at once; limits what a decoder yields in one step
_BUFFER_BYTES = 1 << 20
_LARGEST_ZSTD_WINDOW = 1 << 31


def compression_of(head: bytes) -> str | None:
    """Return `"gzip"`, `"zstd"` or None, by the first four bytes of a file."""
    if head.startswith(GZIP_MAGIC):
        return "gzip"
    return "zstd" if head.startswith(ZSTD_MAGIC) else None


def is_decodable(head: bytes, where: str) -> bool:
    """Whether a beginning of a file that starts with magic bytes can be decompressed; it may be cut anywhere.

    Raises:
        CorpusError: zstandard is not installed.
    """
    kind = compression_of(head)
    try:
        return kind is not None and _decoders(kind, where)().decompress(head) is not None
    except CorpusError:
        raise
    except Exception:  # zlib.error and ZstdError have no common base
        return False


def open_file(path: Path, where: str) -> BinaryIO:
    """Open a file as it is, unbuffered and without decompression.

    Args:
        path: the file.
        where: its name in messages.

    Raises:
        CorpusNotFoundError: the file does not exist.
        CorpusError: it cannot be opened.
    """
    try:
        return path.open("rb", buffering=0)
    except OSError as error:
        raise read_error(where, error) from error


def open_stream(path: Path, where: str, count: Callable[[int], None] = lambda number: None) -> io.BufferedReader:
    """Open a file for reading its content, decompressed.

    Args:
        path: the file.
        where: its name in messages.
        count: called with the number of bytes of each read from disk.

    Returns:
        A binary stream. Reading it may raise CorpusFormatError (truncated or damaged) and CorpusError (not readable).
        Not thread-safe.

    Raises:
        CorpusNotFoundError: the file does not exist.
        CorpusError: the file cannot be opened, or zstandard is not installed.
    """
    file = open_file(path, where)
    try:
        chunks: Iterator[bytes] = _chunks(file, where, count)
        head = next(chunks, b"")
        kind = compression_of(head)
        chunks = chain([head], chunks)
        if kind is not None:
            chunks = _decompressed(chunks, _decoders(kind, where), kind, where)
    except BaseException:
        file.close()
        raise
    return io.BufferedReader(_ChunkStream(file, chunks), _BUFFER_BYTES)


class _ChunkStream(io.RawIOBase):
    """The chunks of a file as a stream; closing it closes the file."""

    def __init__(self, file: BinaryIO, chunks: Iterator[bytes]) -> None:
        self._file = file
        self._chunks = chunks
        self._chunk = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        while not self._chunk:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._chunk = memoryview(chunk)
        size = min(len(self._chunk), len(view))
        view[:size] = self._chunk[:size]
        self._chunk = self._chunk[size:]
        return size

    def close(self) -> None:
        self._file.close()
        super().close()


def _chunks(file: BinaryIO, where: str, count: Callable[[int], None]) -> Iterator[bytes]:
    while True:
        try:
            data = file.read(_CHUNK_BYTES)
        except OSError as error:
            raise read_error(where, error) from error
        if not data:
            return
        count(len(data))
        yield data


def _decompressed(chunks: Iterator[bytes], new_decoder: Callable[[], Any], kind: str, where: str) -> Iterator[bytes]:
    decoder: Any = None  # None: between members
    for data in chunks:
        while data:
            if decoder is None:
                if kind == "gzip" and not (data := data.lstrip(b"\0")):
                    break  # padding after the last member, as tape archives have it
                decoder = new_decoder()
            try:
                output = decoder.decompress(data)
            except Exception as error:  # zlib.error and ZstdError have no common base
                problem = f"damaged ({error})"
                raise CorpusFormatError(describe(where, f"{kind} file", problem, "an intact one")) from error
            data = b""
            if decoder.eof:
                data, decoder = decoder.unused_data, None
            yield output
    if decoder is not None:
        raise CorpusFormatError(describe(where, f"{kind} file", "truncated", "a complete one"))


def _decoders(kind: str, where: str) -> Callable[[], Any]:
    """Return what makes a decoder for one member: an object with `decompress`, `eof` and `unused_data`, as of zlib."""
    if kind == "gzip":
        return lambda: zlib.decompressobj(wbits=31)
    with build_packages(where, CorpusError):
        import zstandard
    decompressor = zstandard.ZstdDecompressor(max_window_size=_LARGEST_ZSTD_WINDOW)
    return lambda: decompressor.decompressobj()
