"""A shard: a tokens file and its suffix array (FORMAT.md, sections 2-4 and 6).

`TokensWriter` and `write_suffixes` write the two files; `Shard.open` maps them and validates their
structure.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rest_store.datastore.header import (
    HEADER_SIZE,
    TAIL_SIZE,
    SuffixesHeader,
    TokensHeader,
    entry_bits,
    require,
    separator_id,
    token_width,
)
from rest_store.datastore.mapped_file import MappedFile
from rest_store.errors import DatastoreFormatError, QueryError, describe

Symbols = npt.NDArray[np.unsignedinteger[Any]]


class TokensWriter:
    """Writes a tokens file document by document.

    The header comes last, so that an unfinished file is not valid.

    Args:
        path: file to create.
        vocabulary_size: ids are `0 .. vocabulary_size - 1`.

    Not thread-safe.
    """

    def __init__(self, path: Path, vocabulary_size: int) -> None:
        self.path = path
        self.vocabulary_size = vocabulary_size
        self.position_count = 0
        self.document_count = 0
        self._separator = encode_symbols(np.array([separator_id(vocabulary_size)]), vocabulary_size)
        self._sha256 = hashlib.sha256()
        self._file = path.open("wb")
        self._file.write(bytes(HEADER_SIZE))

    def append(self, ids: npt.NDArray[np.integer[Any]]) -> None:
        """Append one document, `ids` int[n] with n >= 1, and its separator.

        Raises:
            QueryError: an id is outside the vocabulary.
        """
        assert ids.size, "an empty document"
        if int(ids.min()) < 0 or int(ids.max()) >= self.vocabulary_size:
            actual = int(ids.max()) if int(ids.min()) >= 0 else int(ids.min())
            raise QueryError(
                describe(self.path, "token id", actual, f"0..{self.vocabulary_size - 1}")
            )
        for data in (encode_symbols(ids, self.vocabulary_size), self._separator):
            self._file.write(data)
            self._sha256.update(data)
        self.position_count += ids.size + 1
        self.document_count += 1

    def close(self) -> TokensHeader:
        """Write tail and header and flush the file to disk."""
        header = TokensHeader(
            self.vocabulary_size, self.position_count, self.document_count, self._sha256.digest()
        )
        with self._file:
            self._file.write(bytes(TAIL_SIZE))
            self._file.seek(0)
            self._file.write(header.pack())
            self._file.flush()
            os.fsync(self._file.fileno())
        return header

    def abandon(self) -> None:
        """Close the file without writing a header."""
        self._file.close()


def encode_symbols(ids: npt.NDArray[np.integer[Any]], vocabulary_size: int) -> bytes:
    """Return `ids` in the byte order of a tokens file: big-endian, 2 or 3 bytes each."""
    if token_width(vocabulary_size) == 2:
        return ids.astype(">u2").tobytes()
    return ids.astype(">u4").view(np.uint8).reshape(-1, 4)[:, 1:].tobytes()


def decode_symbols(raw: npt.NDArray[np.uint8], width: int) -> Symbols:
    """Return the symbols in bytes of a tokens file, uint16[n] or uint32[n].

    Args:
        raw: uint8[width * n].
        width: bytes of a symbol, 2 or 3.
    """
    if width == 2:
        return raw.view(">u2").astype(np.uint16)
    wide = np.zeros((raw.size // 3, 4), dtype=np.uint8)
    wide[:, 1:] = raw.reshape(-1, 3)
    return wide.view(">u4")[:, 0].astype(np.uint32)


def write_suffixes(
    path: Path,
    tokens: TokensHeader,
    keys: npt.NDArray[np.uint64],
    entries: npt.NDArray[np.uint8],
    *,
    durable: bool = True,
) -> SuffixesHeader:
    """Write a suffixes file.

    Args:
        path: file to create.
        tokens: header of the tokens file.
        keys: the first eight bytes of every 64th suffix, uint64[K].
        entries: the bit string of the suffix array and the tail, uint8.
        durable: whether to flush it to disk.
    """
    little_endian_keys = keys.astype("<u8", copy=False)
    sha256 = hashlib.sha256(little_endian_keys.data)
    sha256.update(entries[:-TAIL_SIZE].data)
    header = SuffixesHeader(
        entry_bits(tokens.position_count), tokens.token_count, sha256.digest(), tokens.sha256
    )
    write_file(path, header.pack(), little_endian_keys, entries, durable=durable)
    return header


def write_file(path: Path, header: bytes, *arrays: npt.NDArray[Any], durable: bool) -> None:
    """Write a file of a shard: its header, and arrays with its payload and tail."""
    with path.open("wb") as file:
        file.write(header)
        for array in arrays:
            file.write(array.data)
        if durable:
            file.flush()
            os.fsync(file.fileno())


class TokensFile(MappedFile):
    """A memory-mapped tokens file."""

    header_type = TokensHeader
    header: TokensHeader

    def require_end(self) -> None:
        """Raise DatastoreFormatError if the last symbol is not a separator."""
        last = self.payload[-self.header.width :].tobytes()
        if last != b"\xff" * self.header.width:
            raise DatastoreFormatError(
                "header", describe(self.path, "last symbol", last.hex(), "a separator")
            )

    def symbols(self, start: int = 0, stop: int | None = None) -> Symbols:
        """Return symbols `start .. stop - 1` as uint16 or uint32 (a copy)."""
        width = self.header.width
        stop = self.header.position_count if stop is None else stop
        return decode_symbols(self.payload[width * start : width * stop], width)


class SuffixesFile(MappedFile):
    """A memory-mapped suffixes file."""

    header_type = SuffixesHeader
    header: SuffixesHeader

    @property
    def key_bytes(self) -> npt.NDArray[np.uint8]:
        """The keys as stored, uint8[8 * K], without a copy."""
        return self.raw[HEADER_SIZE : HEADER_SIZE + 8 * self.header.key_count]

    @property
    def packed(self) -> npt.NDArray[np.uint8]:
        """The bit string of the entries and the tail, uint8, without a copy."""
        return self.raw[HEADER_SIZE + 8 * self.header.key_count :]


@dataclass(frozen=True)
class ShardView:
    """The arrays of one shard, in mapped files or in memory.

    Attributes:
        symbols: uint8[w * P + 8], payload and tail of the tokens file.
        keys: uint8[8 * K], the keys of the suffixes file.
        entries: uint8, its packed entries and tail.
        position_count: positions P.
        entry_count: suffix array entries N.
        key_count: keys K.
        width: bytes of one symbol w, 2 or 3.
        bits: bits of one entry b.
        files: the mapped files; a shard in memory has none.
    """

    symbols: npt.NDArray[np.uint8]
    keys: npt.NDArray[np.uint8]
    entries: npt.NDArray[np.uint8]
    position_count: int
    entry_count: int
    key_count: int
    width: int
    bits: int
    files: tuple[MappedFile, ...] = ()

    def require_readable(self) -> None:
        """Raise DatastoreUnavailableError if a page of the files could not be read."""
        for file in self.files:
            file.require_readable()


@dataclass(frozen=True)
class Shard:
    """A tokens file and the suffixes file that belongs to it."""

    tokens: TokensFile
    suffixes: SuffixesFile

    @classmethod
    def open(cls, directory: Path, name: str) -> Shard:
        """Map `name`.tokens and `name`.suffixes, and verify that they belong together.

        Raises:
            DatastoreError: a file is not valid, or belongs to another shard; the subclass says why.
        """
        tokens = TokensFile.open(directory / f"{name}.tokens")
        suffixes = SuffixesFile.open(directory / f"{name}.suffixes")
        where = suffixes.path
        if suffixes.header.tokens_sha256 != tokens.header.sha256:
            actual = suffixes.header.tokens_sha256.hex()
            expected = tokens.header.sha256.hex()
            raise DatastoreFormatError(
                "mixed builds", describe(where, "checksum of its tokens", actual, expected)
            )
        bits = entry_bits(tokens.header.position_count)
        require(where, "entry bits", suffixes.header.bits, suffixes.header.bits == bits, bits)
        count = tokens.header.token_count
        require(
            where,
            "entry count",
            suffixes.header.entry_count,
            suffixes.header.entry_count == count,
            count,
        )
        return cls(tokens, suffixes)

    def require_checksums(self) -> None:
        """Raise DatastoreFormatError unless the payloads have the checksums of the headers."""
        self.tokens.require_checksum()
        self.suffixes.require_checksum()

    @property
    def view(self) -> ShardView:
        """The shard as the kernel reads it, without a copy."""
        return ShardView(
            symbols=self.tokens.raw[HEADER_SIZE:],
            keys=self.suffixes.key_bytes,
            entries=self.suffixes.packed,
            position_count=self.tokens.header.position_count,
            entry_count=self.suffixes.header.entry_count,
            key_count=self.suffixes.header.key_count,
            width=self.tokens.header.width,
            bits=self.suffixes.header.bits,
            files=(self.tokens, self.suffixes),
        )

    def expect_scattered_reads(self) -> None:
        """Advise the system not to read ahead, for a shard that is larger than the memory."""
        for file in (self.tokens, self.suffixes):
            file.mapping.expect_scattered_reads()

    def require_vocabulary(self, vocabulary_size: int) -> None:
        """Raise DatastoreFormatError if the shard was not written for `vocabulary_size` ids."""
        actual = self.tokens.header.vocabulary_size
        if actual != vocabulary_size:
            raise DatastoreFormatError(
                "mixed builds",
                describe(self.tokens.path, "vocabulary size", actual, vocabulary_size),
            )
