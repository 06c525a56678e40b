"""Adding documents: ids, callers that share a commit, interrupts, and a disk that is full."""

from __future__ import annotations

import gc
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rest_store.errors import StorageError
from rest_store.live import segment, segment_files, writer
from rest_store.live.documents import Documents
from rest_store.live.live_datastore import LiveDatastore
from rest_store.live.writer import Writer
from tests.shared.live import new_live, small_segments, until


def test_an_id_stands_for_one_document(tmp_path: Path) -> None:
    with new_live(tmp_path / "live") as live:
        assert live.add([[1, 2], [1, 3], [1, 4]], ["a", "b", "a"]) == ["a", "b", "a"]
        assert (live.count([1]), live.count([1, 2]), live.count([1, 4])) == (2, 1, 0)
        live.add([[1, 5]], ["a"])
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


def test_nothing_is_added(tmp_path: Path) -> None:
    with new_live(tmp_path / "live") as live:
        assert live.add([]) == []
        assert live.add([], []) == []
        assert live.delete([]) == 0
        assert live.info().document_count == 0
        assert len(live.draft([1])) == 0


def test_documents_of_many_kinds(tmp_path: Path) -> None:
    kinds = [[1, 2], (1, 2), np.array([1, 2]), np.array([1, 2], np.uint8), np.array([1, 2], np.uint64), range(1, 3)]
    with new_live(tmp_path / "live") as live:
        assert len(live.add(kinds)) == len(kinds)
        assert live.count([1, 2]) == len(kinds)
        live.add(np.array([[1, 2], [1, 2]]))
        assert live.count([1, 2]) == len(kinds) + 2


def test_a_large_document_and_more_documents_than_one_commit_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_segments(monkeypatch)
    with new_live(tmp_path / "live") as live:
        live.add([[1, 2] * 1000, *[[1, 2]] * 500, [1, 2] * 1000])
        live.compact()
        assert live.count([1, 2]) == 2500
        assert live.info().failure is None


def test_threads_share_commits_and_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_segments(monkeypatch)
    commits: list[int] = []
    add = Documents.add

    def counted(self: Documents, documents, ids, **options) -> int:
        commits.append(len(documents))
        return add(self, documents, ids, **options)

    monkeypatch.setattr(Documents, "add", counted)
    with new_live(tmp_path / "live") as live:
        threads = [
            threading.Thread(target=lambda own=own: [live.add([[own, own + 100]] * 2) for _ in range(25)])
            for own in range(8)
        ]
        with live._backend._locks.commit:  # all have queued by the time of the first commit
            for thread in threads:
                thread.start()
            until(lambda: len(live._backend._additions._queue) == 8)
        for thread in threads:
            thread.join()
        assert commits[0] == 16
        assert sum(commits) == 400
        for own in range(8):
            assert live.count([own, own + 100]) == 50
        assert live.info().failure is None
    with LiveDatastore.open(tmp_path / "live") as live:
        assert [live.count([own]) for own in range(8)] == [50] * 8


