"""Drafts of matches with many occurrences, made when a datastore is built and read in place (FORMAT.md, section 8).

Such drafts are few, come up all the time, and cost the most: thousands of suffixes have to be looked at for one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from rest_store.datastore.header import HEADER_SIZE, TAIL_SIZE, PreparedHeader, token_width
from rest_store.datastore.mapped_file import MappedFile
from rest_store.datastore.shard import Shard, decode_symbols, encode_symbols, seal
from rest_store.datastore.tree import SuffixMatch, TokenTree
from rest_store.errors import MixedBuildError, PreparedDraftError, describe

FILE_NAME = "prepared.drafts"
MAX_COUNT = (1 << 40) - 1  # occurrences that a node can have
_COUNT_SIZE = 5  # bytes of them
_HEAD_SIZE = 10  # match length, number of nodes, occurrences of the match
_FACTOR = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def pack_draft(tokens: Sequence[int], tree: TokenTree, vocabulary_size: int) -> bytes:
    """Return the bytes of one draft: `tree`, of at most 254 nodes, is that of the match of `tokens`."""
    width = token_width(vocabulary_size)
    nodes = np.empty((len(tree), width + 1 + _COUNT_SIZE), dtype=np.uint8)
    nodes[:, :width] = np.frombuffer(encode_symbols(tree.tokens, vocabulary_size), np.uint8).reshape(-1, width)
    nodes[:, width] = tree.parents + 1
    nodes[:, width + 1 :] = tree.counts.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :_COUNT_SIZE]
    head = bytes([len(tokens), len(tree)]) + tree.match.count.to_bytes(8, "little")
    return head + encode_symbols(np.array(tokens), vocabulary_size) + nodes.tobytes()


def write_prepared(
    path: Path,
    shards: Iterable[Shard],
    drafts: Sequence[tuple[Sequence[int], bytes]],
    *,
    vocabulary_size: int,
    max_nodes: int,
    max_depth: int,
) -> PreparedHeader:
    """Write the file of prepared drafts.

    Args:
        path: file to create.
        shards: of which they are drafts, in the order of the manifest.
        drafts: at least one; tokens of a match, and what `pack_draft` made of its tree. No match twice.
        vocabulary_size: ids are `0 .. vocabulary_size - 1`.
        max_nodes: that trees were cut to.
        max_depth: that trees were cut to.
    """
    bits = max(1, (2 * len(drafts) - 1).bit_length())
    placed = sorted((_bucket(tokens, bits), tuple(tokens), packed) for tokens, packed in drafts)
    offsets = np.zeros(len(placed) + 1, dtype="<u8")
    np.cumsum([len(packed) for _, _, packed in placed], out=offsets[1:])
    in_bucket = np.bincount([bucket for bucket, _, _ in placed], minlength=1 << bits)
    starts = np.zeros((1 << bits) + 1, dtype="<u4")
    np.cumsum(in_bucket, out=starts[1:])
    sha256 = hashlib.sha256()
    size = 0
    with path.open("wb") as file:
        file.write(bytes(HEADER_SIZE))
        for data in (offsets.tobytes(), starts.tobytes(), *(packed for _, _, packed in placed)):
            file.write(data)
            sha256.update(data)
            size += len(data)
        file.write(bytes(TAIL_SIZE))
        header = PreparedHeader(
            vocabulary_size, max_nodes, max_depth, bits, len(placed), size, sha256.digest(), shards_digest(shards)
        )
        seal(file, header.pack())
    return header


def shards_digest(shards: Iterable[Shard]) -> bytes:
    """Return what says of which shards drafts are: SHA-256 over the payload checksums of their suffixes files."""
    return hashlib.sha256(b"".join(shard.suffixes.header.sha256 for shard in shards)).digest()


def _bucket(tokens: Iterable[int], bits: int) -> int:
    hashed = 0
    for token in tokens:
        hashed = (hashed ^ token) * _FACTOR & _MASK
        hashed ^= hashed >> 32
    return hashed >> (64 - bits)


class PreparedFile(MappedFile[PreparedHeader]):
    """The file of prepared drafts, mapped."""

    header_type = PreparedHeader

    def require_of(self, shards: Iterable[Shard], vocabulary_size: int) -> None:
        """Raise MixedBuildError unless these are drafts of `shards` with `vocabulary_size` ids."""
        found, expected = self.header.shards_sha256.hex(), shards_digest(shards).hex()
        if found != expected:
            raise MixedBuildError(describe(self.path, "checksum of its shards", found, expected))
        if self.header.vocabulary_size != vocabulary_size:
            size = self.header.vocabulary_size
            raise MixedBuildError(describe(self.path, "vocabulary size", size, vocabulary_size))

    def find(self, tokens: Sequence[int]) -> int | None:
        """Return the place of the draft of the match of `tokens`; None if it is not prepared.

        Raises:
            PreparedDraftError: a draft that was looked at is none.
        """
        bits = self.header.bucket_bits
        bucket = _bucket(tokens, bits)
        table = self.payload[: self.header.table_size]
        first, end = table[8 * (self.header.draft_count + 1) :].view("<u4")[bucket : bucket + 2].tolist()
        found = (
            place for place in range(first, min(end, self.header.draft_count)) if self.draft(place)[0] == list(tokens)
        )
        return next(found, None)

    def draft(self, place: int) -> tuple[list[int], TokenTree]:
        """Return the tokens of the match, and the tree, of the draft at `place`, 0 .. draft_count - 1.

        Raises:
            PreparedDraftError: there is none.
        """
        header, payload = self.header, self.payload
        begin, end = payload[8 * place : 8 * place + 16].view("<u8").astype(object)
        raw = payload[header.table_size :][begin:end].tobytes()
        row = header.width + 1 + _COUNT_SIZE
        expected = _HEAD_SIZE + header.width * raw[0] + row * raw[1] if len(raw) >= _HEAD_SIZE else _HEAD_SIZE
        if len(raw) != expected:
            raise PreparedDraftError(describe(self.path, f"size of draft {place}", len(raw), expected))
        tokens_end = _HEAD_SIZE + header.width * raw[0]
        nodes = np.frombuffer(raw[tokens_end:], np.uint8).reshape(-1, row)
        counts = np.zeros((len(nodes), 8), dtype=np.uint8)
        counts[:, :_COUNT_SIZE] = nodes[:, header.width + 1 :]
        tokens = decode_symbols(np.frombuffer(raw[_HEAD_SIZE:tokens_end], np.uint8), header.width)
        try:
            tree = TokenTree(
                decode_symbols(nodes[:, : header.width].reshape(-1), header.width).astype(np.int64),
                nodes[:, header.width].astype(np.int64) - 1,
                counts.view("<u8")[:, 0].astype(np.int64),
                match=SuffixMatch(raw[0], int.from_bytes(raw[2:_HEAD_SIZE], "little")),
            )
        except ValueError as error:
            raise PreparedDraftError(describe(self.path, f"draft {place}", f"no tree ({error})", "a tree")) from error
        return tokens.tolist(), tree
