"""Shared generators of small datastores, and brute-force answers for them."""

from __future__ import annotations

import hashlib
import json
import re
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import strategies as st

from rest_store.datastore import suffix_array
from rest_store.datastore.datastore import Datastore
from rest_store.datastore.header import HEADER_SIZE, TAIL_SIZE, entry_bits, separator_id
from rest_store.datastore.manifest import FILE_NAME, Manifest, ShardRecord
from rest_store.datastore.shard import Shard, TokensFile, TokensWriter, write_suffixes
from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.errors import DatastoreFormatError, RestStoreError

Document = list[int]
Shards = list[list[Document]]  # documents of each shard


@dataclass(frozen=True)
class Corpus:
    vocabulary_size: int
    shards: Shards

    @property
    def documents(self) -> list[Document]:
        return [document for shard in self.shards for document in shard]


TWO_SHARDS = Corpus(300, [[[1, 2, 3, 4, 5, 1, 2, 3, 9]], [[7, 8]]])
ONE_TO_NINE = Corpus(300, [[[1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 7, 7], [5, 6, 1, 2]]])

# Vocabularies of both token widths; their first and last ids are used, so that ids of one to three
# bytes occur.
VOCABULARY_SIZES = [3, 256, 49_152, 65_535, 65_536, 131_072, 2**24 - 1]


