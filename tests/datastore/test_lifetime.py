"""Closing, copying and forking of an open datastore, and what it holds of the system meanwhile."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rest_store.datastore.datastore import Datastore
from rest_store.errors import DatastoreClosedError
from tests.datastore.test_lost_pages import QUERIES, query_in_threads
from tests.datastore.test_opening import run_python
from tests.shared.strategies import Corpus, refused, write_datastore, zipf_corpus

ON_LINUX = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads Linux's /proc")


def mapped(directory: Path) -> int:
    """Files in `directory` that this process has mapped."""
    return (
        Path("/proc/self/maps")
        .read_text(encoding="utf-8", errors="replace")
        .count(f"{directory}/shard-")
    )


@ON_LINUX
def test_a_closed_datastore_refuses_queries_and_holds_nothing(directory: Path) -> None:
    with Datastore.open(directory) as store:
        assert store.draft([1, 2]).match == (2, 2)
        assert mapped(directory) == 4
    assert mapped(directory) == 0
    queries: list[Callable[[Datastore], object]] = [*QUERIES.values(), Datastore.require_readable]
    for query in queries:
        message = refused(DatastoreClosedError, lambda query=query: query(store))
        assert message == f"{directory}: the datastore is closed, expected open"
    store.close()
    assert (store.info().token_count, store.info().shard_count, store.shards, store.files) == (
        11,
        2,
        [],
        [],
    )
    assert store.info().size == Datastore.open(directory).info().size
    assert repr(store) == repr(Datastore.open(directory))


def test_closing_while_threads_query(directory: Path) -> None:
    store = Datastore.open(directory)
    query_in_threads(store, DatastoreClosedError, store.close)


@ON_LINUX
def test_an_open_datastore_needs_no_descriptors(tmp_path: Path) -> None:
    """Eight shards, a check and a session need no descriptors either."""
    write_datastore(tmp_path, Corpus(300, [[[place, 1, 2]] for place in range(8)]))
    code = """
import os, sys
from rest_store.datastore.check import check_datastore
from rest_store.datastore.datastore import Datastore
from rest_store.drafting.session import DraftSession
DraftSession([])
before = len(os.listdir("/proc/self/fd"))
stores = [Datastore.open(sys.argv[1]), check_datastore(sys.argv[1])]
session = DraftSession(stores, prompt=[1])
session.draft(4)
print(len(os.listdir("/proc/self/fd")) - before)
"""
    assert run_python(code, tmp_path) == "0\n"


def test_copies_are_the_datastore_itself(directory: Path) -> None:
    store = Datastore.open(directory)
    assert copy.copy(store) is store
    assert copy.deepcopy({"store": store})["store"] is store


FORK = """
import os, sys, threading
from rest_store import draft_all
from rest_store.datastore.datastore import Datastore
from rest_store.drafting.session import DraftSession
from rest_store.drafting.sources import RecycledLogits

store, recycled = Datastore.open(sys.argv[1]), RecycledLogits()
expected = store.draft([0, 1])
stop = False

def work():
    for token in range(8):
        # Cached: little time is spent outside of the lock.
        store.draft([token], max_nodes=1, max_depth=1)
    with DraftSession([store, recycled], prompt=[0, 1]) as session:
        session.draft(4)
        session.accept([1, 2], [[1], [2]])
    # Enough for several threads.
    batch = draft_all([DraftSession([store], prompt=[0, 1]) for _ in range(20)], 4)
    assert all(tree == batch[0] for tree in batch)

def go_on():
    while not stop:
        work()

work()  # Python's own locks of imports are not ours
threads = [threading.Thread(target=go_on) for _ in range(4)]
for thread in threads:
    thread.start()
statuses = set()
for _ in range(25):
    child = os.fork()
    if child == 0:
        work()
        opened = Datastore.open(sys.argv[1])
        same = store.draft([0, 1]) == expected and opened.draft([0, 1]) == expected
        store.close()
        os._exit(0 if same else 1)
    statuses.add(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
stop = True
for thread in threads:
    thread.join()
print(statuses, store.draft([0, 1]) == expected)
"""


@pytest.mark.skipif(
    "asan" in os.environ.get("LD_PRELOAD", ""),
    reason="the sanitizer's own locks do not survive a fork",
)
def test_a_child_of_a_process_whose_threads_query_goes_on_querying(tmp_path: Path) -> None:
    """The child does not wait for the locks of threads that it does not have."""
    write_datastore(tmp_path, zipf_corpus(1, 1_500, 8, 300, 1))
    assert (
        run_python("import warnings\nwarnings.simplefilter('ignore')\n" + FORK, tmp_path)
        == "{0} True\n"
    )
