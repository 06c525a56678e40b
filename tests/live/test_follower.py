"""What a reading process sorts itself, and what it keeps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rest_store.live import segments
from rest_store.live.live_datastore import LiveDatastore
from rest_store.live.segment import open_segment
from tests.shared.live import new_live, no_background, refresh, small_segments


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveDatastore]:
    small_segments(monkeypatch)
    no_background(monkeypatch)
    with new_live(tmp_path / "live") as live:
        yield live


def test_only_memtables_that_were_changed_are_sorted_again(
    live: LiveDatastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.add([[1, 2] * 20])
    live.namespace("other").add([[4, 5], [4, 6]], ["a", "b"])
    with LiveDatastore.open(live.path, read_only=True) as reader:
        mapped = reader.snapshot.views[0]
        sorted_sizes = []
        sort = segments.sorted_segment

        def counted(documents, vocabulary_size, **options):
            sorted_sizes.append(len(documents))
            return sort(documents, vocabulary_size, **options)

        monkeypatch.setattr(segments, "sorted_segment", counted)
        for number in range(3):
            live.add([[3, number]])
            refresh(reader)
        assert sorted_sizes == [1, 2, 3]
        assert reader.snapshot.views[0] is mapped
        assert (reader.count([1, 2]), reader.count([3]), reader.namespace("other").count([4])) == (
            20,
            3,
            2,
        )
        live.namespace("other").delete(["b"])
        refresh(reader)
        assert (reader.namespace("other").count([4]), sorted_sizes) == (1, [1, 2, 3, 1])
        live.compact()
        refresh(reader)
        assert sorted_sizes == [1, 2, 3, 1]
        assert (reader.count([1, 2]), reader.count([3]), reader.info().shard_count) == (20, 3, 2)


def test_a_file_that_the_writer_has_just_removed_is_made_again(
    live: LiveDatastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.add([[1, 2] * 20])
    live.add([[1, 3] * 20])

    def compacting(*arguments, **options):
        monkeypatch.undo()
        live.compact()
        return open_segment(*arguments, **options)

    monkeypatch.setattr(segments, "open_segment", compacting)
    with LiveDatastore.open(live.path, read_only=True) as reader:
        assert (reader.count([1, 2]), reader.count([1, 3])) == (20, 20)
        refresh(reader)
        assert (reader.count([1, 2]), reader.count([1, 3]), reader.info().shard_count) == (
            20,
            20,
            1,
        )
