"""What the service keeps of a generation between the steps of its stream."""

from __future__ import annotations

from typing import NamedTuple

from rest_store.service.server.catalog import Served
from rest_store.service.server.requests import Size


class Generation:
    """The state of one stream: what its first message chose, and the end of its context."""

    __slots__ = ("fingerprint", "named", "names", "served", "short", "size", "tail", "unnamed", "version")

    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()
        self.fingerprint = ""
        self.served: tuple[Served, ...] = ()
        self.named: tuple[str, ...] | None = None  # the names last sent
        self.unnamed = True  # whether those of `served` may be others
        self.size: Size | None = None
        self.tail: list[int] = []
        self.version = -1  # of the catalog when `served` was chosen
        self.short: Short | None = None  # for steps of tokens alone, if there is a short way


class Short(NamedTuple):
    """What one datastore drafts at once, so that the request need not be looked at any more.

    Attributes:
        served: the datastore.
        size: how large drafts may be.
        names: its name as the field `datastores` of an answer, where the answer has to say it.
        version: of the catalog when it was chosen.
    """

    served: Served
    size: Size
    names: bytes
    version: int
