"""Which replica of which part runs on which machine of a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Node(NamedTuple):
    """A machine of a cluster.

    Attributes:
        id: Ray's.
        address: its IP address.
    """

    id: str
    address: str


class Replica(NamedTuple):
    """One replica of one part.

    Attributes:
        part: 1..parts.
        number: 1..replicas.
        node: where it should run; Ray chooses another machine if this one is gone.
    """

    part: int
    number: int
    node: Node


def placement(nodes: Sequence[Node], parts: int, replicas: int) -> list[Replica]:
    """Return all replicas, those of a part one after another.

    The numbers of replicas on two machines differ by one at most. The replicas of a part are on different machines, if
    there are enough.
    """
    return [
        Replica(part + 1, number + 1, nodes[(part * replicas + number) % len(nodes)])
        for part in range(parts)
        for number in range(replicas)
    ]
