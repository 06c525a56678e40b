"""What keeps queries quick while a datastore grows: additions are held back, threads give way, readers sort little."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rest_store.live import writer
from rest_store.live.additions import NewDocument
from rest_store.live.follower import Follower
from rest_store.live.maintenance import Maintenance
from rest_store.live.segments import Bounds
from rest_store.live.writer import Writer
from tests.shared.live import new_live, small_segments, until


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Writer]:
    """A writer without threads, which merges when the test says so."""
    small_segments(monkeypatch)
    new_live(tmp_path).close()
    opened = Writer(tmp_path, Bounds())
    yield opened
    opened.close()


def add(opened: Writer, name: str, size: int) -> None:
    opened.add([NewDocument(name, np.arange(size).astype(">u2").tobytes())])


def test_additions_are_held_back_while_there_is_much_to_merge(alone: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    delays: list[float] = []
    monkeypatch.setattr(writer.time, "sleep", delays.append)
    for number in range(3):
        add(alone, str(number), 20)
    assert delays == []
    for number in range(3, 40):
        add(alone, str(number), 20)
    assert delays == sorted(delays)
    assert 0 < delays[0] < delays[-1] <= 0.03
    while alone.merge_in_memory():
        pass
    delays.clear()
    add(alone, "after", 20)
    assert delays == []


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")
def test_threads_beside_additions_have_a_low_priority() -> None:
    priorities: list[int] = []

    def job() -> bool:
        priorities.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return False

    before = os.getpriority(os.PRIO_PROCESS, 0)
    thread = Maintenance(job, "test", [job])
    until(lambda: priorities)
    thread.stop()
    assert priorities[0] == 15
    assert os.getpriority(os.PRIO_PROCESS, 0) == before, "the caller keeps its own"


def test_a_reader_keeps_what_it_sorted_of_documents_that_are_not_sealed(alone: Writer, tmp_path: Path) -> None:
    add(alone, "old", 200)
    follower = Follower(tmp_path)
    for name in ("new", "newer"):
        add(alone, name, 17)
        follower.refresh()
    _, kept = follower.segments.all
    assert alone.seal()
    follower.refresh()
    sealed, still = follower.segments.all
    assert still.view is kept.view
    assert (sealed.record is not None, sealed.span.last, still.span.first) == (True, 1, 2)
    follower.close()


def test_a_reader_whose_segments_end_elsewhere_misses_nothing(alone: Writer, tmp_path: Path) -> None:
    follower = Follower(tmp_path)
    for name, size in (("sealed", 64), ("beside it", 30), ("after them", 17)):
        add(alone, name, size)
        follower.refresh()
    assert [segment.span.last for segment in follower.segments.all] == [2, 3]
    assert alone.seal()
    assert [segment.span.last for segment in alone.segments.all] == [1, 2, 3]
    follower.refresh()
    assert [segment.span.last for segment in follower.segments.all] == [1, 3]
    kernel = follower.segments.snapshot.kernel
    assert [kernel.count([token]) for token in (63, 29, 16)] == [1, 2, 3]
    follower.close()
