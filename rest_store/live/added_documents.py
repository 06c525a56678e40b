"""The result of an addition: `AddedDocuments`."""

from __future__ import annotations

from collections.abc import Sequence, Set


class AddedDocuments(list[str]):
    """The ids of the documents of one addition, in their order.

    Args:
        ids: the ids of all documents.
        new: the ids that did not exist before.

    Attributes:
        added: ids of the documents that were added.
        duplicates: ids of the documents that were not added, because a document with the same id
            existed or came earlier in the addition.
    """

    def __init__(self, ids: Sequence[str], new: Set[str]) -> None:
        super().__init__(ids)
        self.added: list[str] = []
        self.duplicates: list[str] = []
        left = set(new)
        for id in ids:
            if id in left:
                self.added.append(id)
                left.remove(id)
            else:
                self.duplicates.append(id)
