"""Adding documents: ids, threads, interrupts, a disk that is full, and compaction beside it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from rest_store.errors import StorageError
from rest_store.live import compactor, segment, segment_builder
from rest_store.live.compactor import Compactor, segments_to_merge
from rest_store.live.documents import Documents
from rest_store.live.live_datastore import LiveDatastore
from rest_store.live.retention import Retention
from tests.shared.live import new_live, no_background, small_segments, until


def test_an_id_stands_for_one_document(tmp_path: Path) -> None:
    with new_live(tmp_path / "live") as live:
        ids = live.add([[1, 2], [1, 3], [1, 4]], ["a", "b", "a"])
        assert (ids, ids.added, ids.duplicates) == (["a", "b", "a"], ["a", "b"], ["a"])
        assert (live.count([1]), live.count([1, 2]), live.count([1, 4])) == (2, 1, 0)
        ids = live.add([[1, 5], [2]], ["a", "c"])
        assert (ids, ids.added, ids.duplicates) == (["a", "c"], ["c"], ["a"])
        assert live.count([1, 5]) == 0
        live.compact()
        live.add([[1, 5]], ["b"])
        assert live.count([1, 5]) == 0
    with LiveDatastore.open(tmp_path / "live") as live:
        live.add([[1, 5]], ["a"])
        assert (live.count([1]), live.count([1, 5])) == (2, 0)
        assert live.delete(["a"]) == 1
        live.add([[1, 5]], ["a"])
        assert (live.count([1]), live.count([1, 2]), live.count([1, 5])) == (2, 0, 1)


def test_an_id_may_be_used_again_once_its_document_is_evicted(tmp_path: Path) -> None:
    with new_live(tmp_path / "live", max_tokens=16) as live:
        live.add([[1, 2]], ["a"])
        for token in range(100, 120):
            live.add([[token, token]])
        assert live.count([1]) == 0
        live.add([[1, 3]], ["a"])
        live.add([[1, 4]], ["a"])
        assert (live.count([1, 2]), live.count([1, 3]), live.count([1, 4])) == (0, 1, 0)
        assert live.info().failure is None


def test_documents_of_many_kinds(tmp_path: Path) -> None:
    kinds = [
        [1, 2],
        (1, 2),
        np.array([1, 2]),
        np.array([1, 2], np.uint8),
        np.array([1, 2], np.uint64),
        range(1, 3),
    ]
    with new_live(tmp_path / "live") as live:
        assert len(live.add(kinds)) == len(kinds)
        assert live.count([1, 2]) == len(kinds)
        live.add(np.array([[1, 2], [1, 2]]))
        assert live.count([1, 2]) == len(kinds) + 2


def test_nothing_is_added(tmp_path: Path) -> None:
    with new_live(tmp_path / "live") as live:
        assert live.add([]) == []
        assert live.add([], []) == []
        assert live.delete([]) == 0
        assert live.info().document_count == 0
        assert len(live.draft([1])) == 0


def test_ids_may_be_any_text(tmp_path: Path) -> None:
    strange = ["a" * 256, "\U0001f600" * 256, "'; DROP TABLE documents; --", "../../x", "\n", " "]
    with new_live(tmp_path / "live") as live:
        assert live.add([[1, 2]] * len(strange), strange) == strange
        live.compact()
        assert live.delete([*strange, "a"]) == len(strange)
        assert live.count([1]) == 0


def test_a_large_document_and_more_documents_than_one_commit_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_segments(monkeypatch)
    with new_live(tmp_path / "live") as live:
        live.add([[1, 2] * 1000, *[[1, 2]] * 500, [1, 2] * 1000])
        live.compact()
        assert live.count([1, 2]) == 2500
        assert live.info().failure is None


def test_threads_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_segments(monkeypatch)
    with new_live(tmp_path / "live") as live:
        threads = [
            threading.Thread(
                target=lambda own=own: [live.add([[own, own + 100]] * 2) for _ in range(25)]
            )
            for own in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [live.count([own, own + 100]) for own in range(8)] == [50] * 8
        assert live.info().failure is None
    with LiveDatastore.open(tmp_path / "live") as live:
        assert [live.count([own]) for own in range(8)] == [50] * 8


def test_queries_see_one_consistent_set_while_segments_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sequence that is always added together with another occurs as often in each draft."""
    small_segments(monkeypatch, memtable=32, largest=1000)
    stop = threading.Event()
    unequal: list[object] = []
    with new_live(tmp_path / "live", max_tokens=4000) as live:
        live.add([[7, 1], [7, 2]])

        def ask() -> None:
            while not stop.is_set():
                tree = live.draft([7], max_nodes=4, max_depth=1)
                counts = dict(zip(tree.tokens.tolist(), tree.counts.tolist(), strict=True))
                if counts.get(1) != counts.get(2):
                    unequal.append(counts)

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        added = []
        for size in range(60):
            added += live.add([[7, 1] * (1 + size % 7) + [7, 2] * (1 + size % 7)])
            if size % 10 == 9:
                live.delete(added[-3:])
        stop.set()
        for thread in threads:
            thread.join()
        assert live.info().failure is None
    assert unequal == []


