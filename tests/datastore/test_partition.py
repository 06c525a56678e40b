"""Each shard is in one partition, partitions are about as large, and need their own files only."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rest_store.datastore.datastore import Datastore
from rest_store.datastore.manifest import ShardRecord
from rest_store.datastore.partition import Partition
from rest_store.errors import DatastoreFormatError
from tests.shared.strategies import Corpus, write_datastore

RECORD = ShardRecord("shard", 0, 0, 0, 0, "", 0, "")


@given(
    positions=st.lists(st.integers(1, 100), min_size=1, max_size=30),
    data=st.data(),
)
def test_each_shard_is_in_one_partition_and_partitions_are_even(
    positions: list[int], data: st.DataObject
) -> None:
    shards = [
        replace(RECORD, name=f"shard-{place}", position_count=count)
        for place, count in enumerate(positions)
    ]
    number = data.draw(st.integers(1, len(shards)))
    partitions = [
        Partition(partition, number).select(shards, Path("ds"))
        for partition in range(1, number + 1)
    ]
    assert sorted(one.name for partition in partitions for one in partition) == sorted(
        one.name for one in shards
    )
    sizes = [sum(one.position_count for one in partition) for partition in partitions]
    assert all(partitions)
    assert max(sizes) - min(sizes) <= max(positions)
    assert [[one.name for one in partition] for partition in partitions] == [
        [one.name for one in shards if one in partition] for partition in partitions
    ]


def test_equal_shards_are_dealt_out_in_turn() -> None:
    """Each partition has shards of each corpus, since shards are in the order of corpora."""
    shards = [replace(RECORD, name=f"shard-{place}", position_count=7) for place in range(6)]
    assert [one.name for one in Partition.parse("2/4").select(shards, Path("ds"))] == [
        "shard-1",
        "shard-5",
    ]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_datastore(
        tmp_path, Corpus(300, [[[1, 2, number]] * (number + 1) for number in range(4)])
    )


def test_a_partition_has_its_shards_alone(directory: Path) -> None:
    whole = Datastore.open(directory)
    partitions = [Datastore.open(directory, partition=f"{number}/2") for number in (1, 2)]
    assert [len(partition.shards) for partition in partitions] == [2, 2]
    assert sum(partition.count([1, 2]) for partition in partitions) == whole.count([1, 2]) == 10
    for name in ("token_count", "document_count", "shard_count", "size"):
        assert sum(getattr(partition.info(), name) for partition in partitions) == getattr(
            whole.info(), name
        )
    assert (partitions[0].info().partition, whole.info().partition) == (Partition(1, 2), None)
    assert partitions[0].manifest == whole.manifest
    assert ", partition 1/2)" in repr(partitions[0])
    assert ", partition" not in repr(whole)


def test_only_the_files_of_the_partition_need_to_be_there(directory: Path) -> None:
    names = {
        record.name
        for record in Partition(1, 2).select(Datastore.open(directory).manifest.shards, directory)
    }
    for path in directory.glob("shard-*"):
        if path.stem not in names:
            path.unlink()
    assert Datastore.open(directory, partition="1/2").count([1]) > 0
    with pytest.raises(DatastoreFormatError):
        Datastore.open(directory, partition="2/2")
