"""The bytes of a datastore follow FORMAT.md: built here by hand, and stored in `golden/`."""

from __future__ import annotations

import hashlib
import json
import re
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rest_store
from build_index import suffix_array
from rest_store.datastore.check import check_datastore
from rest_store.datastore.header import entry_bits, separator_id, token_width
from rest_store.datastore.shard import decode_symbols, encode_symbols
from tests.shared.strategies import (
    VOCABULARY_SIZES,
    Corpus,
    Document,
    entries_of,
    gather_entries,
    pack_entries,
    sorted_suffixes,
    write_datastore,
)

GOLDEN = Path(__file__).parent / "golden"
FORMAT = (Path(rest_store.__file__).parent / "datastore" / "FORMAT.md").read_text(encoding="utf-8")
DESCENDING = [69_999 - place for place in range(65)]  # each suffix is less than the one before it


@dataclass(frozen=True)
class Case:
    """A corpus, and the suffix array of each shard, written by hand."""

    corpus: Corpus
    suffix_arrays: list[list[int]]


CASES = {
    # symbols 1 2 3 1 2 S 299 S 0 1 S, and 5 5 5 S
    "two-byte": Case(
        Corpus(300, [[[1, 2, 3, 1, 2], [299], [0, 1]], [[5, 5, 5]]]), [[8, 0, 3, 9, 1, 4, 2, 6], [0, 1, 2]]
    ),
    # 65 entries: two keys
    "three-byte": Case(Corpus(70_000, [[DESCENDING]]), [list(range(64, -1, -1))]),
}


def little(value: int, size: int) -> bytes:
    return value.to_bytes(size, "little")


def sealed(body: bytes) -> bytes:
    return body + struct.pack("<I", zlib.crc32(body))


