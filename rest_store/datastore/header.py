"""The 256-byte headers of the binary files of a datastore (FORMAT.md, sections 1-3)."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

from rest_store.datastore.render import counted
from rest_store.errors import DatastoreFormatError, describe

FORMAT_VERSION = 1
HEADER_SIZE = 256
TAIL_SIZE = 8
KEY_STRIDE = 64
MAX_POSITIONS = 1 << 30
MAX_VOCABULARY = (1 << 24) - 1

_BYTE_ORDER = 0x0A0B0C0D
_TOKENS_MAGIC = b"\x89RSTTOK\n"
_SUFFIXES_MAGIC = b"\x89RSTSUF\n"
_KINDS = {_TOKENS_MAGIC: "a tokens file", _SUFFIXES_MAGIC: "a suffixes file"}
_PREFIX = struct.Struct("<8sIHH")
_TOKENS_FIELDS = struct.Struct("<IIQQQ32s")
_SUFFIXES_FIELDS = struct.Struct("<IIQQQ32s32s")


def token_width(vocabulary_size: int) -> int:
    """Return the bytes of one token: 2 up to 65,535 ids, otherwise 3 (FORMAT.md, section 1)."""
    return 2 if vocabulary_size <= 0xFFFF else 3


def separator_id(vocabulary_size: int) -> int:
    """Return the id that ends each document: the greatest that the token width can hold."""
    return int((1 << (8 * token_width(vocabulary_size))) - 1)


def entry_bits(position_count: int) -> int:
    """Return the bits of a suffix array entry, which can just hold any position of the shard."""
    return max(1, (position_count - 1).bit_length())


@dataclass(frozen=True)
class TokensHeader:
    """The header of a tokens file (FORMAT.md, section 2)."""

    vocabulary_size: int
    position_count: int
    document_count: int
    sha256: bytes

    @property
    def width(self) -> int:
        """Bytes of one symbol."""
        return token_width(self.vocabulary_size)

    @property
    def token_count(self) -> int:
        """Positions that are not separators."""
        return self.position_count - self.document_count

    @property
    def file_size(self) -> int:
        """Bytes of the whole file."""
        return HEADER_SIZE + self.width * self.position_count + TAIL_SIZE

    def pack(self) -> bytes:
        """Return the 256 header bytes."""
        size = self.width * self.position_count
        counts = (self.position_count, self.document_count)
        return _sealed(
            _TOKENS_MAGIC,
            _TOKENS_FIELDS.pack(self.width, self.vocabulary_size, *counts, size, self.sha256),
        )

    @classmethod
    def unpack(cls, raw: bytes, where: Path) -> TokensHeader:
        """Parse the header of the file at `where`.

        Raise the DatastoreError that names its fault.
        """
        _require_intact(raw, _TOKENS_MAGIC, where)
        _, vocabulary, positions, documents, _, sha256 = _TOKENS_FIELDS.unpack_from(
            raw, _PREFIX.size
        )
        require(
            where,
            "vocabulary size",
            vocabulary,
            1 <= vocabulary <= MAX_VOCABULARY,
            f"1..{MAX_VOCABULARY}",
        )
        require(
            where,
            "position count",
            positions,
            1 <= positions <= MAX_POSITIONS,
            f"1..{MAX_POSITIONS}",
        )
        require(
            where,
            "document count",
            documents,
            1 <= documents <= positions // 2,
            f"1..{positions // 2}",
        )
        header = cls(vocabulary, positions, documents, sha256)
        _require_consistent(raw, header.pack(), where)
        return header


@dataclass(frozen=True)
class SuffixesHeader:
    """The header of a suffixes file (FORMAT.md, section 3)."""

    bits: int
    entry_count: int
    sha256: bytes
    tokens_sha256: bytes

    @property
    def key_count(self) -> int:
        """Suffixes whose first eight bytes are stored: every 64th."""
        return -(-self.entry_count // KEY_STRIDE)

    @property
    def payload_size(self) -> int:
        """Bytes of keys and entries."""
        return 8 * self.key_count + 8 * -(-self.entry_count * self.bits // 64)

    @property
    def file_size(self) -> int:
        """Bytes of the whole file."""
        return HEADER_SIZE + self.payload_size + TAIL_SIZE

    def pack(self) -> bytes:
        """Return the 256 header bytes."""
        counts = (self.entry_count, self.key_count, self.payload_size)
        return _sealed(
            _SUFFIXES_MAGIC,
            _SUFFIXES_FIELDS.pack(self.bits, KEY_STRIDE, *counts, self.sha256, self.tokens_sha256),
        )

    @classmethod
    def unpack(cls, raw: bytes, where: Path) -> SuffixesHeader:
        """Parse the header of the file at `where`.

        Raise the DatastoreError that names its fault.
        """
        _require_intact(raw, _SUFFIXES_MAGIC, where)
        bits, _, entries, _, _, sha256, tokens_sha256 = _SUFFIXES_FIELDS.unpack_from(
            raw, _PREFIX.size
        )
        require(where, "entry bits", bits, 1 <= bits <= 30, "1..30")
        require(
            where, "entry count", entries, 1 <= entries < MAX_POSITIONS, f"1..{MAX_POSITIONS - 1}"
        )
        header = cls(bits, entries, sha256, tokens_sha256)
        _require_consistent(raw, header.pack(), where)
        return header


def _sealed(magic: bytes, fields: bytes) -> bytes:
    body = (_PREFIX.pack(magic, _BYTE_ORDER, FORMAT_VERSION, HEADER_SIZE) + fields).ljust(
        HEADER_SIZE - 4, b"\0"
    )
    return body + struct.pack("<I", zlib.crc32(body))


def require(where: Path, what: str, actual: object, holds: bool, expected: object) -> None:
    """Raise DatastoreFormatError unless `holds`."""
    if not holds:
        raise DatastoreFormatError("header", describe(where, what, actual, expected))


def _require_consistent(raw: bytes, packed: bytes, where: Path) -> None:
    """Raise DatastoreFormatError unless `raw` is `packed`, the header made of its fields."""
    differing = next((offset for offset in range(HEADER_SIZE) if raw[offset] != packed[offset]), 0)
    require(
        where, f"byte {differing} of the header", raw[differing], raw == packed, packed[differing]
    )


def _require_intact(raw: bytes, magic: bytes, where: Path) -> None:
    """Check the fields that all headers share, the most informative first."""
    if raw[: len(magic)] != magic:
        actual = _KINDS.get(raw[: len(magic)], "of another kind")
        raise DatastoreFormatError("magic", describe(where, "file", actual, _KINDS[magic]))
    if len(raw) < HEADER_SIZE:
        raise DatastoreFormatError(
            "size", describe(where, "size", counted(len(raw), "byte"), f"at least {HEADER_SIZE}")
        )
    _, order, version, _ = _PREFIX.unpack_from(raw)
    if order == int.from_bytes(_BYTE_ORDER.to_bytes(4, "little"), "big"):
        raise DatastoreFormatError(
            "byte order", describe(where, "byte order", "big-endian", "little-endian")
        )
    require(
        where, "byte order mark", f"{order:#010x}", order == _BYTE_ORDER, f"{_BYTE_ORDER:#010x}"
    )
    if version != FORMAT_VERSION:
        raise DatastoreFormatError(
            "version", describe(where, "format version", version, FORMAT_VERSION)
        )
    crc = zlib.crc32(raw[: HEADER_SIZE - 4])
    (sealed,) = struct.unpack_from("<I", raw, HEADER_SIZE - 4)
    require(where, "header CRC-32", f"{crc:#010x}", crc == sealed, f"{sealed:#010x}")
