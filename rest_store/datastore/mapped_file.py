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
    """A memory-mapped binary file of a datastore. Keeps no descriptor
    open. Thread-safe: nothing changes after opening.

    Attributes:
        path: of the file.
        header: its header, parsed.
        mapping: the mapping, which is open until neither it nor its bytes are referred to.
        raw: all its bytes, uint8, read-only.
        header_type: class of the header.

    If the file is truncated while it is mapped, or its disk fails, `require_readable` raises an
    error. For that, opening a file installs a handler of SIGBUS, also over one that another package
    has installed meanwhile; other signals and faults go on to that.
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
        """Map the file at `path` and validate its structure; reads only its first and last page.

        Raises:
            DatastoreError: the subclass that names what is wrong.
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
        """Raise DatastoreFormatError if the tail, of which no checksum knows, is not zero bytes."""
        tail = self.raw[-TAIL_SIZE:].tobytes()
        if any(tail):
            raise DatastoreFormatError(
                "header", describe(self.path, "tail", tail.hex(), "zero bytes")
            )

    def require_end(self) -> None:
        """Raise an error if the end of the payload is not valid for this kind of file."""

    def require_checksum(self) -> None:
        """Raise DatastoreFormatError unless the payload is the one of the header."""
        found, expected = hashlib.sha256(self.payload.data), self.header.sha256
        if found.digest() != expected:
            raise DatastoreFormatError(
                "checksum",
                describe(self.path, "SHA-256 of the payload", found.hexdigest(), expected.hex()),
            )

    def require_readable(self) -> None:
        """Raise DatastoreUnavailableError if a page could not be
        read: zeros may have been read in its place.
        """
        if self.mapping.lost:
            found = "unreadable (it was truncated, or its disk fails)"
            raise DatastoreUnavailableError(
                describe(self.path, "a page of the file", found, "as it was opened")
            )

    @property
    def payload(self) -> npt.NDArray[np.uint8]:
        """The bytes between header and tail, uint8, without a copy."""
        return self.raw[HEADER_SIZE:-TAIL_SIZE]


@contextmanager
def regular_file(path: str | Path, buffering: int = -1) -> Iterator[BinaryIO]:
    """Open a file to read it.

    Raises OSError, also for a device, or a pipe, which opening would wait for.
    """
    with open(
        path, "rb", buffering, opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)
    ) as file:
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
        found = (
            "absent" if isinstance(error, FileNotFoundError) else f"unreadable ({error.strerror})"
        )
        raise DatastoreFormatError(
            "missing file", describe(path, "file", found, "a file that the manifest names")
        ) from None
