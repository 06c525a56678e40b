"""The life of a service, in this process: connections without life, idle sessions, defects, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from rest_store.errors import OverloadedError, ServeError
from rest_store.service.address import Address
from rest_store.service.server import server as server_module
from rest_store.service.server import session_streams
from rest_store.service.server.limits import Budget, Limits
from rest_store.service.server.queries import Queries
from rest_store.service.server.served_session import ServedSession
from rest_store.service.server.server import Options, Server, serve
from rest_store.v1 import datastore_pb2 as pb
from rest_store.v1 import datastore_pb2_grpc
from tests.shared.services import PATIENCE, Service, failed, metrics_of, reason_of, running
from tests.shared.sessions import SessionTalk, opening, step
from tests.shared.strategies import refused

ASKED = pb.DraftRequest(contexts=[pb.Context(tokens=[1, 2])])
ANY = Address.parse("127.0.0.1:0")


@contextlib.asynccontextmanager
async def served(directory: Path, **options: Any) -> AsyncIterator[tuple[Server, Any]]:
    """A service of "a", and a stub of it; drained at the end unless it was."""
    server = Server(Options([("a", directory)], [ANY], **options), "1")
    (target,) = await server.start()
    async with grpc.aio.insecure_channel(target) as channel:
        yield server, datastore_pb2_grpc.DatastoreServiceStub(channel)
    if not server.watch.done():
        await server.drain()


async def reason_in(awaitable: Any) -> str | None:
    """The reason of the error of a call."""
    with pytest.raises(grpc.RpcError) as caught:
        await awaitable
    error: Any = caught.value  # of asyncio: its trailing metadata is a value and not a method
    return reason_of(
        SimpleNamespace(code=error.code, details=error.details, trailing_metadata=error.trailing_metadata)  # type: ignore[arg-type]
    )


async def opened(stub: Any) -> Any:
    """A session that has been answered once."""
    call = stub.DraftSession(timeout=PATIENCE)
    await call.write(opening(1, 2))
    assert (await call.read()).nodes
    return call


def test_streams_without_messages_end(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether they have had any or not; others go on."""
    now = 0.0
    monkeypatch.setattr(server_module, "_WATCH_SECONDS", 0.01)
    monkeypatch.setattr(session_streams, "monotonic", lambda: now)

    async def run() -> None:
        nonlocal now
        async with served(directory, limits=Limits(session_idle_seconds=60), drain_seconds=0) as (_, stub):
            idle, busy = await opened(stub), await opened(stub)
            now = 59.0
            await busy.write(step(3))
            await busy.read()
            now = 61.0
            assert await reason_in(idle.read()) == "DRAINING"
            await busy.write(step(1))
            assert await busy.read() is not grpc.aio.EOF

    asyncio.run(run())


@pytest.mark.parametrize("seconds", [0, 60])
def test_draining_ends_sessions_at_once_and_refuses_new_calls(directory: Path, seconds: float) -> None:
    async def run() -> None:
        async with served(directory, drain_seconds=seconds) as (server, stub):
            call = await opened(stub)
            draining = asyncio.create_task(server.drain())
            assert await reason_in(call.read()) == "DRAINING"
            await draining
            with pytest.raises(grpc.RpcError) as caught:
                await stub.Draft(ASKED, timeout=PATIENCE)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE

    asyncio.run(run())


