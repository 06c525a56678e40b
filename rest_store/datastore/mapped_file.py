"""A binary file of a datastore, opened by memory-mapping (FORMAT.md, sections 2, 3 and 6)."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from rest_store.datastore.header import HEADER_SIZE, TAIL_SIZE
from rest_store.errors import MissingShardError, ShardHeaderError, ShardSizeError, describe

Header = TypeVar("Header")  # that of a kind of file
File = TypeVar("File", bound="MappedFile[Any]")


class MappedFile(Generic[Header]):
    """A binary file of a datastore, mapped. Thread-safe: nothing changes after opening.

    Attributes:
        path: where it lies.
        header: its first 256 bytes, read.
        mapped: the mapping.
        raw: all its bytes, uint8.
        header_type: what reads the header.
    """

    header_type: ClassVar[Any]

    def __init__(self, path: Path, header: Header, mapped: mmap.mmap) -> None:
        self.path = path
        self.header = header
        self.mapped = mapped
        self.raw: npt.NDArray[np.uint8] = np.frombuffer(mapped, dtype=np.uint8)

    @classmethod
    def open(cls: type[File], path: Path) -> File:
        """Map the file at `path` and validate its structure, reading only its first and last page.

        Raises:
            DatastoreError: the subclass that names what is wrong.
        """
        mapped = _map(path)
        header = cls.header_type.unpack(mapped[:HEADER_SIZE], path)
        _require_size(mapped, header.file_size, path)
        file = cls(path, header, mapped)
        file.require_end()
        return file

    def require_end(self) -> None:
        """Raise the error that names what is wrong where the payload ends, if that can be told."""

    @property
    def payload(self) -> npt.NDArray[np.uint8]:
        """What lies between header and tail, uint8, straight from the mapping."""
        return self.raw[HEADER_SIZE:-TAIL_SIZE]

    @property
    def payload_and_tail(self) -> npt.NDArray[np.uint8]:
        """The same with the tail."""
        return self.raw[HEADER_SIZE:]


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise ShardSizeError(describe(path, "size", "0 bytes", f"at least {HEADER_SIZE}"))
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise MissingShardError(describe(path, "file", "absent", "a file that the manifest names")) from None
    except OSError as error:
        found = f"unreadable ({error.strerror})"
        raise MissingShardError(describe(path, "file", found, "a file that the manifest names")) from None


def _require_size(mapped: mmap.mmap, expected: int, where: Path) -> None:
    if len(mapped) != expected:
        raise ShardSizeError(describe(where, "size", f"{len(mapped)} bytes", f"{expected} bytes"))
    if any(mapped[-TAIL_SIZE:]):
        raise ShardHeaderError(describe(where, "tail", mapped[-TAIL_SIZE:].hex(), "zero bytes"))
