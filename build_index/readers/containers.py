"""Archives: the files in tar and zip, one after another, each as a file of its own."""

from __future__ import annotations

import errno
import io
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO, cast

from build_index.documents import well_formed
from rest_store.errors import CorpusFormatError, RestStoreError, describe, first_line

ZIP_MAGICS = (b"PK\x03\x04", b"PK\x05\x06")
_TAR_MAGIC = b"ustar"
_TAR_OFFSET = 257
# Errors that the packages raise for damage.
_DAMAGE = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    NotImplementedError,
    OSError,
    OverflowError,
    ValueError,
)
_HELD_BYTES = 8 << 20  # of a file in memory; larger ones go to disk
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Member:
    """A file in an archive.

    Attributes:
        name: its path, with forward slashes and without a slash or `..` that would lead out of the
            archive.
        size: bytes.
        content: its bytes, which can be read until the next member is taken; None: it is encrypted.
    """

    name: str
    size: int
    content: BinaryIO | None


def is_tar(head: bytes) -> bool:
    """Return whether a file begins as a tar archive does (POSIX.1-1988 and later)."""
    return head[_TAR_OFFSET : _TAR_OFFSET + len(_TAR_MAGIC)] == _TAR_MAGIC


def tar_members(stream: io.BufferedReader, where: str) -> Iterator[Member]:
    """Yield the regular files of a tar archive in order; links and devices are passed over.

    Args:
        stream: its content, read once from its beginning.
        where: its name in messages.

    Raises:
        CorpusFormatError: it is damaged or truncated.
    """
    with (
        archive_errors(where),
        tarfile.open(fileobj=stream, mode="r|", errors="surrogateescape") as archive,
    ):
        while (entry := archive.next()) is not None:
            archive.members = []  # type: ignore[attr-defined]  # tarfile would keep all members
            if entry.isreg():
                yield Member(
                    _relative(entry.name), entry.size, cast(BinaryIO, archive.extractfile(entry))
                )
        # `next` takes a damaged header for the end. Behind the true end there are only zeros.
        while data := stream.read(_CHUNK):
            if data.strip(b"\0"):
                raise tarfile.ReadError("a header is damaged")


def zip_members(file: BinaryIO, where: str) -> Iterator[Member]:
    """Yield the files of a zip archive in the order of its directory.

    Raises:
        CorpusFormatError: it is damaged or truncated, or packed in a way that Python does not know.
    """
    with archive_errors(where), zipfile.ZipFile(file) as archive:
        for entry in archive.infolist():
            if entry.is_dir():
                continue
            if entry.flag_bits & 1:
                yield Member(_relative(entry.filename), entry.file_size, None)
                continue
            with archive.open(entry) as content:
                yield Member(_relative(entry.filename), entry.file_size, cast(BinaryIO, content))


@contextmanager
def seekable(head: bytes, content: BinaryIO, where: str) -> Iterator[BinaryIO]:
    """Yield a file of an archive as a seekable file.

    Args:
        head: its first bytes.
        content: the rest.
        where: its name in messages.

    Raises:
        CorpusFormatError: it is damaged.
    """
    held = bytearray(head)
    with archive_errors(where):
        while len(held) <= _HELD_BYTES and (data := content.read(_CHUNK)):
            held += data
    if len(held) <= _HELD_BYTES:
        yield io.BytesIO(held)
        return
    # `SpooledTemporaryFile` is no `IOBase` before Python 3.11.
    with tempfile.TemporaryFile() as file:
        file.write(held)
        with archive_errors(where):
            while data := content.read(_CHUNK):
                file.write(data)
        file.seek(0)
        yield cast(BinaryIO, file)


def _relative(name: str) -> str:
    names = well_formed(name).replace("\\", "/").split("/")
    return "/".join(name for name in names if name not in ("", ".", ".."))


@contextmanager
def archive_errors(where: str) -> Iterator[None]:
    """Turn errors of reading an archive into a CorpusFormatError that names it or a file in it."""
    try:
        yield
    except RestStoreError:
        raise
    except _DAMAGE as error:
        # EINVAL comes from seeking to an impossible position of a damaged archive.
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        problem = f"damaged or truncated ({first_line(error)})"
        raise CorpusFormatError(describe(where, "archive", problem, "intact")) from error
