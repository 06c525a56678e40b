"""The bytes of a datastore are those in `golden/`, which FORMAT.md describes."""

from __future__ import annotations

import hashlib
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rest_store
from rest_store.datastore import suffix_array
from rest_store.datastore.check import check_datastore
from rest_store.datastore.header import entry_bits, separator_id, token_width
from rest_store.datastore.shard import decode_symbols, encode_symbols
from tests.shared.builds import contents
from tests.shared.strategies import (
    VOCABULARY_SIZES,
    Corpus,
    entries_of,
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
        Corpus(300, [[[1, 2, 3, 1, 2], [299], [0, 1]], [[5, 5, 5]]]),
        [[8, 0, 3, 9, 1, 4, 2, 6], [0, 1, 2]],
    ),
    # 65 entries: two keys
    "three-byte": Case(Corpus(70_000, [[DESCENDING]]), [list(range(64, -1, -1))]),
}


@pytest.mark.parametrize("name", CASES)
def test_writers_write_the_golden_files(tmp_path: Path, name: str) -> None:
    assert contents(write_datastore(tmp_path, CASES[name].corpus)) == contents(GOLDEN / name)


@pytest.mark.parametrize("name", CASES)
def test_golden_files_are_read(name: str) -> None:
    store = check_datastore(GOLDEN / name, sort=suffix_array.sorted_suffixes)
    shards = [
        [
            int(symbol)
            for document in documents
            for symbol in [*document, separator_id(store.vocabulary_size)]
        ]
        for documents in CASES[name].corpus.shards
    ]
    assert [shard.tokens.symbols().tolist() for shard in store.shards] == shards
    orders = [entries_of(shard) for shard in store.shards]
    assert orders == CASES[name].suffix_arrays
    assert [
        sorted_suffixes(symbols, separator_id(store.vocabulary_size)) for symbols in shards
    ] == orders


@dataclass(frozen=True)
class Row:
    offset: str
    size: str
    what: str
    value: str


def table(section: int) -> list[Row]:
    """The rows of the offset table of a section of FORMAT.md."""
    text = FORMAT.split(f"\n## {section}. ")[1].split("\n## ")[0]
    rows = [
        line.strip("|").split("|")
        for line in text.splitlines()
        if re.match(r"\| *(\d|the end)", line)
    ]
    return [Row(*(cell.strip().replace("`", "") for cell in row)) for row in rows]


@pytest.mark.parametrize("section", [2, 3])
def test_offset_tables_describe_the_golden_files(section: int) -> None:
    """The golden files hold at each offset the value that the table says."""
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


@pytest.mark.parametrize(
    ("vocabulary_size", "width"), [(1, 2), (65_535, 2), (65_536, 3), (2**24 - 1, 3)]
)
def test_token_width_leaves_room_for_the_separator(vocabulary_size: int, width: int) -> None:
    assert token_width(vocabulary_size) == width
    assert separator_id(vocabulary_size) == 2 ** (8 * width) - 1 >= vocabulary_size


@given(st.integers(2, 2**30))
def test_entry_bits_are_the_fewest_that_hold_each_position(position_count: int) -> None:
    bits = entry_bits(position_count)
    assert 2**bits >= position_count > 2 ** (bits - 1)


@given(data=st.data(), vocabulary_size=st.sampled_from(VOCABULARY_SIZES))
def test_symbols_are_read_back(data: st.DataObject, vocabulary_size: int) -> None:
    ids = data.draw(
        st.lists(
            st.integers(0, vocabulary_size - 1) | st.just(separator_id(vocabulary_size)), min_size=1
        )
    )
    raw = encode_symbols(np.array(ids), vocabulary_size)
    width = token_width(vocabulary_size)
    assert raw == b"".join(symbol.to_bytes(width, "big") for symbol in ids)
    assert decode_symbols(np.frombuffer(raw, dtype=np.uint8), width).tolist() == ids
