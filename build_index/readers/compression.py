"""Files opened for reading, decompressed where they are gzip (RFC 1952) or zstd (RFC 8878), told by content.

A compressed file may consist of several members (frames), as `cat a.gz b.gz` makes them. Truncated and damaged ones
are errors that name the file; nothing is cut short in silence.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, cast

from build_index.packages import import_package
from rest_store.errors import CorpusError, CorpusFormatError, CorpusNotFoundError, describe

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_COMPRESSED_BYTES = 1 << 16  # fed to a decoder at once; limits what one step can yield
_BUFFER_BYTES = 1 << 20
_LARGEST_ZSTD_WINDOW = 1 << 31


class _Decoder(Protocol):
    """What `zlib.decompressobj` and `zstandard` decompression objects share: one member of a file."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, /) -> bytes: ...


def compression_of(head: bytes) -> str | None:
    """Return `"gzip"`, `"zstd"` or None for the compression that the first four bytes of a file tell."""
    if head.startswith(GZIP_MAGIC):
        return "gzip"
    return "zstd" if head.startswith(ZSTD_MAGIC) else None


def is_decodable(head: bytes, where: str) -> bool:
    """Whether a file that begins like a compressed one is one, as far as its beginning shows.

    Args:
        head: the beginning of the file, with the magic bytes.
        where: what messages call the file.

    Returns:
        False when the beginning is damaged; being cut off does no harm.
    """
    kind = compression_of(head)
    try:
        return kind is not None and _decoders(kind, where)().decompress(head) is not None
    except CorpusError:
        raise
    except Exception:  # zlib.error, ZstdError: no common base
        return False


def open_file(path: Path, where: str) -> BinaryIO:
    """Open a file as it is, without decompression.

    Args:
        path: the file.
        where: what messages call it.

    Returns:
        An unbuffered binary file.

    Raises:
        CorpusNotFoundError: it is absent.
        CorpusError: it cannot be opened.
    """
    try:
        return path.open("rb", buffering=0)
    except OSError as error:
        raise read_error(where, error) from error


def open_stream(path: Path, where: str, count: Callable[[int], None] | None = None) -> io.BufferedReader:
    """Open a file for reading its content, decompressed.

    Args:
        path: the file.
        where: what messages call it.
        count: called with the number of bytes each time some are read from disk.

    Returns:
        A binary stream. While it is read it may raise CorpusFormatError (truncated or damaged) and CorpusError (not
        readable). Not to be shared between threads.

    Raises:
        CorpusNotFoundError: the file is absent.
        CorpusError: the file cannot be opened, or zstandard is not installed.
    """
    file = _CountedFile(open_file(path, where), where, count or (lambda _: None))
    try:
        head = file.peek(4)
        kind = compression_of(head)
        raw = file if kind is None else _DecompressedFile(file, _decoders(kind, where), kind, where)
    except BaseException:
        file.close()
        raise
    return io.BufferedReader(raw, _BUFFER_BYTES)


def read_error(where: str, error: OSError) -> CorpusError:
    """Return our error for one of the operating system's, raised while opening or reading `where`."""
    if isinstance(error, FileNotFoundError):
        return CorpusNotFoundError(describe(where, "corpus", "absent", "a file, a directory or hf://owner/name"))
    return CorpusError(describe(where, "corpus", f"not readable ({error.strerror or error})", "a readable file"))


class _CountedFile(io.RawIOBase):
    """A file that counts what is read from it and gives our errors."""

    def __init__(self, file: BinaryIO, where: str, count: Callable[[int], None]) -> None:
        self._file = file
        self._where = where
        self._count = count
        self._head = b""

    def peek(self, size: int) -> bytes:
        """Return the first bytes without consuming them."""
        self._head = self._read(size)
        return self._head

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        data = self._head or self._read(len(view))
        self._head = data[len(view) :]
        size = min(len(data), len(view))
        view[:size] = data[:size]
        self._count(size)
        return size

    def close(self) -> None:
        self._file.close()
        super().close()

    def _read(self, size: int) -> bytes:
        try:
            return self._file.read(size)
        except OSError as error:
            raise read_error(self._where, error) from error


class _DecompressedFile(io.RawIOBase):
    """The content of a compressed file."""

    def __init__(self, file: io.RawIOBase, decoders: Callable[[], _Decoder], kind: str, where: str) -> None:
        self._file = file
        self._new_decoder = decoders
        self._decoder: _Decoder | None = None  # None: between members
        self._kind = kind
        self._where = where
        self._pending = b""  # compressed, not yet decoded
        self._output = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        while not self._output:
            data = self._pending or cast("bytes", self._file.read(_COMPRESSED_BYTES))
            self._pending = b""
            if not data:
                if self._decoder is None:
                    return 0
                raise CorpusFormatError(describe(self._where, f"{self._kind} file", "truncated", "a complete one"))
            self._output = memoryview(self._decoded(data))
        size = min(len(self._output), len(view))
        view[:size] = self._output[:size]
        self._output = self._output[size:]
        return size

    def close(self) -> None:
        self._file.close()
        super().close()

    def _decoded(self, data: bytes) -> bytes:
        if self._decoder is None:
            if self._kind == "gzip" and not (data := data.lstrip(b"\0")):
                return b""  # padding after the last member, as tape archives have it
            self._decoder = self._new_decoder()
        try:
            output = self._decoder.decompress(data)
        except Exception as error:  # zlib.error, ZstdError: no common base
            found = f"damaged ({error})"
            raise CorpusFormatError(describe(self._where, f"{self._kind} file", found, "an intact one")) from error
        if self._decoder.eof:
            self._pending = self._decoder.unused_data
            self._decoder = None
        return output


def _decoders(kind: str, where: str) -> Callable[[], _Decoder]:
    if kind == "gzip":
        return lambda: zlib.decompressobj(wbits=31)
    zstandard: Any = import_package("zstandard", where, CorpusError)
    decompressor = zstandard.ZstdDecompressor(max_window_size=_LARGEST_ZSTD_WINDOW)
    return lambda: cast("_Decoder", decompressor.decompressobj())