@st.composite
def corpora(draw: st.DrawFn, max_shards: int = 4) -> Corpus:
    """A few short documents over a few ids, with many repeats and ties."""
    vocabulary_size = draw(st.sampled_from(VOCABULARY_SIZES))
    ids = sorted({0, 1, 2, vocabulary_size // 2, vocabulary_size - 1})
    alphabet = st.sampled_from(ids[: draw(st.integers(1, len(ids)))])
    document = st.lists(alphabet, min_size=1, max_size=draw(st.sampled_from([3, 12, 60])))
    shard = st.lists(document, min_size=1, max_size=6)
    return Corpus(vocabulary_size, draw(st.lists(shard, min_size=1, max_size=max_shards)))


@st.composite
def contexts(draw: st.DrawFn, corpus: Corpus) -> list[int]:
    """A piece of a document, sometimes with another token before or after it."""
    document = draw(st.sampled_from(corpus.documents))
    start = draw(st.integers(0, len(document) - 1))
    piece = document[start : draw(st.integers(start + 1, len(document)))]
    token = st.integers(0, corpus.vocabulary_size - 1) | st.sampled_from(document)
    return draw(st.lists(token, max_size=2)) + piece + draw(st.lists(token, max_size=1))


def sorted_suffixes(symbols: list[int], separator: int) -> list[int]:
    """The suffix array of FORMAT.md, section 3, by comparing lists."""
    return sorted(
        (p for p, symbol in enumerate(symbols) if symbol != separator), key=lambda p: symbols[p:]
    )


def pack_entries(entries: list[int], bits: int) -> bytes:
    """The bit string of FORMAT.md, section 3, as one number."""
    whole = sum(entry << bits * rank for rank, entry in enumerate(entries))
    return whole.to_bytes(8 * -(-len(entries) * bits // 64), "little")


def entries_of(shard: Shard) -> list[int]:
    """The whole suffix array of a shard."""
    header = shard.suffixes.header
    return gather_entries(
        shard.suffixes.packed, header.bits, np.arange(header.entry_count)
    ).tolist()


def gather_entries(
    raw: npt.NDArray[np.uint8], bits: int, ranks: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """The entries at `ranks` int64[n] of the bit string `raw`, which a tail of 8 bytes follows."""
    offsets = ranks * bits
    loaded = raw[(offsets >> 3)[:, None] + np.arange(8)].view("<u8")[:, 0]
    return (loaded >> (offsets & 7).astype(np.uint64) & np.uint64((1 << bits) - 1)).astype(np.int64)


def keys_of(tokens: TokensFile, positions: list[int]) -> npt.NDArray[np.uint64]:
    """The keys of suffixes (FORMAT.md, section 3): their first eight bytes."""
    offsets = HEADER_SIZE + tokens.header.width * np.array(positions)
    return tokens.raw[offsets[:, None] + np.arange(8)].view(">u8")[:, 0].astype(np.uint64)


def identity(vocabulary_size: int) -> TokenizerIdentity:
    return TokenizerIdentity("test", "sha256:" + f"{vocabulary_size:064x}", vocabulary_size, {}, {})


def write_datastore(
    directory: Path, corpus: Corpus, tokenizer: TokenizerIdentity | None = None
) -> Path:
    """Write the datastore of `corpus` with the writers of `datastore.shard`.

    Small ones are sorted by brute force.

    Args:
        directory: of the datastore.
        corpus: its documents.
        tokenizer: with which they were encoded; None: one that there is not.
    """
    directory.mkdir(parents=True, exist_ok=True)
    records = []
    for place, documents in enumerate(corpus.shards):
        name = f"shard-{place:05d}"
        writer = TokensWriter(directory / f"{name}.tokens", corpus.vocabulary_size)
        for document in documents:
            writer.append(np.array(document))
        writer.close()
        tokens = TokensFile.open(directory / f"{name}.tokens")
        symbols = tokens.symbols()
        if symbols.size < 2_000:
            order = sorted_suffixes(symbols.tolist(), separator_id(corpus.vocabulary_size))
            packed = pack_entries(order, entry_bits(symbols.size)) + bytes(TAIL_SIZE)
            keys = keys_of(tokens, order[::64])
            entries = np.frombuffer(packed, np.uint8)
        else:
            header = tokens.header
            keys, entries = suffix_array.sorted_suffixes(
                tokens.raw[HEADER_SIZE:], header.width, header.token_count
            )
        write_suffixes(directory / f"{name}.suffixes", tokens.header, keys, entries)
        records.append(ShardRecord.from_shard(name, Shard.open(directory, name)))
    tokenizer = identity(corpus.vocabulary_size) if tokenizer is None else tokenizer
    manifest = Manifest("rest-store test", tokenizer, tuple(records), (), {})
    (directory / FILE_NAME).write_text(manifest.to_json(), encoding="utf-8")
    return directory


def open_datastore(directory: Path, corpus: Corpus) -> Datastore:
    return Datastore.open(write_datastore(directory, corpus))


def brute_count(corpus: Corpus, tokens: list[int]) -> int:
    return sum(
        document[start : start + len(tokens)] == tokens
        for document in corpus.documents
        for start in range(len(document) - len(tokens) + 1)
    )


def zipf_corpus(seed: int, tokens: int, alphabet: int, vocabulary_size: int, shards: int) -> Corpus:
    """Documents of a random second-order source: matches are long, frequent and uneven."""
    rng = np.random.default_rng(seed)
    ids = np.sort(rng.choice(vocabulary_size, alphabet, replace=False))
    out: list[list[list[int]]] = [[] for _ in range(shards)]
    while tokens > 0:
        size = int(rng.integers(1, 400))
        draws = np.minimum(rng.zipf(1.6, size) - 1, alphabet - 1)
        draws[1::2] = (draws[::2][: draws[1::2].size] * 7 + draws[1::2]) % alphabet
        out[int(rng.integers(shards))].append(ids[draws].tolist())
        tokens -= size
    return Corpus(vocabulary_size, [documents or [[int(ids[0])]] for documents in out])


def edit_manifest(directory: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the fields of `manifest.json` in place."""
    path = directory / FILE_NAME
    fields = json.loads(path.read_text(encoding="utf-8"))
    change(fields)
    seal_manifest(directory, fields)


def seal_manifest(directory: Path, fields: dict[str, Any]) -> None:
    """Write `manifest.json` with a correct checksum of its own.

    Characters that UTF-8 lacks as escapes.
    """
    blank = "0" * 64
    content = json.dumps({**fields, "manifest_sha256": blank}).encode("ascii")
    digest = hashlib.sha256(content).hexdigest()
    (directory / FILE_NAME).write_bytes(
        content.replace(blank.encode("ascii"), digest.encode("ascii"))
    )


def edit_file(path: Path, change: Callable[[bytearray], object]) -> None:
    """Change the bytes of a shard file in place."""
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)


def seal_header(data: bytearray) -> None:
    """Correct the CRC-32 of the header of a shard file (FORMAT.md, sections 2 and 3)."""
    struct.pack_into("<I", data, 252, zlib.crc32(data[:252]))


def seal_datastore(directory: Path) -> None:
    """Correct all checksums and counts, so that only a full read finds faults in payloads."""
    fields = json.loads((directory / FILE_NAME).read_text(encoding="utf-8"))
    for record in fields["shards"]:
        digest = b""
        for kind in ("tokens", "suffixes"):
            path = directory / f"{record['name']}.{kind}"
            data = bytearray(path.read_bytes())
            if kind == "suffixes":
                data[80:112] = digest
            else:
                positions, documents = struct.unpack_from("<QQ", data, 24)
                record |= {"position_count": positions, "document_count": documents}
                record["token_count"] = positions - documents
            digest = hashlib.sha256(data[256:-8]).digest()
            data[48:80] = digest
            seal_header(data)
            path.write_bytes(data)
            record[f"{kind}_sha256"], record[f"{kind}_size"] = digest.hex(), len(data)
    for count in ("token_count", "document_count"):
        fields[count] = sum(record[count] for record in fields["shards"])
    seal_manifest(directory, fields)


def refused(error: type[RestStoreError] | str, call: Callable[[], object], *fragments: str) -> str:
    """Return the message of the `error` that `call` raises.

    It says where the error occurred, then what is wrong, and contains `fragments`.

    Args:
        error: a class, or the kind of a `DatastoreFormatError`.
        call: the call that is refused.
        fragments: texts of the message.
    """
    expected = DatastoreFormatError if isinstance(error, str) else error
    with pytest.raises(expected) as caught:
        call()
    message = str(caught.value)
    assert type(caught.value) is expected
    if isinstance(caught.value, DatastoreFormatError) and isinstance(error, str):
        assert caught.value.kind == error
    assert re.fullmatch(r"(?s).+: .+", message), message
    for fragment in fragments:
        assert fragment in message
    return message
