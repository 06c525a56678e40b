"""What became of documents that were to be added."""

from __future__ import annotations

from collections.abc import Sequence, Set


class AddedDocuments(list[str]):
    """The ids of documents that were to be added, in their order.

    Args:
        ids: of all documents.
        new: those of `ids` that were not there before.

    Attributes:
        added: ids of the documents that were added.
        duplicates: ids of those that were not, since a document with their id was there already, or
            came before.
    """

    def __init__(self, ids: Sequence[str], new: Set[str]) -> None:
        super().__init__(ids)
        self.added: list[str] = []
        self.duplicates: list[str] = []
        left = set(new)
        for id in ids:
            (self.added if id in left else self.duplicates).append(id)
            left.discard(id)
