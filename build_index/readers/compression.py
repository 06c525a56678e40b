"""Files opened for reading, decompressed where their content is gzip (RFC 1952) or zstd (RFC 8878).

A compressed file may consist of several members (frames), as `cat a.gz b.gz` makes them. A truncated or damaged file
is an error that names the file. Decompression takes bounded memory, however far the content expands.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, BinaryIO

from build_index.errors import build_packages, read_error
from build_index.readers.remote_file import FilePath
from build_index.size import size_text
from rest_store.errors import CorpusError, CorpusFormatError, MemoryBudgetError, describe

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
LARGEST_ZSTD_WINDOW = 1 << 31  # more is no valid limit of a decoder
_CHUNK_BYTES = 1 << 16  # read from disk at once
_BUFFER_BYTES = 1 << 20
_ZSTD_HEADER_BYTES = 18  # at most
# A decoder is fed so little at once that it yields about 8 MiB at most: deflate makes 1,032 bytes of one, zstd a block
# of 128 KiB of four (RFC 8878, section 3.1.1.2).
_STEP_BYTES = {"gzip": 1 << 11, "zstd": 1 << 8}


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
        return kind is not None and _decoders(kind, where, LARGEST_ZSTD_WINDOW)().decompress(head) is not None
    except CorpusError:
        raise
    except Exception:  # zlib.error and ZstdError have no common base
        return False


def open_file(path: FilePath, where: str) -> BinaryIO:
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
        if isinstance(error, CorpusError):
            raise
        raise read_error(where, error) from error


def open_stream(
    path: FilePath,
    where: str,
    count: Callable[[int], None] = lambda number: None,
    largest_window: int = LARGEST_ZSTD_WINDOW,
) -> io.BufferedReader:
    """Open a file for reading its content, decompressed.

    Args:
        path: the file.
        where: its name in messages.
        count: called with the number of bytes of each read from disk.
        largest_window: most bytes that a zstd decoder may keep; as much memory is taken if a file needs it.

    Returns:
        A binary stream. Reading it may raise CorpusFormatError (truncated or damaged), CorpusError (not readable) and
        MemoryBudgetError (it needs a larger window). Not thread-safe.

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
            chunks = _decompressed(chunks, kind, where, largest_window)
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
            if isinstance(error, CorpusError):
                raise
            raise read_error(where, error) from error
        if not data:
            return
        count(len(data))
        yield data


def _decompressed(chunks: Iterator[bytes], kind: str, where: str, largest_window: int) -> Iterator[bytes]:
    new_decoder = _decoders(kind, where, largest_window)
    decoder: Any = None  # None: between members
    for chunk in chunks:
        place = 0
        while place < len(chunk):
            if decoder is None:
                if kind == "gzip" and chunk[place] == 0:
                    place += 1  # padding after the last member, as tape archives have it
                    continue
                if kind == "zstd":
                    _require_window(chunk[place : place + _ZSTD_HEADER_BYTES], where, largest_window)
                decoder = new_decoder()
            step = chunk[place : place + _STEP_BYTES[kind]]
            try:
                output = decoder.decompress(step)
            except Exception as error:  # zlib.error and ZstdError have no common base
                problem = f"damaged ({error})"
                raise CorpusFormatError(describe(where, f"{kind} file", problem, "an intact one")) from error
            place += len(step)
            if decoder.eof:
                place -= len(decoder.unused_data)
                decoder = None
            yield output
    if decoder is not None:
        raise CorpusFormatError(describe(where, f"{kind} file", "truncated", "a complete one"))


def _require_window(head: bytes, where: str, largest: int) -> None:
    """Refuse a zstd frame that needs a larger window, by its header."""
    import zstandard

    try:
        window = zstandard.get_frame_parameters(head).window_size
    except zstandard.ZstdError:
        return  # cut by the end of a chunk, or damaged: left to the decoder, which has the same limit
    if window > largest:
        expected = f"at most {size_text(largest)}, as --memory allows beside the shards (--memory, --shard-tokens)"
        raise MemoryBudgetError(describe(where, "the window of the zstd file", size_text(window), expected))


def _decoders(kind: str, where: str, largest_window: int) -> Callable[[], Any]:
    """Return the factory of decoders for one member: objects with `decompress`, `eof` and `unused_data`, as in zlib."""
    if kind == "gzip":
        return lambda: zlib.decompressobj(wbits=31)
    with build_packages(where, CorpusError):
        import zstandard
    decompressor = zstandard.ZstdDecompressor(max_window_size=min(largest_window, LARGEST_ZSTD_WINDOW))
    return lambda: decompressor.decompressobj()
