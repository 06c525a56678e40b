"""What is remembered says what was added and what was there already."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rest_store.drafting.output_document import OutputDocument
from rest_store.drafting.remembering import RememberCounts, flush, remember
from rest_store.live.live_datastore import LiveDatastore
from tests.shared.strategies import identity


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


def test_what_waits_for_a_namespace_is_written_before_its_datastore_is_closed(tmp_path: Path) -> None:
    with LiveDatastore.open(tmp_path / "live", tokenizer=identity(300)) as live:
        counts = [RememberCounts() for _ in range(50)]
        for number, one in enumerate(counts):
            remember(live.namespace("tenant"), [OutputDocument(f"{number}", np.arange(5 + number))], one)
    assert [one.added for one in counts] == [1] * 50


def test_outputs_that_are_there_already_are_duplicates() -> None:
    documents = [OutputDocument("abc"[place], np.array([1, 2, 3, place], np.int32)) for place in range(3)]
    target, first, second = Target(), RememberCounts(), RememberCounts()
    remember(target, documents[:2], first)
    remember(target, documents[1:], second)
    assert flush(target, None)
    assert (first.added, first.duplicates, first.is_decided) == (2, [], True)
    assert (second.added, second.duplicates, second.is_decided) == (1, ["b"], True)
