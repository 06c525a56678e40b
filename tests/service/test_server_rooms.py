"""The rooms of the service one by one, where a whole process would show too little."""

from __future__ import annotations

import asyncio
import io
import json
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from rest_store.datastore.datastore import Datastore
from rest_store.errors import OverloadedError
from rest_store.service.address import Address
from rest_store.service.server import executor
from rest_store.service.server.catalog import Catalog
from rest_store.service.server.executor import Executor
from rest_store.service.server.handlers import Handlers
from rest_store.service.server.health import Health
from rest_store.service.server.limits import Gate, Limits
from rest_store.service.server.logs import EventLog
from rest_store.service.server.metrics import Metrics
from rest_store.service.server.reloads import Reloads
from rest_store.service.server.rights import Rights
from rest_store.service.server.server import Options, Server
from rest_store.v1 import datastore_pb2 as pb
from rest_store.v1 import datastore_pb2_grpc
from tests.shared.services import PATIENCE, failed, reason_of
from tests.shared.strategies import Corpus, write_datastore

ASKED = pb.DraftRequest(contexts=[pb.Context(tokens=[1, 2])])


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_datastore(tmp_path, Corpus(300, [[[1, 2, 3, 4], [1, 2, 3, 5]]]))


@pytest.fixture
def handlers(directory: Path) -> Iterator[Handlers]:
    with ThreadPoolExecutor(1) as workers:
        yield Handlers(Catalog([("served", directory)]), Limits(), Metrics([], "1", "native"), Executor(workers), None)


def ran_in_the_event_loop(run: Coroutine[Any, Any, Any]) -> bool:
    """Whether a coroutine ends without waiting for another thread."""
    try:
        run.send(None)
    except StopIteration:
        return True
    run.close()
    return False


def test_small_work_goes_to_workers_for_a_while_after_it_waited_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    now, page_faults = 1000.0, 0

    def clock() -> float:
        nonlocal now
        now += 0.3  # between any two looks
        return now

    def reading() -> int:
        nonlocal page_faults
        page_faults += 1
        return 1

    monkeypatch.setattr(executor, "perf_counter", clock)
    monkeypatch.setattr(executor, "_page_faults", lambda: page_faults)

    async def run() -> None:
        nonlocal now
        with ThreadPoolExecutor(1) as workers:
            ours = Executor(workers)

            def is_at_once(task: Callable[[], int] = lambda: 1, *, small: bool = True) -> bool:
                return ran_in_the_event_loop(ours.run([task], small=small))

            assert await ours.run([lambda: 1, lambda: 2], small=True) == [1, 2]
            assert await ours.run([lambda: 1, lambda: 2], small=False) == [1, 2]
            assert not is_at_once(small=False)
            assert is_at_once()  # slow, but not because of the disk
            assert is_at_once(reading)
            assert not is_at_once()
            assert await ours.run([lambda: 1, lambda: 2], small=True) == [1, 2]
            now += 10
            assert is_at_once()
            assert is_at_once()

    asyncio.run(run())


def test_trees_travel_little_endian_from_any_machine(handlers: Handlers, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = asyncio.run(handlers.draft(ASKED.SerializeToString(), Rights()))
    monkeypatch.setattr("sys.byteorder", "big")
    assert asyncio.run(handlers.draft(ASKED.SerializeToString(), Rights())) == expected


def test_a_reload_answers_for_what_it_read_after_it_was_asked_for() -> None:
    async def run() -> None:
        begun: list[asyncio.Event] = []

        async def read() -> int:
            end = asyncio.Event()
            begun.append(end)
            number = len(begun)
            await end.wait()
            if number == 2:
                raise OSError("lost")
            return number

        reloads = Reloads(read)
        first = reloads.start()
        assert reloads.start() is first  # it has not begun
        await asyncio.sleep(0)
        assert len(begun) == 1
        second = reloads.start()
        assert second is not first
        assert reloads.start() is second
        await asyncio.sleep(0)
        assert len(begun) == 1  # one at a time
        begun[0].set()
        assert await first == 1
        await asyncio.sleep(0)
        third = reloads.start()
        assert third is not second
        begun[1].set()
        with pytest.raises(OSError, match="lost"):
            await second
        await asyncio.sleep(0)
        begun[2].set()
        assert await third == 3

    asyncio.run(run())


def test_a_reload_during_another_reads_the_newer_datastore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for place, last in ((old, 3), (new, 4)):
        place.mkdir()
        write_datastore(place, Corpus(300, [[[1, 2, last]]]))
    opened, go_on = threading.Event(), threading.Event()
    reopen = Catalog.reopen

    def slowly(self: Catalog) -> Any:
        reopened = reopen(self)
        opened.set()
        assert go_on.wait(PATIENCE)
        return reopened

    monkeypatch.setattr(Catalog, "reopen", slowly)

    async def run() -> None:
        options = Options([("served", old)], [Address.parse("127.0.0.1:0")])
        server = Server(options, "1", EventLog(file=io.StringIO()))
        (target,) = await server.start()
        async with grpc.aio.insecure_channel(target) as channel:
            stub: Any = datastore_pb2_grpc.DatastoreServiceStub(channel)
            first = server.start_reload()
            assert await asyncio.to_thread(opened.wait, PATIENCE)
            old.rename(tmp_path / "gone")
            new.rename(old)
            asking = [stub.Reload(pb.ReloadRequest(), timeout=PATIENCE) for _ in range(2)]
            while len(server._servicer.requests.tasks) < 2:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0)
            go_on.set()
            assert [one.generation for one in (await first).outcomes] == [2]
            for call in asking:
                assert [one.generation for one in (await call).outcomes] == [3]
            answer = await stub.Draft(ASKED, timeout=PATIENCE)
            assert answer.trees[0].nodes == Datastore.open(old).draft([1, 2]).packed
        await server.drain()

    asyncio.run(run())