# --- What goes wrong ------------------------------------------------------------------------------


def failing(
    times: int, error: BaseException, then: Callable[..., Any] = lambda *_, **__: None
) -> Callable[..., Any]:
    """A function that raises `error` so many times, and then does what `then` does."""
    left = [times]

    def call(*arguments: object, **options: object) -> object:
        if left[0]:
            left[0] -= 1
            raise error
        return then(*arguments, **options)

    return call


@pytest.mark.parametrize("size", [1, 50])
@pytest.mark.parametrize("stored", [False, True])
def test_an_interrupt_loses_nothing_and_adds_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: bool, size: int
) -> None:
    """The interrupt comes before the commit, or between the commit and its publication."""
    commit = Documents.commit
    interrupt = failing(1, KeyboardInterrupt())

    def interrupted(*arguments: Any, **options: Any) -> None:
        if not stored:
            interrupt()
        commit(*arguments, **options)
        interrupt()

    small_segments(monkeypatch)
    no_background(monkeypatch)
    with new_live(tmp_path / "live") as live:
        live.add([[1, 2]])
        monkeypatch.setattr(Documents, "commit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            live.add([[1, 3] * size])
        monkeypatch.undo()
        live.add([[1, 4]])
        assert (live.count([1, 3]), live.count([1])) == (stored * size, 2 + stored * size)
        assert live.add([[1, 5]], ["one"]) == ["one"]
        assert live.delete(["one"]) == 1
    with LiveDatastore.open(tmp_path / "live") as live:
        assert live.count([1]) == 2 + stored * size


def test_a_full_disk_is_a_named_error_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with new_live(tmp_path / "live") as live:
        live.add([[1, 2]], ["kept"])
        acts: list[Callable[[], object]] = [
            live.compact,
            lambda: live.delete(["kept"]),
            lambda: live.add([[1, 3]]),
        ]
        for act in acts:
            with monkeypatch.context() as patch:
                patch.setattr(Documents, "commit", failing(1, StorageError("full")))
                with pytest.raises(StorageError, match="full"):
                    act()
        with monkeypatch.context() as patch:
            patch.setattr(segment, "write_file", failing(1, OSError(28, "No space left on device")))
            with pytest.raises(
                StorageError, match=r"a segment cannot be written .No space left on device"
            ):
                live.compact()
        assert (live.count([1, 2]), live.count([1, 3])) == (1, 0)
        assert list((tmp_path / "live").glob("segment-*")) == [], (
            "what was written in vain is removed"
        )
        live.add([[1, 3]])
        live.compact()
        assert (live.count([1, 2]), live.count([1, 3])) == (1, 1)


def test_a_merge_that_failed_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_segments(monkeypatch)
    is_full = [True]
    merge = Compactor.merge

    def merging(self: Compactor, *arguments: object) -> bool:
        if is_full[0]:
            raise StorageError("full")
        return merge(self, *arguments)

    monkeypatch.setattr(Compactor, "merge", merging)
    with new_live(tmp_path / "live") as live:
        for _ in range(2):
            live.add([[1, 2] * 50])
        until(lambda: live.info().failure is not None)
        assert live.info().failure == "rest_store.errors.StorageError: full"
        is_full[0] = False
        until(lambda: live.info().shard_count == 1 and live.info().failure is None)
        assert live.count([1, 2]) == 100


def test_what_is_evicted_while_it_is_merged_stays_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_segments(monkeypatch)
    no_background(monkeypatch)
    with new_live(tmp_path / "live", max_tokens=800) as live:
        for _ in range(2):
            live.add([[1, 2] * 20])
        write = segment_builder.write_segment

        def evicting(*arguments: Any) -> Any:
            monkeypatch.undo()
            small_segments(monkeypatch)
            live.add([[3, 4] * 45] * 9)
            return write(*arguments)

        monkeypatch.setattr(segment_builder, "write_segment", evicting)
        live.compact()
        assert live.count([1]) == 0
        assert len(list(live.path.glob("segment-*.tokens"))) == live.info().shard_count


@pytest.mark.parametrize("discarded", [["a"], ["b", "c"], ["a", "b", "c", "d"]])
def test_what_is_discarded_while_it_is_merged_goes_at_once_and_stays_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, discarded: list[str]
) -> None:
    """A discarding does not wait for a merge, and the merge is not in vain."""
    small_segments(monkeypatch)
    no_background(monkeypatch)
    kept = [id for id in "abcd" if id not in discarded]
    with new_live(tmp_path / "live") as live:
        live.add([[1, 9] * 20, [2, 9] * 20], ["a", "b"])
        live.add([[3, 9] * 20, [4, 9] * 20], ["c", "d"])
        write = segment_builder.write_segment
        merges: list[int] = []

        def discarding(*arguments: Any) -> Any:
            if not merges:
                merges.append(1)
                assert live.discard([*discarded, "absent"]) == len(discarded)
                live.add([[5, 9] * 20], ["e"])
                assert [live.count([1 + "abcd".index(id)]) for id in discarded] == [0] * len(
                    discarded
                )
            return write(*arguments)

        monkeypatch.setattr(segment_builder, "write_segment", discarding)
        assert live.backend.role._compactor.merge([""])
        counts = [live.count([1 + place]) for place in range(5)]
        assert counts == [20 * (id in [*kept, "e"]) for id in "abcde"]
        assert live.info().shard_count == 1 + bool(kept)
        files = live.path.glob("segment-*.tokens")
        assert len([*files]) == live.info().shard_count, "no file has the discarded documents"
    with LiveDatastore.open(tmp_path / "live") as live:
        assert [live.count([1 + place]) for place in range(5)] == counts