def test_queries_see_one_consistent_set_while_segments_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sequence that is always added together with another occurs as often in each draft."""
    small_segments(monkeypatch, young=32, sealed=128, largest=1000)
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


def test_adding_leaves_nothing_to_the_garbage_collector(tmp_path: Path) -> None:
    with new_live(tmp_path / "live") as live:
        live.add([[1, 2]])
        gc.collect()
        gc.disable()
        try:
            for _ in range(20):
                live.add([[1, 2]])
            assert gc.collect() < 20
        finally:
            gc.enable()


# --- What goes wrong --------------------------------------------------------------------------------------------------


def failing(times: int, error: BaseException, then: Callable[..., Any] = lambda *_, **__: None) -> Callable[..., Any]:
    """A function that raises `error` so many times, and then does what `then` does."""
    left = [times]

    def call(*arguments: object, **options: object) -> object:
        if left[0]:
            left[0] -= 1
            raise error
        return then(*arguments, **options)

    return call


@pytest.mark.parametrize("stored", [False, True])
def test_an_interrupt_loses_nothing_and_adds_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    """Before the commit and between it and what is shown to queries."""
    add = Documents.add
    interrupt = failing(1, KeyboardInterrupt())

    def interrupted(self: Documents, *arguments, **options) -> None:
        if stored:
            add(self, *arguments, **options)
        interrupt()
        if not stored:
            add(self, *arguments, **options)

    with new_live(tmp_path / "live") as live:
        live.add([[1, 2]])
        monkeypatch.setattr(Documents, "add", interrupted)
        with pytest.raises(KeyboardInterrupt):
            live.add([[1, 3]])
        monkeypatch.undo()
        live.add([[1, 4]])
        assert (live.count([1, 3]), live.count([1])) == (stored, 2 + stored)
        assert live.add([[1, 5]], ["one"]) == ["one"]
        assert live.delete(["one"]) == 1
        assert live.info().failure is None
    with LiveDatastore.open(tmp_path / "live") as live:
        assert live.count([1]) == 2 + stored


@pytest.mark.parametrize("stored", [False, True])
def test_an_interrupt_of_one_caller_is_not_that_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    """Whether it comes before the commit that they share, or after it."""
    store = Writer._store
    interrupt = failing(1, KeyboardInterrupt())

    def interrupted(self: Writer, added) -> bool:
        if stored:
            made_work = store(self, added)
        interrupt()
        return made_work if stored else store(self, added)

    monkeypatch.setattr(Writer, "_store", interrupted)
    ends: list[object] = []
    with new_live(tmp_path / "live") as live:

        def add(token: int) -> None:
            try:
                ends.append(live.add([[token]]))
            except BaseException as error:
                ends.append(error)

        threads = [threading.Thread(target=add, args=(token,)) for token in range(4)]
        with live._backend._locks.commit:
            for thread in threads:
                thread.start()
            until(lambda: len(live._backend._additions._queue) == 4)
        for thread in threads:
            thread.join()
        assert sum(isinstance(end, KeyboardInterrupt) for end in ends) == 1
        assert sum(isinstance(end, list) for end in ends) == 3
        assert sum(live.count([token]) for token in range(4)) == 3 + stored


def test_a_full_disk_is_a_named_error_and_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with new_live(tmp_path / "live") as live:
        live.add([[1, 2]], ["kept"])
        with monkeypatch.context() as patch:
            full_database = failing(2, sqlite3.OperationalError("database or disk is full"), Documents._replace)
            patch.setattr(Documents, "_replace", lambda *arguments: full_database(*arguments))
            patch.setattr(segment, "seal", failing(1, OSError(28, "No space left on device"), segment.seal))
            with pytest.raises(StorageError, match=r"a segment cannot be written .No space left on device"):
                live.compact()
            with pytest.raises(StorageError, match=r"documents cannot be written .database or disk is full"):
                live.compact()
            with pytest.raises(StorageError):
                live.delete(["kept"])
            assert live.count([1, 2]) == 1
        assert list((tmp_path / "live").glob("segment-*")) == [], "what was written in vain is removed"
        with monkeypatch.context() as patch:
            patch.setattr(Documents, "add", failing(1, StorageError("full")))
            with pytest.raises(StorageError):
                live.add([[1, 3]])
            assert (live.count([1, 2]), live.count([1, 3])) == (1, 0)
        live.add([[1, 3]])
        live.compact()
        assert (live.count([1, 2]), live.count([1, 3])) == (1, 1)


def test_what_cannot_be_sealed_goes_on_being_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full for files of segments: additions are merged and purged, and sealed later."""
    small_segments(monkeypatch)
    merged = threading.Event()
    merge = Writer.merge_in_memory

    def merging(self: Writer) -> bool:
        merged.set()
        return merge(self)

    monkeypatch.setattr(Writer, "merge_in_memory", merging)
    full = [True]
    write = segment_files.write_segment

    def written(*arguments: Any) -> Any:
        if full[0]:
            raise StorageError("full")
        return write(*arguments)

    monkeypatch.setattr(segment_files, "write_segment", written)
    with new_live(tmp_path / "live") as live:
        live.add([[1, 2] * 50, [1, 2] * 50])
        until(lambda: live.info().failure is not None)
        merged.clear()
        assert merged.wait(60)
        assert live.info().failure == "rest_store.errors.StorageError: full"
        full[0] = False
        until(lambda: live.info().memory_token_count == 0)
        assert live.count([1, 2]) == 100


def test_what_was_sealed_in_vain_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often: the database cannot be read any more, and nobody knows what it holds."""
    small_segments(monkeypatch)
    with new_live(tmp_path / "live") as live:
        for thread in live._threads:
            thread.stop()
        live.add([[1, 2] * 50] * 2)
        with monkeypatch.context() as patch:
            patch.setattr(Documents, "add", failing(1, StorageError("full")))
            patch.setattr(Documents, "state", failing(2, StorageError("damaged")))
            with pytest.raises(StorageError, match="full"):
                live.add([[1]])
            for _ in range(2):
                with pytest.raises(StorageError, match="damaged"):
                    live._backend.seal()
        assert list((tmp_path / "live").glob("segment-*")) == []
        assert live._backend.seal()
        assert live.count([1, 2]) == 100


def test_compacting_ends_while_others_add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with new_live(tmp_path / "live") as live:
        live.add([[1, 2]])
        written = segment_files.write_segment
        more = iter(range(10))

        def adding(*arguments: Any) -> Any:
            if next(more, None) is not None:
                adders.append(threading.Thread(target=live.add, args=([[1, 3]],)))
                adders[-1].start()
                until(lambda: live._backend._additions._queue)
            return written(*arguments)

        def joined(*arguments: Any) -> Any:
            for adder in adders:
                adder.join()
            return to_seal(*arguments)

        adders: list[threading.Thread] = []
        to_seal = Writer._seal_to
        monkeypatch.setattr(Writer, "_seal_to", joined)
        monkeypatch.setattr(segment_files, "write_segment", adding)
        live.compact()
        assert len(adders) == 1
        assert live.count([1]) == 2


def test_adding_helps_to_seal_when_it_is_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_segments(monkeypatch)
    monkeypatch.setattr(writer, "_MOST_IN_MEMORY", 500)
    with new_live(tmp_path / "live") as live:
        monkeypatch.setattr(live._threads[0], "wake", lambda: None)
        for _ in range(30):
            live.add([[1, 2] * 50])
            assert live.info().memory_token_count <= 700
        assert live.count([1, 2]) == 1500