def test_a_stream_whose_step_takes_too_long_is_told_to_ask_another(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those between two steps are told at once."""

    async def run() -> None:
        begun = asyncio.Event()

        async def never(*_: object) -> bytes:
            begun.set()
            await asyncio.Event().wait()
            return b""

        monkeypatch.setattr(Handlers, "draft_step", never)
        options = Options([("served", directory)], [Address.parse("127.0.0.1:0")], drain_seconds=0.05)
        server = Server(options, "1", EventLog(file=io.StringIO()))
        (target,) = await server.start()
        async with grpc.aio.insecure_channel(target) as channel:
            stub = datastore_pb2_grpc.DatastoreServiceStub(channel)
            call = stub.DraftStream(timeout=PATIENCE)
            await call.write(pb.DraftStreamRequest(tokens=[1]))
            await begun.wait()
            draining = asyncio.create_task(server.drain())
            with pytest.raises(grpc.RpcError) as caught:
                await call.read()
            assert _reason(caught.value) == "DRAINING"
            await draining

    asyncio.run(run())


def test_an_internal_failure_is_reported_as_such_and_logged(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Handlers, "draft", lambda self, data, rights: 1 // 0)
    monkeypatch.setattr(Handlers, "draft_step", lambda self, state, data: 1 // 0)
    written = io.StringIO()

    async def run() -> list[str | None]:
        options = Options([("served", directory)], [Address.parse("127.0.0.1:0")])
        server = Server(options, "1", EventLog(as_json=True, file=written))
        (target,) = await server.start()
        async with grpc.aio.insecure_channel(target) as channel:
            stub = datastore_pb2_grpc.DatastoreServiceStub(channel)
            errors = []
            with pytest.raises(grpc.RpcError) as caught:
                await stub.Draft(ASKED, timeout=PATIENCE)
            errors.append(caught.value)
            call = stub.DraftStream(timeout=PATIENCE)
            await call.write(pb.DraftStreamRequest(tokens=[1]))
            with pytest.raises(grpc.RpcError) as caught:
                await call.read()
            errors.append(caught.value)
            assert await stub.Describe(pb.DescribeRequest(), timeout=PATIENCE)
        await server.drain()
        assert {error.code() for error in errors} == {grpc.StatusCode.INTERNAL}
        assert all("ZeroDivisionError" in error.details() and "Traceback" not in error.details() for error in errors)
        return [_reason(error) for error in errors]

    assert asyncio.run(run()) == ["INTERNAL", "INTERNAL"]
    defects = [event for line in written.getvalue().splitlines() if (event := json.loads(line))["event"] == "defect"]
    assert [event["method"] for event in defects] == ["Draft", "DraftStream"]
    assert all("1 // 0" in event["traceback"] for event in defects)


def _reason(error: Any) -> str | None:
    """As `reason_of`, of an asyncio error, whose trailing metadata is a value and not a method."""

    class Call:
        code, details, trailing_metadata = error.code, error.details, error.trailing_metadata

    return reason_of(Call)  # type: ignore[arg-type]


def test_a_gate_counts_tasks_until_they_are_done() -> None:
    async def run() -> None:
        gate = Gate("tasks", 2)
        event = asyncio.Event()
        tasks = [asyncio.create_task(event.wait()) for _ in range(3)]
        for task in tasks[:2]:
            gate.enter(task)
        assert gate.tasks == set(tasks[:2])
        failed(OverloadedError, lambda: gate.enter(tasks[2]), "2 tasks", "try again later")
        tasks[0].cancel()
        await asyncio.wait(tasks[:1])
        gate.enter(tasks[2])
        event.set()
        await asyncio.wait(tasks)
        assert gate.tasks == set()

    asyncio.run(run())


def test_watchers_of_health_hear_of_changes() -> None:
    serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING

    async def requests() -> AsyncIterator[health_pb2.HealthCheckRequest]:
        yield health_pb2.HealthCheckRequest(service="x")

    async def run() -> None:
        health = Health()
        watchers = [health.watch(requests()) for _ in range(3)]
        for status in (health_pb2.HealthCheckResponse.SERVICE_UNKNOWN, serving, not_serving):
            if status != health_pb2.HealthCheckResponse.SERVICE_UNKNOWN:
                health.set({"x": status == serving})
            assert {(await anext(watcher)).status for watcher in watchers} == {status}
        await watchers[0].aclose()
        health.set({"x": True})
        assert (await anext(watchers[1])).status == serving  # not disturbed by the one that left
        assert (await anext(health.watch(requests()))).status == serving

    asyncio.run(run())
