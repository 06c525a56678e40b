"""A part of a datastore: which of its shards one service reads, so
that several machines hold what none could.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rest_store.datastore.manifest import ShardRecord
from rest_store.datastore.render import counted
from rest_store.errors import DatastoreFormatError, describe

_TEXT = re.compile(r"(\d{1,9})/(\d{1,9})", re.ASCII)


@dataclass(frozen=True)
class Part:
    """Part `number` of `parts`, counted from 1. Its text is `2/4`.

    Raises:
        DatastoreFormatError: there is no such part.
    """

    number: int
    parts: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.parts:
            expected = (
                f"1/{self.parts} .. {self.parts}/{self.parts}"
                if self.parts
                else "1/1 or more parts"
            )
            raise DatastoreFormatError(
                "partitions", describe("datastore", "part", str(self), expected)
            )

    @classmethod
    def parse(cls, text: str) -> Part:
        """Read a text such as `2/4`; raise DatastoreFormatError for another."""
        match = _TEXT.fullmatch(text)
        if match is None:
            raise DatastoreFormatError(
                "partitions",
                describe(
                    "datastore", "part", ascii(text), "a number and how many there are, such as 2/4"
                ),
            )
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.parts}"

    def of(self, shards: Sequence[ShardRecord], where: Path) -> tuple[ShardRecord, ...]:
        """Return the shards of this part, in their order; each shard is in one part.

        Shards are dealt out, the largest first, each to the part that has the fewest positions so
        far, of equal ones the first. So the parts differ by one shard at most, each corpus is
        spread over all of them, and what is lost with a part is some of everything. The outcome
        depends on the shards alone.

        Args:
            shards: of the whole datastore `where`.
            where: for messages.

        Raises:
            DatastoreFormatError: there are more parts than shards.
        """
        if self.parts > len(shards):
            expected = f"at most {len(shards)}, for it has {counted(len(shards), 'shard')}"
            raise DatastoreFormatError(
                "partitions", describe(where, "number of parts", self.parts, expected)
            )
        positions = [0] * self.parts
        chosen = []
        for index in sorted(range(len(shards)), key=lambda index: -shards[index].position_count):
            emptiest = positions.index(min(positions))
            positions[emptiest] += shards[index].position_count
            if emptiest == self.number - 1:
                chosen.append(index)
        return tuple(shards[index] for index in sorted(chosen))
