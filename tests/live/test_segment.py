"""Sorting in memory: a segment holds what a shard of the same documents does."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rest_store.datastore.header import KEY_STRIDE, TAIL_SIZE
from rest_store.datastore.kernel import native_kernel
from rest_store.datastore.shard import Shard, decode_symbols, encode_symbols
from rest_store.live.records import DocumentRecord
from rest_store.live.segment import (
    Segment,
    open_segment,
    shortened_segment,
    sorted_segment,
    sorted_view,
    write_segment,
)
from tests.shared.live import some_document
from tests.shared.strategies import Corpus, write_datastore


def records_of(
    documents: list[list[int]], vocabulary_size: int, first: int = 1
) -> list[DocumentRecord]:
    return [
        DocumentRecord(
            first + place,
            "",
            bytes([place % 256]),
            5.0 + place,
            "",
            0,
            encode_symbols(np.array(document), vocabulary_size),
        )
        for place, document in enumerate(documents)
    ]


@pytest.mark.parametrize("vocabulary_size", [3, 65_535, 65_536, 2**24 - 1])
@pytest.mark.parametrize("size", [1, 2, 3, 40, 300])
def test_a_segment_is_packed_as_a_shard(tmp_path: Path, vocabulary_size: int, size: int) -> None:
    chance = random.Random(size)
    documents = [some_document(chance, vocabulary_size) for _ in range(size)]
    native = sorted_segment(records_of(documents, vocabulary_size), vocabulary_size)
    write_datastore(tmp_path, Corpus(vocabulary_size, [documents]))
    frozen = Shard.open(tmp_path, "shard-00000")
    assert np.array_equal(frozen.suffixes.key_bytes, native.view.keys)
    assert np.array_equal(frozen.suffixes.packed, native.view.entries)
    written = write_segment(native, tmp_path, vocabulary_size)
    for kind in ("tokens", "suffixes"):
        expected = (tmp_path / f"shard-00000.{kind}").read_bytes()
        assert (tmp_path / f"{written.record.name}.{kind}").read_bytes() == expected


@pytest.mark.parametrize("vocabulary_size", [300, 70_000])
def test_a_grown_memtable_equals_one_sorted_at_once(vocabulary_size: int) -> None:
    chance = random.Random(0)
    texts = [some_document(chance, vocabulary_size) for _ in range(30)]
    documents = records_of(texts, vocabulary_size)
    whole = sorted_segment(documents, vocabulary_size)
    grown = sorted_segment(
        documents[20:], vocabulary_size, sorted_segment(documents[:20], vocabulary_size)
    )
    for name in ("first", "last", "oldest", "newest", "document_count"):
        assert getattr(grown, name) == getattr(whole, name)
    for name in ("symbols", "keys", "entries"):
        assert np.array_equal(getattr(grown.view, name), getattr(whole.view, name))


# --- Removal of documents -------------------------------------------------------------------------


def positions_of(segment: Segment) -> list[int]:
    """The suffix array of a segment."""
    view = segment.view
    bits = np.unpackbits(view.entries[:-TAIL_SIZE], bitorder="little")
    rows = bits[: view.entry_count * view.bits].reshape(view.entry_count, view.bits)
    return [int(row @ (1 << np.arange(view.bits))) for row in rows]


def suffixes_in_documents(segment: Segment) -> list[tuple[int, ...]]:
    """The suffixes of a segment by rank, each up to its separator."""
    view = segment.view
    symbols = decode_symbols(view.symbols[:-TAIL_SIZE], view.width).tolist()
    separator = max(symbols)
    return [
        tuple(symbols[position : symbols.index(separator, position) + 1])
        for position in positions_of(segment)
    ]


@pytest.mark.parametrize("vocabulary_size", [300, 70_000])
@pytest.mark.parametrize("size", [2, 3, 40, 300])
def test_a_segment_without_some_documents_is_as_one_of_the_others(
    tmp_path: Path, vocabulary_size: int, size: int
) -> None:
    chance = random.Random(size)
    texts = [some_document(chance, vocabulary_size, most=60) for _ in range(size)]
    records = records_of(texts, vocabulary_size)
    whole = sorted_segment(records, vocabulary_size)
    in_files = write_segment(whole, tmp_path, vocabulary_size)
    for share in (0.0, 0.1, 0.5, 0.9):
        is_removed = np.array([chance.random() < share for _ in range(size)])
        is_removed[chance.randrange(size)] = False
        kept = [one for one, gone in zip(records, is_removed, strict=True) if not gone]
        expected = sorted_segment(kept, vocabulary_size)
        for segment in (whole, in_files):
            shorter = shortened_segment(segment, is_removed, vocabulary_size)
            assert shorter is not None
            assert shorter.record is None
            view = shorter.view
            assert np.array_equal(view.symbols, expected.view.symbols)
            for field in ("position_count", "entry_count", "key_count", "width", "bits"):
                assert getattr(view, field) == getattr(expected.view, field)
            assert np.array_equal(shorter.group_keys, expected.group_keys)
            assert suffixes_in_documents(shorter) == suffixes_in_documents(expected)
            assert sorted(positions_of(shorter)) == sorted(positions_of(expected))
            first_bytes = [
                int.from_bytes(view.symbols[view.width * position :][:8].tobytes(), "big")
                for position in positions_of(shorter)[::KEY_STRIDE]
            ]
            assert view.keys.view(np.uint64).tolist() == first_bytes
            again = sorted_view(view)
            assert np.array_equal(again.entries, expected.view.entries)
            assert np.array_equal(again.keys, expected.view.keys)


def test_a_damaged_segment_is_not_shortened(tmp_path: Path) -> None:
    records = records_of([[1, 2, 3], [4, 5], [1, 2]], 300)
    segment = write_segment(sorted_segment(records, 300), tmp_path, 300)
    assert segment.record is not None
    for kind in ("tokens", "suffixes"):
        path = tmp_path / f"{segment.record.name}.{kind}"
        sound = path.read_bytes()
        path.write_bytes(sound[:257] + bytes([sound[257] ^ 1]) + sound[258:])
        damaged = open_segment(tmp_path, segment.record, 300)
        assert shortened_segment(damaged, np.array([True, False, False]), 300) is None
        path.write_bytes(sound)
    whole = open_segment(tmp_path, segment.record, 300)
    assert shortened_segment(whole, np.array([True, False]), 300) is None, "a document too few"
    assert shortened_segment(whole, np.array([True, False, False]), 300) is not None


def test_entries_outside_the_shard_are_damage() -> None:
    view = sorted_segment(records_of([[1, 2, 3], [4, 5]], 300), 300).view
    damaged = replace(view, entries=np.full_like(view.entries, 255), bits=30)
    room = (np.empty(1, np.uint64), np.empty(16, np.uint8))
    gap = (np.array([4], np.uint64), np.array([7], np.uint64))
    symbols = np.concatenate([view.symbols[: 4 * view.width], view.symbols[-TAIL_SIZE:]])
    remaining = native_kernel().remaining_suffixes
    assert remaining(view, *gap, symbols, 3, 3, *room)
    assert not remaining(damaged, *gap, symbols, 3, 3, *room)


@pytest.mark.parametrize(
    ("begins", "ends"),
    [([0], []), ([2], [2]), ([2, 1], [3, 2]), ([0], [99]), ([0, 2], [3, 4])],
)
def test_gaps_that_are_none_are_refused(begins: list[int], ends: list[int]) -> None:
    view = sorted_segment(records_of([[1, 2, 3], [4, 5]], 300), 300).view
    arguments = (view, np.array(begins, np.uint64), np.array(ends, np.uint64))
    room = (np.empty(1, np.uint64), np.empty(16, np.uint8))
    remaining = native_kernel().remaining_suffixes
    with pytest.raises(IndexError):
        remaining(*arguments, view.symbols, 5, 3, *room)
    empty = np.zeros(0, np.uint64)
    assert remaining(view, empty, empty, view.symbols, 5, 3, *room)
    assert not remaining(view, empty, empty, view.symbols, 4, 3, *room), "one more than there may"
    for bad_room in ((room[0][:0], room[1]), (room[0], room[1][:8])):
        with pytest.raises(IndexError):
            remaining(view, empty, empty, view.symbols, 5, 3, *bad_room)
