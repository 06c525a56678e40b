"""Closing and forking; what readers in other processes see; sessions that go on."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rest_store
from rest_store.errors import DatastoreClosedError, WriterError
from rest_store.live.background import Background
from rest_store.live.documents import Documents
from rest_store.live.live_datastore import LiveDatastore
from rest_store.live.writer import Writer
from tests.shared.live import new_live, refresh, small_segments, until
from tests.shared.strategies import identity, refused


def test_a_closed_datastore_refuses_everything(tmp_path: Path) -> None:
    live = new_live(tmp_path / "live")
    live.add([[1, 2]])
    live.close()
    live.close()
    calls: list[Callable[[], object]] = [
        lambda: live.add([[1]]),
        lambda: live.delete(["a"]),
        lambda: live.draft([1]),
        live.compact,
        live.info,
        live.require_readable,
    ]
    for call in calls:
        refused(DatastoreClosedError, call, "the datastore is closed, expected open")
    assert "closed" in repr(live)


@pytest.mark.parametrize("read_only", [False, True])
def test_a_closed_datastore_keeps_no_files_mapped(tmp_path: Path, read_only: bool) -> None:
    with new_live(tmp_path / "live") as live:
        live.add([[1, 2]])
        live.compact()
    with LiveDatastore.open(tmp_path / "live", read_only=read_only) as other:
        assert other.count([1, 2]) == 1
        assert str(tmp_path) in Path("/proc/self/maps").read_text(encoding="utf-8")
    assert (live.read_only, other.read_only) == (False, read_only)
    assert str(tmp_path / "live" / "segment-") not in Path("/proc/self/maps").read_text(
        encoding="utf-8"
    )


def test_closing_while_threads_add_and_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call is completed, or says that the datastore is closed.

    Acknowledged documents are there.
    """
    small_segments(monkeypatch)
    live = new_live(tmp_path / "live")
    acknowledged: list[str] = []
    others: list[BaseException] = []

    def run(call: Callable[[], object]) -> None:
        try:
            while True:
                call()
        except DatastoreClosedError:
            pass
        except BaseException as error:
            others.append(error)

    calls: list[Callable[[], object]] = [
        lambda: acknowledged.extend(live.add([[1, 2], [3]])),
        lambda: acknowledged.extend(live.add([[1, 4]])),
        lambda: live.draft([1]),
        lambda: live.info(),
        lambda: live.delete(["absent"]),
    ]
    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    until(lambda: len(acknowledged) > 20)
    live.close()
    for thread in threads:
        thread.join()
    assert others == [], others
    with LiveDatastore.open(tmp_path / "live") as live:
        assert live.info().document_count == len(acknowledged)


@pytest.mark.parametrize("read_only", [False, True])
def test_a_dropped_datastore_is_closed(tmp_path: Path, read_only: bool) -> None:
    files, threads = descriptors(), threading.active_count()
    with new_live(tmp_path / "live") as live:
        live.add([[1, 2]])
    dropped = LiveDatastore.open(tmp_path / "live", read_only=read_only)
    assert dropped.count([1, 2]) == 1
    del dropped
    # Those of earlier tests end, too.
    until(lambda: descriptors() <= files and threading.active_count() <= threads)
    LiveDatastore.open(tmp_path / "live").close()


def test_threads_close_it_at_the_same_time(tmp_path: Path) -> None:
    """The directory is free when any of the calls returns."""
    live = new_live(tmp_path / "live")
    live.add([[1, 2]])
    together = threading.Barrier(2)
    live.backend.before_close(lambda _: together.wait())
    errors: list[BaseException] = []

    def close() -> None:
        try:
            live.close()
            new_live(tmp_path / "live").close()
        except WriterError:  # the other thread has opened it
            pass
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=close) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_an_interrupted_close_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = new_live(tmp_path / "live")

    def interrupted(writer: Writer) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "close", interrupted)
        with pytest.raises(KeyboardInterrupt):
            live.close()
    live.close()
    new_live(tmp_path / "live").close()


