"""Parts of a datastore: each shard is in one of them, they are
about as large, and only their files are needed.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rest_store.datastore.datastore import Datastore
from rest_store.datastore.manifest import ShardRecord
from rest_store.datastore.part import Part
from rest_store.errors import DatastoreFormatError
from tests.shared.strategies import Corpus, write_datastore

RECORD = ShardRecord("shard", 0, 0, 0, 0, "", 0, "")


@given(
    positions=st.lists(st.integers(1, 100), min_size=1, max_size=30),
    data=st.data(),
)
def test_each_shard_is_in_one_part_and_parts_are_even(
    positions: list[int], data: st.DataObject
) -> None:
    shards = [
        replace(RECORD, name=f"shard-{place}", position_count=count)
        for place, count in enumerate(positions)
    ]
    number = data.draw(st.integers(1, len(shards)))
    parts = [Part(part, number).of(shards, Path("ds")) for part in range(1, number + 1)]
    assert sorted(one.name for part in parts for one in part) == sorted(one.name for one in shards)
    sizes = [sum(one.position_count for one in part) for part in parts]
    assert all(parts)
    assert max(sizes) - min(sizes) <= max(positions)
    assert [[one.name for one in part] for part in parts] == [
        [one.name for one in shards if one in part] for part in parts
    ]


def test_equal_shards_are_dealt_out_in_turn() -> None:
    """So each part has some of each corpus: shards are in
    the order in which the corpora were read.
    """
    shards = [replace(RECORD, name=f"shard-{place}", position_count=7) for place in range(6)]
    assert [one.name for one in Part.parse("2/4").of(shards, Path("ds"))] == ["shard-1", "shard-5"]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_datastore(
        tmp_path, Corpus(300, [[[1, 2, number]] * (number + 1) for number in range(4)])
    )


def test_a_part_has_its_shards_alone(directory: Path) -> None:
    whole, parts = (
        Datastore.open(directory),
        [Datastore.open(directory, part=f"{number}/2") for number in (1, 2)],
    )
    assert [len(part.shards) for part in parts] == [2, 2]
    assert sum(part.count([1, 2]) for part in parts) == whole.count([1, 2]) == 10
    for name in ("token_count", "document_count", "shard_count", "size"):
        assert sum(getattr(part.info(), name) for part in parts) == getattr(whole.info(), name)
    assert (parts[0].info().part, whole.info().part) == (Part(1, 2), None)
    assert parts[0].manifest == whole.manifest
    assert ", part 1/2)" in repr(parts[0])
    assert ", part" not in repr(whole)


def test_only_the_files_of_the_part_need_to_be_there(directory: Path) -> None:
    names = {
        record.name
        for record in Part(1, 2).of(Datastore.open(directory).manifest.shards, directory)
    }
    for path in directory.glob("shard-*"):
        if path.stem not in names:
            path.unlink()
    assert Datastore.open(directory, part="1/2").count([1]) > 0
    with pytest.raises(DatastoreFormatError):
        Datastore.open(directory, part="2/2")