def test_a_removal_sorts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_background(monkeypatch)
    with new_live(tmp_path / "live") as live:
        live.add([[number % 250, 9] * 20 for number in range(1000)], [*map(str, range(1000))])
        live.compact()
        live.add([[252, 9] * 20], ["in memory"])
        monkeypatch.setattr(segment_builder, "sorted_segment", None)
        assert live.discard(["7", "in memory"]) == 2
        assert live.delete(["8", "257"]) == 2
        assert [live.count([token]) for token in (7, 8, 9, 252)] == [40, 60, 20 * 1000 + 80 - 60, 0]
    with LiveDatastore.open(tmp_path / "live") as live:
        assert live.count([7]) == 40


# --- Merges ---------------------------------------------------------------------------------------


def sizes_after(additions: list[int], largest: int = 1 << 24) -> tuple[list[int], int]:
    """Add segments and merge them; return the sizes then, and the positions that were sorted."""

    class Sized(NamedTuple):
        position_count: int
        oldest: float = 0.0
        newest: float = 0.0

    class Bounds(Retention):
        max_segment_positions = largest

    present: list[Any] = []
    sorted_positions = 0
    for size in additions:
        present.append(Sized(size))
        sorted_positions += size
        while run := segments_to_merge(present, Bounds()):
            place = present.index(run[0])
            assert present[place : place + len(run)] == run
            present[place : place + len(run)] = [Sized(sum(one.position_count for one in run))]
            sorted_positions += present[place].position_count
    return [one.position_count for one in present], sorted_positions


@pytest.mark.parametrize("tokens", [3_000_000, 7_100_000, 12_000_000, 50_000_000])
def test_a_large_addition_is_sorted_twice_at_most(tokens: int) -> None:
    """Additions of four million positions at once, and a rest."""
    batches = [1 << 22] * (tokens >> 22) + [tokens % (1 << 22)]
    sizes, sorted_positions = sizes_after(batches)
    assert sum(sizes) == tokens
    assert len(sizes) <= 6
    assert sorted_positions <= (2 if tokens > 1 << 24 else 1) * tokens


def test_there_are_few_segments_after_many_small_additions() -> None:
    sizes, sorted_positions = sizes_after([5_000] * 4_000)
    assert sum(sizes) == 20_000_000
    assert len(sizes) <= 12
    assert sorted_positions <= 12 * 20_000_000
    assert sizes == sorted(sizes, reverse=True)


def test_a_small_segment_behind_large_ones_does_not_wait() -> None:
    large = [5_000_000, 2_000_000]
    assert sizes_after([*large, 30_000, 20_000])[0] == [*large, 50_000]
    assert sizes_after([*large, 900_000, 20_000])[0] == [*large, 900_000, 20_000]
    assert sizes_after([2_000_000] * 4 + [10_000])[0] == [8_000_000, 10_000]


def test_large_segments_become_as_large_as_they_may() -> None:
    assert sizes_after([5_000_000] * 3)[0] == [15_000_000]
    assert sizes_after([6_000_000] * 2)[0] == [12_000_000]
    assert sizes_after([2_000_000] * 4, largest=7_000_000)[0] == [6_000_000, 2_000_000]
    assert sizes_after([9_000_000, 3_000_000])[0] == [9_000_000, 3_000_000]


def test_additions_are_held_back_while_there_is_much_to_merge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_segments(monkeypatch)
    no_background(monkeypatch)
    delays: list[float] = []
    with new_live(tmp_path / "live") as live:
        monkeypatch.setattr(compactor.time, "sleep", delays.append)
        for number in range(12):
            live.add([[number] * 20])
        assert set(delays) == {0.02}
        live.compact()
        delays.clear()
        live.add([[1] * 20])
        assert delays == []
