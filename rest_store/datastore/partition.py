"""A partition of a datastore: which of its shards one service reads, so
that several machines hold what none could.
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
            expected = (
                f"1/{self.total} .. {self.total}/{self.total}"
                if self.total
                else "1/1 or more partitions"
            )
            raise ArgumentError(describe("datastore", "partition", str(self), expected))

    @classmethod
    def parse(cls, text: str) -> Partition:
        """Read a text such as `2/4`; raise ArgumentError for another."""
        match = _TEXT.fullmatch(text)
        if match is None:
            raise ArgumentError(
                describe(
                    "datastore",
                    "partition",
                    ascii(text),
                    "a number and how many there are, such as 2/4",
                )
            )
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.total}"

    def select(self, shards: Sequence[ShardRecord], where: Path) -> tuple[ShardRecord, ...]:
        """Return the shards of this partition, in their order; each shard is in one partition.

        Shards are dealt out, the largest first, each to the partition that has the fewest positions
        so far, of equal ones the first. So the partitions differ by one shard at most, each corpus
        is spread over all of them, and what is lost with a partition is some of everything. The
        outcome depends on the shards alone.

        Args:
            shards: of the whole datastore `where`.
            where: for messages.

        Raises:
            ArgumentError: there are more partitions than shards.
        """
        if self.total > len(shards):
            expected = f"at most {len(shards)}, for it has {counted(len(shards), 'shard')}"
            raise ArgumentError(describe(where, "number of partitions", self.total, expected))
        positions = [0] * self.total
        chosen = []
        for index in sorted(range(len(shards)), key=lambda index: -shards[index].position_count):
            emptiest = positions.index(min(positions))
            positions[emptiest] += shards[index].position_count
            if emptiest == self.number - 1:
                chosen.append(index)
        return tuple(shards[index] for index in sorted(chosen))
