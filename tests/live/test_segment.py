"""Sorting in memory: a segment holds what a shard of the same documents does."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from rest_store.datastore.shard import Shard, encode_symbols
from rest_store.live.records import DocumentRecord
from rest_store.live.segment import sorted_segment, write_segment
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