def test_draining_waits_for_requests_and_no_longer_than_it_may(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def slowly(self: Queries, data: bytes, grant: object) -> bytes:
            begun.set()
            await go_on.wait()
            return b""

        monkeypatch.setattr(Queries, "draft", slowly)
        async with served(directory, drain_seconds=PATIENCE) as (server, stub):
            asking = asyncio.ensure_future(stub.Draft(ASKED, timeout=PATIENCE))
            await begun.wait()
            draining = asyncio.create_task(server.drain())
            await asyncio.sleep(0)
            assert await reason_in(stub.Describe(pb.DescribeRequest(), timeout=PATIENCE)) == "DRAINING"
            go_on.set()
            assert await asking == pb.DraftResponse()
            await draining
        begun.clear()
        go_on.clear()
        async with served(directory, drain_seconds=0.05) as (server, stub):
            asking = asyncio.ensure_future(stub.Draft(ASKED, timeout=PATIENCE))
            await begun.wait()
            await server.drain()
            with pytest.raises(grpc.RpcError):
                await asking

    asyncio.run(run())


def test_a_defect_is_reported_as_such_and_logged(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Queries, "draft", lambda *_: 1 // 0)
    monkeypatch.setattr(ServedSession, "run", lambda *_: 1 // 0)

    async def run() -> None:
        async with served(directory) as (_, stub):
            assert await reason_in(stub.Draft(ASKED, timeout=PATIENCE)) == "INTERNAL"
            call = stub.DraftSession(timeout=PATIENCE)
            await call.write(opening(1, 2))
            assert await reason_in(call.read()) == "INTERNAL"
            assert await stub.Describe(pb.DescribeRequest(), timeout=PATIENCE)

    with caplog.at_level(logging.ERROR):
        asyncio.run(run())
    assert [record.message for record in caplog.records] == ["Draft failed", "DraftSession failed"]
    assert all(record.exc_info for record in caplog.records)


def test_a_service_that_cannot_go_on_ends(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("no more")

    monkeypatch.setattr(server_module, "_WATCH_SECONDS", 0.01)
    monkeypatch.setattr(session_streams.SessionStreams, "tend", fail)
    options = Options([("a", directory)], [ANY])
    failed(
        ServeError,
        lambda: asyncio.run(serve(options, "1", lambda *_: None)),
        "it has failed and ends",
        "no more",
    )


def test_a_budget_is_given_back() -> None:
    budget = Budget("streams", 2)
    budget.take()
    budget.take()
    failed(OverloadedError, budget.take, "2 streams", "try again later")
    budget.give_back()
    budget.take()
    assert budget.used == 2


def test_the_limit_of_connections_fits_the_limit_of_files(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"now": (1024, 4096)}
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits["now"])
    monkeypatch.setattr(resource, "setrlimit", lambda which, values: limits.update(now=values))
    Limits(max_connections=100).allow_files(2)
    assert limits["now"] == (1024, 4096)
    Limits(max_connections=1000).allow_files(2)
    assert limits["now"] == (2512, 4096)
    refused(ServeError, lambda: Limits(max_connections=2000).allow_files(2), "max_connections is 2000", "at most 1792")


def test_work_whose_client_has_gone_is_dropped(phrases: Path) -> None:
    contexts = [pb.Context(tokens=[number % 9]) for number in range(1000)]
    heavy = pb.DraftRequest(limits=pb.DraftLimits(max_nodes=1024, max_depth=32), contexts=contexts)
    with running(phrases, options=["--metrics=127.0.0.1:0"]) as service, service.stub() as stub:
        stub.Draft.future(heavy, timeout=PATIENCE).cancel()
        stub.Draft(ASKED, timeout=PATIENCE)
        end = time.monotonic() + PATIENCE
        while metrics_of(service)["rest_store_in_flight",] > 0:
            assert time.monotonic() < end


@pytest.fixture
def measured(directory: Path) -> Any:
    with running(f"a={directory}", options=["--metrics=127.0.0.1:0"]) as service:
        yield service


@pytest.mark.slow
def test_memory_does_not_grow_with_requests_and_sessions(measured: Service) -> None:
    def ask(times: int) -> None:
        with measured.stub() as stub:
            for _ in range(times):
                for call in [stub.Draft.future(ASKED) for _ in range(100)]:
                    assert call.result().datastores == ["a"]
                talk = SessionTalk(stub)
                talk.ask(opening(1, 2, selection=pb.Selection()))
                talk.close()

    ask(100)  # allocators keep some for later
    before, descriptors = measured.resident_bytes(), measured.open_descriptors()
    ask(50)
    assert measured.resident_bytes() - before < 2 << 20
    assert measured.open_descriptors() <= descriptors + 1
