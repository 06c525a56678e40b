"""What is remembered says what was added and what was there already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rest_store.drafting.output_document import OutputDocument
from rest_store.drafting.remembering import RememberCounts, flush, remember


class Added(list[str]):
    duplicates: Sequence[str] = ()


class Target:
    def __init__(self) -> None:
        self.ids: set[str] = set()

    def add(self, documents: Sequence[Any], ids: Sequence[str] | None = None) -> Added:
        assert ids is not None
        added = Added(ids)
        added.duplicates = [one for one in ids if one in self.ids]
        self.ids.update(ids)
        return added


def test_outputs_that_are_there_already_are_duplicates() -> None:
    target, documents = Target(), [OutputDocument.of([1], [2, 3, 4, last]) for last in (5, 6, 7)]
    for places, added, duplicates in (([0, 1], 2, []), ([1, 2], 1, [1])):
        counts = RememberCounts()
        remember(target, [document for place in places if (document := documents[place])], counts)
        assert flush(target, None)
        assert counts.is_decided
        assert counts.added == added
        assert counts.duplicates == [document.id for place in duplicates if (document := documents[place])]
