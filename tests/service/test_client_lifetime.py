"""From the first call of a client to its end: what it opens, what a fork, a cancelled task or closing does to it."""

from __future__ import annotations

import asyncio
import copy
import gc
import multiprocessing
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rest_store.datastore.datastore import Datastore
from rest_store.datastore.tree import TokenTree
from rest_store.errors import DeadlineError, ServiceUnavailableError
from rest_store.service.client import async_client, client, client_base, retry
from rest_store.service.client.async_client import AsyncDatastoreClient
from rest_store.service.client.client import DatastoreClient
from rest_store.service.client.stream_call import StreamCall
from rest_store.v1 import datastore_pb2 as pb
from tests.service.test_client import SHARD, VOCABULARY
from tests.shared.clients import KINDS, LATE, Impostor, Waiting, connected
from tests.shared.live import until
from tests.shared.services import PATIENCE, Service, failed, running
from tests.shared.strategies import Corpus, write_datastore


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


def test_a_stream_takes_at_most_one_answer_that_it_has_not_asked_for() -> None:
    """A service that sends without being asked fills its own memory, not that of the client."""
    taken = 0

    class Flood:
        cancelled = False

        def __init__(self, deserialize: Callable[[bytes], bytes]) -> None:
            self.deserialize = deserialize

        def __iter__(self) -> Flood:
            return self

        def __next__(self) -> bytes:
            nonlocal taken
            taken += 1
            if self.cancelled or taken > 10_000:
                raise StopIteration
            return self.deserialize(b"x")

        def cancel(self) -> None:
            self.cancelled = True

    class Channel:
        def stream_stream(self, _: str, __: None, deserialize: Callable[[bytes], bytes]) -> Any:
            return lambda *_, **__: Flood(deserialize)

    call = StreamCall(Channel(), (), "peer", "DraftStream")  # type: ignore[arg-type]
    end = time.monotonic() + PATIENCE
    for step in range(1, 4):
        call.send(b"")
        assert call.receive(end) == b"x"
        assert step <= taken <= step + 1
    call.close()


CLIENTS = [(DatastoreClient, client), (AsyncDatastoreClient, async_client)]


