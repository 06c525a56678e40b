"""Sorting in memory: a segment holds what a shard of the same documents does."""

from __future__ import annotations

import ctypes
import random
from pathlib import Path

import numpy as np
import pytest

from rest_store.datastore.kernel import native_kernel
from rest_store.datastore.shard import Shard, encode_symbols
from rest_store.live.segment import sorted_segment, write_segment
from rest_store.live.upstream import Document
from tests.shared.live import some_document
from tests.shared.strategies import Corpus, write_datastore


def stored(documents: list[list[int]], vocabulary_size: int, first: int = 1) -> list[Document]:
    return [
        Document(
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
    native = sorted_segment(stored(documents, vocabulary_size), vocabulary_size)
    write_datastore(tmp_path, Corpus(vocabulary_size, [documents]))
    frozen = Shard.open(tmp_path, "shard-00000")
    assert np.array_equal(frozen.suffixes.key_bytes, native.view.keys)
    assert np.array_equal(frozen.suffixes.packed, native.view.entries)
    written = write_segment(native, tmp_path, vocabulary_size)
    for kind in ("tokens", "suffixes"):
        expected = (tmp_path / f"shard-00000.{kind}").read_bytes()
        assert (tmp_path / f"{written.record.name}.{kind}").read_bytes() == expected


@pytest.mark.parametrize("vocabulary_size", [300, 70_000])
def test_a_memtable_grows_to_what_is_sorted_at_once(vocabulary_size: int) -> None:
    chance = random.Random(0)
    documents = stored([some_document(chance, vocabulary_size) for _ in range(30)], vocabulary_size)
    whole = sorted_segment(documents, vocabulary_size)
    grown = sorted_segment(documents[20:], vocabulary_size, sorted_segment(documents[:20], vocabulary_size))
    for name in ("first", "last", "oldest", "newest", "document_count"):
        assert getattr(grown, name) == getattr(whole, name)
    for name in ("symbols", "keys", "entries"):
        assert np.array_equal(getattr(grown.view, name), getattr(whole.view, name))


def test_what_does_not_fit_is_refused() -> None:
    native = native_kernel()
    symbols = np.array([0, 1, 0, 2, 255, 255, *[0] * 8], np.uint8)
    order = np.array([0, 1, 2, 3, 5, 4], np.int32)

    def pack(order=order, status=0, symbols=symbols, width=2, bits=2, keys=1, words=1, tail=8):
        @ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32)
        def sorter(text, room, size):
            assert bytes((ctypes.c_uint8 * size).from_address(text)) == symbols[:size].tobytes()
            (ctypes.c_int32 * size).from_address(room)[:] = order.tolist()
            return status

        address = ctypes.cast(sorter, ctypes.c_void_p).value
        room = np.zeros(keys, np.uint64), np.zeros(8 * words + tail, np.uint8)
        return native.sort_suffixes(address, symbols, width, bits, *room)

    assert pack() == 0
    assert pack(status=-2) == -2
    for wrong in (
        {"order": order + 7},
        {"order": -order - 1},
        {"symbols": symbols[:7]},
        {"keys": 0},
        {"words": 0},
        {"words": 0, "tail": 9},
        {"bits": 0},
        {"bits": 31},
    ):
        with pytest.raises(IndexError):
            pack(**wrong)
    with pytest.raises(ValueError, match="width"):
        pack(width=4)