def test_the_working_directory_may_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_segments(monkeypatch)
    monkeypatch.chdir(tmp_path)
    with (
        LiveDatastore.open("live", tokenizer=identity(300)) as live,
        LiveDatastore.open("live", read_only=True) as reader,
    ):
        monkeypatch.chdir("/")
        ids = live.add([[1, 2] * 50, [1, 3]])
        live.compact()
        assert live.delete(ids[1:]) == 1
        refresh(reader)
        assert (live.count([1, 2]), reader.count([1, 2])) == (50, 50)
        assert (live.info().failure, reader.info().failure, live.path) == (None, None, Path("live"))


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")
def test_the_thread_beside_additions_has_a_low_priority() -> None:
    priorities: list[int] = []

    def work() -> bool:
        priorities.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return False

    before = os.getpriority(os.PRIO_PROCESS, 0)
    thread = Background(work, work, lambda: None)
    until(lambda: priorities)
    thread.stop()
    assert priorities[0] > before
    assert os.getpriority(os.PRIO_PROCESS, 0) == before, "the caller keeps its own"


EXIT = """
import sys, threading
from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.datastore import suffix_array
from rest_store.live.documents import Documents
from rest_store.live.live_datastore import LiveDatastore
from tests.shared.strategies import identity

native, busy, go = suffix_array.native_kernel(), threading.Event(), threading.Event()

class Slow:
    def sort_suffixes(self, *arguments):
        busy.set()
        go.wait()
        status = native.sort_suffixes(*arguments)
        print("sorted", flush=True)
        return status

live = LiveDatastore.open(sys.argv[1], tokenizer=identity(300))
suffix_array.native_kernel = Slow
threading.Thread(target=live.add, args=([[1, 2]],), daemon=True).start()
busy.wait()
end = threading.Timer(0.05, go.set)
end.daemon = True  # it ends while the interpreter exits
end.start()
"""


def test_the_interpreter_exits_when_nobody_sorts_any_more(tmp_path: Path) -> None:
    """A thread that comes back from native code after that would abort the process."""
    ended = subprocess.run(
        [sys.executable, "-c", EXIT, tmp_path / "live"], capture_output=True, text=True
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "sorted\n", "")
    with LiveDatastore.open(tmp_path / "live") as live:
        assert live.count([1, 2]) == 1


def test_only_the_parent_goes_on_after_a_fork(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = new_live(tmp_path / "live")
    live.add([[1, 2]])
    commit, busy, go = Documents.commit, threading.Event(), threading.Event()

    def slow(*arguments: Any, **options: Any) -> None:
        busy.set()
        go.wait()
        commit(*arguments, **options)

    monkeypatch.setattr(Documents, "commit", slow)
    thread = threading.Thread(target=live.add, args=([[1, 3]],))
    thread.start()
    busy.wait()  # now that thread holds the locks
    child = os.fork()
    if child == 0:
        status = 1
        try:
            assert live.count([1, 2]) == 1
            calls: list[Callable[[], object]] = [
                lambda: live.add([[1]]),
                lambda: live.delete(["a"]),
                live.compact,
            ]
            for call in calls:
                refused(WriterError, call, "used after a fork")
            live.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    go.set()
    thread.join()
    assert live.count([1]) == 2
    live.close()


def test_a_child_keeps_no_lock(tmp_path: Path) -> None:
    live = new_live(tmp_path / "live")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write)
        os.read(read, 1)  # until the parent has closed its end
        os._exit(0)
    os.close(read)
    live.close()
    try:
        LiveDatastore.open(tmp_path / "live").close()
    finally:
        os.close(write)
        os.waitpid(child, 0)


def test_a_session_follows_changes_and_goes_on_when_it_is_closed(tmp_path: Path) -> None:
    with (
        new_live(tmp_path / "live") as live,
        rest_store.DraftSession([live], prompt=[1, 2]) as session,
    ):
        assert session.draft(4).tokens.size == 0
        ids = live.add([[1, 2, 3, 4]] * 3)
        assert session.draft(4).tokens.tolist()[:2] == [3, 4]
        live.delete(ids)
        live.add([[1, 2, 5]] * 3)
        assert session.draft(4).tokens.tolist()[:1] == [5]
        live.close()
        assert session.draft(4).tokens.size == 0
        assert session.statistics.omissions == {(str(live.path), "error"): 1}
        session.accept([5])


def test_a_failed_opening_leaves_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_live(tmp_path / "live").close()

    def damaged(self: Documents) -> None:
        raise rest_store.errors.StorageError("damaged")

    monkeypatch.setattr(Documents, "segment_records", damaged)
    before = descriptors()
    for _ in range(3):
        with pytest.raises(rest_store.errors.StorageError):
            LiveDatastore.open(tmp_path / "live")
    assert descriptors() == before


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