@pytest.mark.parametrize(("kind", "module"), CLIENTS, ids=["blocking", "asyncio"])
def test_the_first_call_for_evidence_takes_no_longer_than_its_timeout(
    kind: Any, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the service takes to describe itself counts."""
    now = 1000.0
    clock = SimpleNamespace(monotonic=lambda: now)
    for one in (module, client_base, retry):
        monkeypatch.setattr(one, "time", clock)
    seconds_of: dict[str, float] = {}
    tokenizer = pb.TokenizerDescription(name="t", fingerprint="sha256:" + "0" * 64, vocabulary_size=9)
    described = pb.DescribeResponse(
        datastores=[pb.DatastoreDescription(name="a", tokenizer=tokenizer)],
        limits=pb.ServiceLimits(max_evidence_rows=1024, max_contexts=1024),
    )

    class Slow(kind):  # type: ignore[misc]
        def _attempt(self, endpoint: Any, request: Any, message: bytes, seconds: float) -> Any:
            nonlocal now
            seconds_of[request.method] = seconds
            now += 6.0
            answer = (
                described if request.method == "Describe" else pb.DraftResponse(datastores=["a"], trees=[pb.Tree()])
            )
            decoded = request.decode(answer.SerializeToString(), "peer")
            if kind is DatastoreClient:
                return decoded
            return asyncio.sleep(0, decoded)

    asking = Slow("127.0.0.1:1", timeout=10.0).evidence([1], TokenTree([], [], []), max_nodes=4)
    assert (asyncio.run(asking) if asyncio.iscoroutine(asking) else asking) is None
    assert seconds_of == {"Describe": 10.0, "Draft": 4.0}


FORKED_LOCKED = """
import os, signal, sys, threading
from rest_store import DatastoreClient
from rest_store.errors import ServiceUnavailableError
used, fresh = (DatastoreClient(sys.argv[1], timeout=60) for _ in range(2))
stream = used.stream()
stream.draft([1])
held, done = threading.Event(), threading.Event()

def hold():
    locks = [lock for client in (used, fresh) for lock in (client._counters._lock, client._endpoints.members[0]._lock)]
    with locks[0], locks[1], locks[2], locks[3]:
        held.set()
        done.wait()

threading.Thread(target=hold, daemon=True).start()
held.wait()
if os.fork() == 0:
    signal.alarm(20)  # a lock that is never released would keep it for ever
    try:
        used.draft([1])
    except ServiceUnavailableError as error:
        stream.close()
        used.close()
        counted = used.statistics.unavailable == 1 and fresh.statistics.calls == 0
        os._exit(7 if "fork" in str(error) and counted else 8)
    os._exit(9)
status = os.waitstatus_to_exitcode(os.wait()[1])
done.set()
print(status, stream.draft([2]) == used.draft([1, 2]))
"""


def test_a_lock_that_was_held_during_a_fork_stops_no_call_of_the_new_process(service: Service) -> None:
    command = [sys.executable, "-c", FORKED_LOCKED, service.target]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert done.stdout.split() == ["7", "True"]


@KINDS
def test_a_pickled_client_reaches_the_same_service(kind: type[Any], service: Service, store: Datastore) -> None:
    name = store.path.name
    with connected(kind, service.target, datastore=name, retries=7) as client:
        expected = client.draft([1, 2])
        inner = client.inner if kind is Waiting else client
        for copied in (pickle.loads(pickle.dumps(inner)), copy.copy(inner), copy.deepcopy(inner)):
            assert (type(copied), repr(copied)) == (type(inner), repr(inner))
            assert copied._endpoints.retries == 7
            assert copied.statistics.calls == 0  # its own
            assert copied._codec.tokenizer == inner._codec.tokenizer == store.manifest.tokenizer
        if kind is DatastoreClient:
            with copied:
                client.close()
                assert copied.draft([1, 2]) == expected
        with pytest.raises(TypeError, match="pickle its client"):
            pickle.dumps(inner.stream())


def spawned(client: DatastoreClient) -> TokenTree:
    return client.draft([1, 2])


def test_a_worker_process_gets_a_client_of_its_own(service: Service, store: Datastore) -> None:
    spawning = multiprocessing.get_context("spawn")
    with DatastoreClient(service.target, timeout=PATIENCE) as client, ProcessPoolExecutor(1, spawning) as pool:
        client.draft([1])
        assert pool.submit(spawned, client).result(PATIENCE) == store.draft([1, 2])


@pytest.fixture
def held() -> Iterator[tuple[str, threading.Event]]:
    """A service that answers no draft, and the event that it has been asked for one."""
    asked, go_on = threading.Event(), threading.Event()

    def answer() -> bytes:
        asked.set()
        go_on.wait(PATIENCE)
        return b""

    impostor = Impostor(answer)
    yield impostor.target, asked
    go_on.set()
    impostor.server.stop(None).wait(PATIENCE)


@pytest.mark.parametrize("streaming", [False, True], ids=["unary", "stream"])
def test_closing_a_client_ends_the_calls_of_other_threads(held: tuple[str, threading.Event], streaming: bool) -> None:
    target, asked = held
    with DatastoreClient(target, timeout=PATIENCE, failure_threshold=1) as client, ThreadPoolExecutor(1) as pool:
        client.connect()
        calling = pool.submit((client.stream() if streaming else client).draft, [1])
        assert asked.wait(PATIENCE)
        client.close()
        assert isinstance(calling.exception(PATIENCE), ServiceUnavailableError)
        counts = client.statistics
        assert (counts.calls, counts.unavailable, counts.retries, counts.circuits_opened) == (2, 1, 0, 0)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tasks do not say before whether they were cancelled themselves")
@pytest.mark.parametrize("streaming", [False, True], ids=["unary", "stream"])
def test_closing_a_client_ends_the_calls_of_other_tasks(held: tuple[str, threading.Event], streaming: bool) -> None:
    target, asked = held

    async def converse() -> None:
        client = AsyncDatastoreClient(target, timeout=PATIENCE, failure_threshold=1)
        await client.connect()
        calling = asyncio.ensure_future((client.stream() if streaming else client).draft([1]))
        assert await asyncio.to_thread(asked.wait, PATIENCE)
        await client.close()
        with pytest.raises(ServiceUnavailableError):
            await calling
        counts = client.statistics
        assert (counts.calls, counts.unavailable, counts.retries, counts.circuits_opened) == (2, 1, 0, 0)

    asyncio.run(converse())


def test_cancelling_a_task_is_no_failure_of_the_service(held: tuple[str, threading.Event]) -> None:
    target, asked = held

    async def converse() -> None:
        async with AsyncDatastoreClient(target, timeout=PATIENCE) as client:
            await client.connect()
            calling = asyncio.ensure_future(client.draft([1]))
            assert await asyncio.to_thread(asked.wait, PATIENCE)
            calling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await calling
            assert client.statistics.unavailable == 0

    asyncio.run(converse())


def test_a_client_that_is_closed_meanwhile_says_so(service: Service) -> None:
    client = DatastoreClient(service.target, timeout=PATIENCE)
    client.connect()
    (member,) = client._endpoints.members
    methods = member.connection.methods
    draft = methods["Draft"]

    def closed_meanwhile(*arguments: Any, **options: Any) -> Any:
        client.close()
        return draft(*arguments, **options)

    methods["Draft"] = closed_meanwhile
    failed(ServiceUnavailableError, lambda: client.draft([1]), "client is closed")
    assert client.statistics.unavailable == 1


def test_a_stream_whose_client_is_closed_meanwhile_says_so(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    client = DatastoreClient(service.target, timeout=PATIENCE)
    client.connect()

    def closed_meanwhile(*arguments: Any) -> StreamCall:
        client.close()
        return StreamCall(*arguments)

    monkeypatch.setattr("rest_store.service.client.client.StreamCall", closed_meanwhile)
    failed(ServiceUnavailableError, lambda: client.stream().draft([1]), "client is closed")


@KINDS
def test_a_stream_of_a_closed_client_says_so(kind: type[Any], service: Service) -> None:
    with connected(kind, service.target) as client:
        stream, unasked = client.stream(), client.stream()
        stream.draft([1])
        client.close()
        for one in (stream, unasked):
            failed(ServiceUnavailableError, lambda: one.draft([1]), "client is closed")  # noqa: B023
            one.close()
        assert client.statistics.unavailable == 2


def test_a_stream_of_a_closed_client_leaves_no_thread(service: Service) -> None:
    """Also one that nobody has closed."""
    before = set(threading.enumerate())
    with DatastoreClient(service.target, timeout=PATIENCE) as client:
        stream = client.stream()
        stream.draft([1, 2])
    until(lambda: set(threading.enumerate()) <= before)
    stream.close()


def test_a_read_that_nobody_waits_for_any_more_leaves_no_complaint(service: Service) -> None:
    complaints: list[str] = []

    async def converse() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["message"]))
        async with AsyncDatastoreClient(service.target, timeout=PATIENCE) as client:
            await client.connect()
            stream = client.stream(timeout=LATE)
            with suppress(DeadlineError):  # it may be late, too
                await stream.draft([1])
            service.pause()
            with pytest.raises(DeadlineError):
                await stream.draft([2])
            assert stream._call is not None
            assert stream._call._reading is not None
            service.kill()
            await asyncio.wait((stream._call._reading,))
            del stream  # not closed
            gc.collect()

    asyncio.run(converse())
    assert not [said for said in complaints if "never retrieved" in said]  # grpc.aio has complaints of its own
