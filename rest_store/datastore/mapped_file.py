"""A memory-mapped binary file of a datastore (FORMAT.md, sections 2, 3 and 6)."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from rest_store.datastore.header import HEADER_SIZE, TAIL_SIZE, SuffixesHeader, TokensHeader
from rest_store.datastore.kernel import native_kernel
from rest_store.errors import DatastoreFormatError, DatastoreUnavailableError, describe

if TYPE_CHECKING:
    from rest_store._kernel import FileMapping


File = TypeVar("File", bound="MappedFile")


class MappedFile:
    """A memory-mapped binary file of a datastore.

    It keeps no descriptor open. If the file is truncated while it is mapped, or its disk fails,
    `require_readable` raises an error. To notice this, opening a file installs a handler of SIGBUS,
    which passes other signals and faults on to the handler of another package.

    Attributes:
        path: of the file.
        header: the parsed header.
        mapping: the mapping, which is open as long as it or its bytes are referred to.
        raw: all bytes, uint8, read-only.
        header_type: class of the header.

    Thread-safe: nothing changes after opening.
    """

    header_type: ClassVar[type[TokensHeader | SuffixesHeader]]
    header: Any

    def __init__(
        self, path: Path, header: TokensHeader | SuffixesHeader, mapping: FileMapping
    ) -> None:
        self.path = path
        self.header = header
        self.mapping = mapping
        self.raw = mapping.bytes

    @classmethod
    def open(cls: type[File], path: Path) -> File:
        """Map the file at `path` and validate its structure, from its first and last page.

        Raises:
            DatastoreError: the file is not valid; the subclass says why.
            NativeKernelError: the kernel was not compiled.
        """
        mapping = _map(path)
        header = cls.header_type.unpack(mapping.bytes[:HEADER_SIZE].tobytes(), path)
        file = cls(path, header, mapping)
        if file.raw.size != header.file_size:
            raise DatastoreFormatError(
                "size",
                describe(path, "size", f"{file.raw.size} bytes", f"{header.file_size} bytes"),
            )
        file.require_tail()
        file.require_end()
        return file

    def require_tail(self) -> None:
        """Raise DatastoreFormatError unless the tail, which no checksum covers, is zero bytes."""
        tail = self.raw[-TAIL_SIZE:].tobytes()
        if any(tail):
            raise DatastoreFormatError(
                "header", describe(self.path, "tail", tail.hex(), "zero bytes")
            )

    def require_end(self) -> None:
        """Raise an error if the end of the payload is not valid for this kind of file."""

    def require_checksum(self) -> None:
        """Raise DatastoreFormatError unless the payload has the checksum of the header."""
        actual = hashlib.sha256(self.payload.data)
        expected = self.header.sha256
        if actual.digest() != expected:
            raise DatastoreFormatError(
                "checksum",
                describe(self.path, "SHA-256 of the payload", actual.hexdigest(), expected.hex()),
            )

    def require_readable(self) -> None:
        """Raise DatastoreUnavailableError if zeros were read in place of an unreadable page."""
        if self.mapping.lost:
            actual = "unreadable (it was truncated, or its disk fails)"
            raise DatastoreUnavailableError(
                describe(self.path, "a page of the file", actual, "as it was opened")
            )

    @property
    def payload(self) -> npt.NDArray[np.uint8]:
        """The bytes between header and tail, uint8, without a copy."""
        return self.raw[HEADER_SIZE:-TAIL_SIZE]


@contextmanager
def regular_file(path: str | Path, buffering: int = -1) -> Iterator[BinaryIO]:
    """Open a regular file to read it.

    Raises:
        OSError: it cannot be opened, or is no regular file. Of a pipe this is raised at once.
    """

    def open_at_once(path: str, flags: int) -> int:
        return os.open(path, flags | os.O_NONBLOCK)

    with open(path, "rb", buffering, opener=open_at_once) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        yield file


def _map(path: Path) -> FileMapping:
    kernel = native_kernel()
    try:
        with regular_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                raise DatastoreFormatError(
                    "size", describe(path, "size", "0 bytes", f"at least {HEADER_SIZE}")
                )
            mapping: FileMapping = kernel.FileMapping(file.fileno(), size)
            return mapping
    except OSError as error:
        actual = f"unreadable ({error.strerror})"
        if isinstance(error, FileNotFoundError):
            actual = "absent"
        raise DatastoreFormatError(
            "missing file", describe(path, "file", actual, "a file that the manifest names")
        ) from None
