"""The 256-byte headers of the binary files of a datastore (FORMAT.md, sections 1-3)."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

from rest_store.datastore.render import counted
from rest_store.errors import (
    ByteOrderError,
    FormatVersionError,
    NotAShardError,
    ShardHeaderError,
    ShardSizeError,
    describe,
)

FORMAT_VERSION = 1
HEADER_SIZE = 256
TAIL_SIZE = 8
KEY_STRIDE = 64
MAX_POSITIONS = 1 << 30
MAX_VOCABULARY = (1 << 24) - 1

_BYTE_ORDER = 0x0A0B0C0D
_TOKENS_MAGIC = b"\x89RSTTOK\n"
_SUFFIXES_MAGIC = b"\x89RSTSUF\n"
_PREFIX = struct.Struct("<8sIHH")
_TOKENS_FIELDS = struct.Struct("<IIQQQ32s")
_SUFFIXES_FIELDS = struct.Struct("<IIQQQ32s32s")


def token_width(vocabulary_size: int) -> int:
    """Return the bytes that one token takes: 2 up to 65,535 ids, otherwise 3 (FORMAT.md, section 1)."""
    return 2 if vocabulary_size <= 0xFFFF else 3


def separator_id(vocabulary_size: int) -> int:
    """Return the id that ends each document: the greatest that the token width can hold."""
    return int((1 << (8 * token_width(vocabulary_size))) - 1)


def entry_bits(position_count: int) -> int:
    """Return the bits of one suffix array entry: the fewest that can hold any position of the shard."""
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
        fields = _TOKENS_FIELDS.pack(
            self.width,
            self.vocabulary_size,
            self.position_count,
            self.document_count,
            self.width * self.position_count,
            self.sha256,
        )
        return _sealed(_TOKENS_MAGIC, fields)

    @classmethod
    def unpack(cls, raw: bytes, where: Path) -> TokensHeader:
        """Parse the header of the file at `where`; raise the DatastoreError that names what is wrong with it."""
        _require_prefix(raw, _TOKENS_MAGIC, where)
        width, vocabulary, positions, documents, size, sha256 = _TOKENS_FIELDS.unpack_from(raw, _PREFIX.size)
        header = cls(vocabulary, positions, documents, sha256)
        require(where, "vocabulary size", vocabulary, 1 <= vocabulary <= MAX_VOCABULARY, f"1..{MAX_VOCABULARY}")
        require(where, "token width", width, width == header.width, header.width)
        require(where, "position count", positions, 1 <= positions <= MAX_POSITIONS, f"1..{MAX_POSITIONS}")
        require(where, "document count", documents, 1 <= documents <= positions // 2, f"1..{positions // 2}")
        require(where, "payload size", size, size == width * positions, width * positions)
        _require_reserved(raw, _TOKENS_FIELDS, where)
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
        fields = _SUFFIXES_FIELDS.pack(
            self.bits,
            KEY_STRIDE,
            self.entry_count,
            self.key_count,
            self.payload_size,
            self.sha256,
            self.tokens_sha256,
        )
        return _sealed(_SUFFIXES_MAGIC, fields)

    @classmethod
    def unpack(cls, raw: bytes, where: Path) -> SuffixesHeader:
        """Parse the header of the file at `where`; raise the DatastoreError that names what is wrong with it."""
        _require_prefix(raw, _SUFFIXES_MAGIC, where)
        bits, stride, entries, keys, size, sha256, tokens_sha256 = _SUFFIXES_FIELDS.unpack_from(raw, _PREFIX.size)
        header = cls(bits, entries, sha256, tokens_sha256)
        require(where, "entry bits", bits, 1 <= bits <= 30, "1..30")
        require(where, "key stride", stride, stride == KEY_STRIDE, KEY_STRIDE)
        require(where, "entry count", entries, 1 <= entries < MAX_POSITIONS, f"1..{MAX_POSITIONS - 1}")
        require(where, "key count", keys, keys == header.key_count, header.key_count)
        require(where, "payload size", size, size == header.payload_size, header.payload_size)
        _require_reserved(raw, _SUFFIXES_FIELDS, where)
        return header


def _sealed(magic: bytes, fields: bytes) -> bytes:
    body = (_PREFIX.pack(magic, _BYTE_ORDER, FORMAT_VERSION, HEADER_SIZE) + fields).ljust(HEADER_SIZE - 4, b"\0")
    return body + struct.pack("<I", zlib.crc32(body))


def require(where: Path, what: str, found: object, holds: bool, expected: object) -> None:
    """Raise ShardHeaderError unless `holds`."""
    if not holds:
        raise ShardHeaderError(describe(where, what, found, expected))


def _require_reserved(raw: bytes, fields: struct.Struct, where: Path) -> None:
    reserved = raw[_PREFIX.size + fields.size : HEADER_SIZE - 4]
    require(where, "reserved bytes", reserved.strip(b"\0").hex(), not any(reserved), "zero bytes")


def _require_prefix(raw: bytes, magic: bytes, where: Path) -> None:
    """Check the fields that all headers share, the most informative first."""
    if raw[: len(magic)] != magic:
        raise NotAShardError(describe(where, "magic", raw[: len(magic)], magic))
    if len(raw) < HEADER_SIZE:
        raise ShardSizeError(describe(where, "size", counted(len(raw), "byte"), f"at least {HEADER_SIZE}"))
    _, order, version, size = _PREFIX.unpack_from(raw)
    if order == int.from_bytes(_BYTE_ORDER.to_bytes(4, "little"), "big"):
        raise ByteOrderError(describe(where, "byte order", "big-endian", "little-endian"))
    require(where, "byte order mark", f"{order:#010x}", order == _BYTE_ORDER, f"{_BYTE_ORDER:#010x}")
    if version != FORMAT_VERSION:
        raise FormatVersionError(describe(where, "format version", version, FORMAT_VERSION))
    crc = zlib.crc32(raw[: HEADER_SIZE - 4])
    (sealed,) = struct.unpack_from("<I", raw, HEADER_SIZE - 4)
    require(where, "header CRC-32", f"{crc:#010x}", crc == sealed, f"{sealed:#010x}")
    require(where, "header size", size, size == HEADER_SIZE, HEADER_SIZE)
