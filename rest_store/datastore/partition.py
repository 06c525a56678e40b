"""A partition of a datastore: some of its shards, for one service.

Several machines can serve a datastore that is too large for one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rest_store.datastore.manifest import ShardRecord
from rest_store.datastore.render import counted
from rest_store.errors import ArgumentError, describe

_TEXT = re.compile(r"(\d{1,9})/(\d{1,9})", re.ASCII)


@dataclass(frozen=True)
class Partition:
    """Partition `number` of `total`, counted from 1. Its text is `2/4`.

    Raises:
        ArgumentError: there is no such partition.
    """

    number: int
    total: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.total:
            expected = "1/1 or more partitions"
            if self.total > 0:
                expected = f"1/{self.total} .. {self.total}/{self.total}"
            raise ArgumentError(describe("datastore", "partition", str(self), expected))

    @classmethod
    def parse(cls, text: str) -> Partition:
        """Read a text such as `2/4`; raise ArgumentError for another."""
        match = _TEXT.fullmatch(text)
        if match is None:
            expected = "the number of a partition and that of all, such as 2/4"
            raise ArgumentError(describe("datastore", "partition", ascii(text), expected))
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.total}"

    def select(self, shards: Sequence[ShardRecord], where: Path) -> tuple[ShardRecord, ...]:
        """Return the shards of this partition, in their order.

        Shards are dealt out, the largest first. Each goes to the partition with the fewest
        positions so far, of equal ones to the first. So each shard is in one partition, and the
        sizes of partitions differ by one shard at most. Each corpus is spread over all partitions:
        a lost one costs a little of everything. The outcome depends on the shards alone.

        Args:
            shards: of the whole datastore.
            where: the datastore, for messages.

        Raises:
            ArgumentError: there are more partitions than shards.
        """
        if self.total > len(shards):
            expected = f"at most {len(shards)}, for it has {counted(len(shards), 'shard')}"
            raise ArgumentError(describe(where, "number of partitions", self.total, expected))
        largest_first = sorted(range(len(shards)), key=lambda index: -shards[index].position_count)
        positions = [0] * self.total
        selected = []
        for index in largest_first:
            emptiest = positions.index(min(positions))
            positions[emptiest] += shards[index].position_count
            if emptiest == self.number - 1:
                selected.append(index)
        return tuple(shards[index] for index in sorted(selected))
