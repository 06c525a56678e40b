"""From the first call of a client to its end: what it opens, what a fork, a cancelled task or closing does to it."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rest_store.datastore import Datastore
from rest_store.tree import TokenTree
from tests.clients import KINDS, LATE, Waiting, connected
from tests.services import PATIENCE, Service, running
from tests.strategies import Corpus, write_datastore
from tests.test_client import SHARD, VOCABULARY


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_datastore(tmp_path_factory.mktemp("one"), Corpus(VOCABULARY, [SHARD]))


@pytest.fixture(scope="module")
def store(directory: Path) -> Datastore:
    return Datastore.open(directory)


@pytest.fixture
def service(directory: Path) -> Iterator[Service]:
    with running(directory) as service:
        yield service


@KINDS
def test_nothing_leaks(kind: type[Any], service: Service) -> None:
    def generations(number: int) -> None:
        with connected(kind, service.target) as client:
            for _ in range(number):
                stream = client.stream()
                stream.draft([1, 2])
                stream.close()

    def descriptors() -> int:
        gc.collect()
        return len(list(Path("/proc/self/fd").iterdir()))

    generations(3)
    before, threads = descriptors(), threading.active_count()
    generations(200)
    assert descriptors() < before + 20  # gRPC opens a few of its own when it likes, but none for each stream
    assert threading.active_count() < threads + 20


def test_cancelling_a_task_leaves_the_stream_usable(service: Service, store: Datastore) -> None:
    async def converse() -> TokenTree:
        client = Waiting(service.target, timeout=PATIENCE)
        client.loop.close()
        async with client.inner as inner, inner.stream() as stream:
            await stream.draft([1])
            service.pause()
            step = asyncio.ensure_future(stream.draft([2]))
            done, _ = await asyncio.wait((step,), timeout=LATE)
            assert not done
            step.cancel()
            with pytest.raises(asyncio.CancelledError):
                await step
            service.resume()
            tree: TokenTree = await stream.draft([3])
            return tree

    assert asyncio.run(converse()) == store.draft([1, 2, 3])


FORKED = """
import os, sys
from rest_store import DatastoreClient
from rest_store.errors import ServiceUnavailableError
used, fresh = (DatastoreClient(sys.argv[1], timeout=60) for _ in range(2))
used.draft([1])
if os.fork() == 0:
    try:
        used.draft([1])
    except ServiceUnavailableError as error:
        os._exit(7 if "fork" in str(error) else 8)
    os._exit(9)
print(os.waitstatus_to_exitcode(os.wait()[1]), len(used.draft([1])) > 0)
"""


def test_a_forked_process_is_told_to_make_its_own_client(service: Service) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED, service.target], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    assert done.stdout.split() == ["7", "True"]