def tokens_file(documents: list[Document], vocabulary_size: int, width: int) -> bytes:
    """Section 2, field by field."""
    payload = b"".join(
        b"".join(token.to_bytes(width, "big") for token in document) + b"\xff" * width for document in documents
    )
    header = (
        bytes.fromhex("89 52 53 54 54 4F 4B 0A")
        + little(0x0A0B0C0D, 4)
        + little(1, 2)
        + little(256, 2)
        + little(width, 4)
        + little(vocabulary_size, 4)
        + little(len(payload) // width, 8)
        + little(len(documents), 8)
        + little(len(payload), 8)
        + hashlib.sha256(payload).digest()
        + bytes(172)
    )
    return sealed(header) + payload + bytes(8)


def suffixes_file(tokens: bytes, width: int, order: list[int], bits: int) -> bytes:
    """Section 3, field by field."""
    symbols = tokens[256:-8]
    keys = [int.from_bytes(symbols[width * position :][:8].ljust(8, b"\0"), "big") for position in order[::64]]
    words = -(-len(order) * bits // 64)
    bit_string = sum(position << (bits * rank) for rank, position in enumerate(order))
    payload = b"".join(little(key, 8) for key in keys) + little(bit_string, 8 * words)
    header = (
        bytes.fromhex("89 52 53 54 53 55 46 0A")
        + little(0x0A0B0C0D, 4)
        + little(1, 2)
        + little(256, 2)
        + little(bits, 4)
        + little(64, 4)
        + little(len(order), 8)
        + little(len(keys), 8)
        + little(len(payload), 8)
        + hashlib.sha256(payload).digest()
        + hashlib.sha256(symbols).digest()
        + bytes(140)
    )
    return sealed(header) + payload + bytes(8)


def datastore_files(case: Case) -> dict[str, bytes]:
    """Sections 2, 3 and 5: the whole directory."""
    vocabulary_size = case.corpus.vocabulary_size
    width = 2 if vocabulary_size <= 65_535 else 3
    files: dict[str, bytes] = {}
    records: list[dict[str, Any]] = []
    for place, (documents, order) in enumerate(zip(case.corpus.shards, case.suffix_arrays, strict=True)):
        name = f"shard-{place:05d}"
        tokens = tokens_file(documents, vocabulary_size, width)
        positions = len(tokens[256:-8]) // width
        bits = next(bits for bits in range(1, 31) if 2**bits >= positions)
        suffixes = suffixes_file(tokens, width, order, bits)
        files[f"{name}.tokens"], files[f"{name}.suffixes"] = tokens, suffixes
        records.append(
            {
                "name": name,
                "position_count": positions,
                "token_count": positions - len(documents),
                "document_count": len(documents),
                "tokens_size": len(tokens),
                "tokens_sha256": hashlib.sha256(tokens[256:-8]).hexdigest(),
                "suffixes_size": len(suffixes),
                "suffixes_sha256": hashlib.sha256(suffixes[256:-8]).hexdigest(),
            }
        )
    manifest = {
        "format": "rest-store",
        "format_version": 1,
        "created_by": "rest-store test",
        "tokenizer": {
            "name": "test",
            "fingerprint": f"sha256:{vocabulary_size:064x}",
            "vocabulary_size": vocabulary_size,
            "special_tokens": {},
            "added_tokens": {},
        },
        "token_count": sum(record["token_count"] for record in records),
        "document_count": sum(record["document_count"] for record in records),
        "shards": records,
        "corpora": [],
        "options": {},
    }
    manifest["manifest_sha256"] = "0" * 64
    content = (json.dumps(manifest, indent=2, sort_keys=True) + "\n").encode()
    files["manifest.json"] = content.replace(b"0" * 64, hashlib.sha256(content).hexdigest().encode())
    return files


def files_in(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("name", CASES)
def test_writers_write_what_the_format_says(tmp_path: Path, name: str) -> None:
    assert files_in(write_datastore(tmp_path, CASES[name].corpus)) == datastore_files(CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_golden_files_are_what_the_format_says(name: str) -> None:
    assert files_in(GOLDEN / name) == datastore_files(CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_golden_files_are_read(name: str) -> None:
    store = check_datastore(GOLDEN / name, sort=suffix_array.sorted_suffixes)
    shards = [
        [int(symbol) for document in documents for symbol in [*document, separator_id(store.vocabulary_size)]]
        for documents in CASES[name].corpus.shards
    ]
    assert [shard.tokens.symbols().tolist() for shard in store.shards] == shards
    orders = [entries_of(shard) for shard in store.shards]
    assert orders == CASES[name].suffix_arrays
    assert [sorted_suffixes(symbols, separator_id(store.vocabulary_size)) for symbols in shards] == orders


@dataclass(frozen=True)
class Row:
    offset: str
    size: str
    what: str
    value: str


def table(section: int) -> list[Row]:
    """The rows of the offset table of a section of FORMAT.md."""
    text = FORMAT.split(f"\n## {section}. ")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in text.splitlines() if re.match(r"\| *(\d|the end)", line)]
    return [Row(*(cell.strip().replace("`", "") for cell in row)) for row in rows]


@pytest.mark.parametrize("section", [2, 3])
def test_offset_tables_describe_the_golden_files(section: int) -> None:
    """Offsets are the sums of sizes, and the files hold at each offset what the table says."""
    order = CASES["three-byte"].suffix_arrays[0]
    tokens = (GOLDEN / "three-byte" / "shard-00000.tokens").read_bytes()
    file = tokens if section == 2 else (GOLDEN / "three-byte" / "shard-00000.suffixes").read_bytes()
    symbols = {"w": 3, "V": 70_000, "P": 66, "D": 1, "b": 7, "N": 65, "K": 2}
    values: dict[str, Any] = {
        "magic": int.from_bytes(b"\x89RSTTOK\n" if section == 2 else b"\x89RSTSUF\n", "little"),
        "byte order mark": 0x0A0B0C0D,
        "format version": 1,
        "header size": 256,
        "token width w": symbols["w"],
        "vocabulary size V": symbols["V"],
        "positions P": symbols["P"],
        "documents D": symbols["D"],
        "entry bits b": symbols["b"],
        "key stride": 64,
        "entries N": symbols["N"],
        "keys K": symbols["K"],
        "payload size": len(file) - 264,
        "SHA-256 of the payload": int.from_bytes(hashlib.sha256(file[256:-8]).digest(), "little"),
        "SHA-256 of the payload of the tokens file it belongs to": int.from_bytes(
            hashlib.sha256(tokens[256:-8]).digest(), "little"
        ),
        "reserved": 0,
        "CRC-32 (zlib) of bytes 0..251": zlib.crc32(file[:252]),
        "payload: the symbols, w bytes each, big-endian": int.from_bytes(file[256:-8], "little"),
        "keys, 8 bytes each, little-endian": int.from_bytes(file[256:272], "little"),
        "entries: one bit string, entry r in bits r b .. r b + b - 1": sum(
            position << (7 * rank) for rank, position in enumerate(order)
        ),
        "tail": 0,
    }
    sizes = {"w * P": 3 * 66, "8 K": 16, "8 ceil(N b / 64)": 64}
    offset = 0
    rows = table(section)
    assert bytes.fromhex(rows[0].value.split("(")[0]) == file[:8]
    for row in rows:
        stated = row.offset.replace("w * P", str(sizes["w * P"])).replace("8 K", str(sizes["8 K"]))
        if stated != "the end":
            assert sum(int(part) for part in stated.split("+")) == offset, row
        size = sizes.get(row.size) or int(row.size)
        assert int.from_bytes(file[offset : offset + size], "little") == values[row.what], row
        offset += size
    assert offset == len(file)
    assert len(rows) == (14 if section == 2 else 16)


@pytest.mark.parametrize(("vocabulary_size", "width"), [(1, 2), (65_535, 2), (65_536, 3), (2**24 - 1, 3)])
def test_token_width_leaves_room_for_the_separator(vocabulary_size: int, width: int) -> None:
    assert token_width(vocabulary_size) == width
    assert separator_id(vocabulary_size) == 2 ** (8 * width) - 1 >= vocabulary_size


@given(st.integers(2, 2**30))
def test_entry_bits_are_the_fewest_that_hold_each_position(position_count: int) -> None:
    bits = entry_bits(position_count)
    assert 2**bits >= position_count > 2 ** (bits - 1)


@given(data=st.data(), bits=st.integers(1, 30))
def test_bit_strings_are_those_of_a_big_integer(data: st.DataObject, bits: int) -> None:
    entries = data.draw(st.lists(st.integers(0, 2**bits - 1), min_size=1, max_size=200))
    raw = np.frombuffer(pack_entries(entries, bits) + bytes(8), dtype=np.uint8)
    ranks = data.draw(st.lists(st.integers(0, len(entries) - 1)))
    assert gather_entries(raw, bits, np.array(ranks, dtype=np.int64)).tolist() == [entries[rank] for rank in ranks]


@given(data=st.data(), vocabulary_size=st.sampled_from(VOCABULARY_SIZES))
def test_symbols_are_read_back(data: st.DataObject, vocabulary_size: int) -> None:
    ids = data.draw(st.lists(st.integers(0, vocabulary_size - 1) | st.just(separator_id(vocabulary_size)), min_size=1))
    raw = encode_symbols(np.array(ids), vocabulary_size)
    width = token_width(vocabulary_size)
    assert raw == b"".join(symbol.to_bytes(width, "big") for symbol in ids)
    assert decode_symbols(np.frombuffer(raw, dtype=np.uint8), width).tolist() == ids
