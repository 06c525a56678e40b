"""A file that is truncated while it is mapped raises a named error, never SIGBUS."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rest_store.datastore import check
from rest_store.datastore.check import check_datastore
from rest_store.datastore.datastore import Datastore
from rest_store.datastore.header import HEADER_SIZE, TAIL_SIZE
from rest_store.datastore.suffix_array import sorted_suffixes
from rest_store.errors import DatastoreUnavailableError
from tests.shared.strategies import TWO_SHARDS, Corpus, refused, write_datastore

WITHOUT_SANITIZER = pytest.mark.skipif(
    "asan" in os.environ.get("LD_PRELOAD", ""), reason="the sanitizer handles SIGBUS itself"
)

QUERIES: dict[str, Callable[[Datastore], object]] = {
    "longest_suffix_match": lambda store: store.longest_suffix_match([1, 2]),
    "draft": lambda store: store.draft([1, 2]),
    "draft_batch": lambda store: store.draft_batch([[1, 2], [7]]),
    "count": lambda store: store.count([1]),
}


def truncate(directory: Path, pattern: str = "shard-*") -> None:
    for path in directory.glob(pattern):
        os.truncate(path, 0)


@pytest.mark.parametrize("file", ["shard-00000.tokens", "shard-00000.suffixes"])
@pytest.mark.parametrize("query", QUERIES)
def test_a_query_of_a_truncated_file_is_refused(directory: Path, query: str, file: str) -> None:
    store = Datastore.open(directory)
    truncate(directory, file)
    message = refused(
        DatastoreUnavailableError,
        lambda: QUERIES[query](store),
        f"{directory / file}: a page of the file",
    )
    assert message.endswith(
        "unreadable (it was truncated, or its disk fails), expected as it was opened"
    )
    for later in QUERIES.values():
        refused(DatastoreUnavailableError, lambda later=later: later(store))  # type: ignore[misc]
    refused(DatastoreUnavailableError, store.require_readable)
    assert store.info().token_count == 11


def test_other_datastores_are_not_affected(directory: Path, tmp_path: Path) -> None:
    other = write_datastore(tmp_path / "other", TWO_SHARDS)
    stores = [Datastore.open(directory), Datastore.open(other)]
    expected = stores[1].draft([1, 2])
    truncate(directory)
    refused(DatastoreUnavailableError, lambda: stores[0].draft([1, 2]))
    assert stores[1].draft([1, 2]) == expected
    del stores[0]
    assert Datastore.open(other).draft([1, 2]) == expected  # in place of the one that was lost


def test_no_comparison_leaves_the_mapping_of_a_lost_file(tmp_path: Path) -> None:
    """Zeros in place of the last separator equal a pattern of zeros.

    The zeros behind the last suffixes do, too.
    """
    positions = ((8 << 20) - HEADER_SIZE - TAIL_SIZE) // 2  # the file ends where a page ends
    write_datastore(tmp_path, Corpus(300, [[[0] * (positions - 1)]]))
    code = """
# Larger than any gap, so that the files are mapped right before it.
guard = mmap.mmap(-1, 1 << 28, prot=0)
store = Datastore.open(sys.argv[1])
os.truncate(Path(sys.argv[1]) / "shard-00000.tokens", 0)
try:
    store.count([0] * 96)
except DatastoreUnavailableError:
    print("refused", flush=True)
