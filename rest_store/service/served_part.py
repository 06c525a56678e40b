"""Which part of which build a served datastore is, for both sides."""

from __future__ import annotations

from typing import NamedTuple

from rest_store.v1 import datastore_pb2 as pb


class ServedPart(NamedTuple):
    """Part `number` of `parts` of a datastore.

    Attributes:
        number: 1..parts.
        parts: number of parts of the datastore.
        build: digest of the manifest of the whole, "sha256:...".
    """

    number: int
    parts: int
    build: str

    @classmethod
    def of(cls, message: pb.PartDescription) -> ServedPart:
        """Return the part that a message describes."""
        return cls(message.number, message.parts, message.build)

    def message(self) -> pb.PartDescription:
        """Return the message that describes this part."""
        return pb.PartDescription(number=self.number, parts=self.parts, build=self.build)

    def __str__(self) -> str:
        return f"part {self.number}/{self.parts} of {self.build[:23]}..."