"""
    assert run(code, tmp_path) == (0, "refused\n", "")


def query_in_threads(
    store: Datastore, error: type[Exception], meanwhile: Callable[[], object]
) -> None:
    """Draft in four threads until `meanwhile` makes that raise `error`.

    All answers before are right.
    """
    expected = store.draft([1, 2])
    ready = threading.Barrier(5)
    wrong: list[object] = []

    def query() -> None:
        ready.wait()
        while True:
            try:
                trees = [store.draft([1, 2]), *store.draft_batch([[1, 2]] * 3)]
            except error:
                return
            wrong.extend(tree for tree in trees if tree != expected)

    threads = [threading.Thread(target=query) for _ in range(4)]
    for thread in threads:
        thread.start()
    ready.wait()
    meanwhile()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_threads_that_query_while_files_are_truncated_get_right_answers_or_the_error(
    directory: Path,
) -> None:
    query_in_threads(
        Datastore.open(directory), DatastoreUnavailableError, lambda: truncate(directory)
    )


@pytest.mark.parametrize("stage", ["symbols", "suffixes"])
def test_a_check_of_files_that_are_truncated_meanwhile(
    directory: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """The error names the loss, not the zeros in place of the content."""
    then = getattr(check, f"_check_{stage}")

    def run(*arguments: object, **options: object) -> None:
        truncate(directory)
        then(*arguments, **options)

    monkeypatch.setattr(check, f"_check_{stage}", run)
    refused(
        DatastoreUnavailableError,
        lambda: check_datastore(directory, sort=sorted_suffixes),
        "shard-00000.",
    )


def test_a_lost_datastore_costs_the_others_nothing(tmp_path: Path) -> None:
    for name in ("lost", "sound"):
        write_datastore(tmp_path / name, Corpus(300, [[[1, 2, 3]]] * 200))
    lost = Datastore.open(tmp_path / "lost")
    sound = Datastore.open(tmp_path / "sound")

    def cost() -> float:
        def once() -> float:
            began = time.process_time()
            for _ in range(200):
                sound.draft([1, 2])
            return time.process_time() - began

        return min(once() for _ in range(5))

    before = cost()
    truncate(tmp_path / "lost")
    refused(DatastoreUnavailableError, lambda: lost.draft([1, 2]))
    assert cost() < 5 * before


# What else SIGBUS means to a process.

SETUP = """
import faulthandler, mmap, os, signal, sys
from pathlib import Path
from rest_store.datastore.datastore import Datastore
from rest_store.errors import DatastoreUnavailableError

def lose_pages():
    for path in Path(sys.argv[1]).glob("shard-*"):
        os.truncate(path, 0)
    try:
        store.draft([1, 2])
    except DatastoreUnavailableError:
        print("refused", flush=True)

def lose_own_page():
    path = Path(sys.argv[1]) / "own"
    path.write_bytes(bytes(5_000))
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    os.truncate(path, 0)
    mapped[0]
"""
OPEN = "store = Datastore.open(sys.argv[1])\n"
FAULTS = "faulthandler.enable()\n"
ORDERS = pytest.mark.parametrize("order", [FAULTS + OPEN, OPEN + FAULTS, OPEN + FAULTS + OPEN])


def run(code: str, directory: Path) -> tuple[int, str, str]:
    """Return the exit status of a new process that runs `code`, and what it wrote."""
    done = subprocess.run(
        [
            sys.executable,
            *(["-S"] if sys.flags.no_site else []),
            "-c",
            SETUP + code,
            str(directory),
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@WITHOUT_SANITIZER
@ORDERS
def test_lost_pages_beside_a_fault_handler(directory: Path, order: str) -> None:
    status, out, _ = run(order + "lose_pages()", directory)
    assert (status, out) == (0, "refused\n")


@WITHOUT_SANITIZER
@ORDERS
def test_pages_of_others_end_the_process_and_the_fault_handler_reports_them(
    directory: Path, order: str
) -> None:
    status, _, error = run(order + "lose_own_page()", directory)
    assert status == -signal.SIGBUS
    assert "Fatal Python error: Bus error" in error
    assert "lose_own_page" in error


def test_handlers_of_others_get_the_signals_that_are_sent(directory: Path) -> None:
    """Handlers that were installed before ours get them, and those that were installed later."""
    code = """
for name in ("before", "later"):
    signal.signal(signal.SIGBUS, lambda *_: print(name, flush=True))
    store = Datastore.open(sys.argv[1])
    os.kill(os.getpid(), signal.SIGBUS)
lose_pages()
os.kill(os.getpid(), signal.SIGBUS)
"""
    assert run(code, directory) == (0, "before\nlater\nrefused\nlater\n", "")


@WITHOUT_SANITIZER
def test_opening_a_datastore_puts_the_handler_in_the_place_of_a_later_one(directory: Path) -> None:
    code = """
first = Datastore.open(sys.argv[1])
signal.signal(signal.SIGBUS, signal.SIG_DFL)
store = Datastore.open(sys.argv[1])
lose_pages()
store = first
lose_pages()
lose_own_page()
"""
    assert run(code, directory) == (-signal.SIGBUS, "refused\nrefused\n", "")


@WITHOUT_SANITIZER
@pytest.mark.parametrize("sender", ["another process", "the process itself"])
def test_a_signal_that_is_sent_ends_the_process(directory: Path, sender: str) -> None:
    another = (
        "if os.fork() == 0:\n os.kill(os.getppid(), signal.SIGBUS)\n os._exit(0)\nwhile True:\n"
        " signal.pause()"
    )
    code = f"{OPEN}lose_pages()\n"
    code += another if sender == "another process" else "os.kill(os.getpid(), signal.SIGBUS)"
    assert run(code, directory) == (-signal.SIGBUS, "refused\n", "")
