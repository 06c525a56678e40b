"""Connections that say nothing, too little or nonsense: they end, they are few, and others are answered meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import io
import resource
import selectors
import socket
import struct
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry, Gauge

from rest_store.errors import ServeError
from rest_store.service.address import Address
from rest_store.service.channel import Dialer
from rest_store.service.server import server as server_module
from rest_store.service.server import servicer
from rest_store.service.server.catalog import Catalog
from rest_store.service.server.connections import Connections
from rest_store.service.server.logs import EventLog
from rest_store.service.server.metrics_endpoint import MetricsEndpoint
from rest_store.service.server.server import Options, Server, serve
from rest_store.v1 import datastore_pb2 as pb
from rest_store.v1 import datastore_pb2_grpc
from tests.shared.services import PATIENCE, Service, Talk, failed, metrics_of, reason_of, running
from tests.shared.strategies import Corpus, refused, write_datastore

ASKED = pb.DraftRequest(contexts=[pb.Context(tokens=[1, 2])])
STEP = pb.DraftStreamRequest(tokens=[1, 2])
ANY = Address.parse("127.0.0.1:0")
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000")  # and empty SETTINGS


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_datastore(tmp_path, Corpus(300, [[[1, 2, 3]]]))


def connected(stack: contextlib.ExitStack, target: str, number: int) -> list[socket.socket]:
    host, _, port = target.rpartition(":")
    return [stack.enter_context(socket.create_connection((host, int(port)), PATIENCE)) for _ in range(number)]


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side has closed; waits for it or for bytes."""
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def until_closed_are(connections: list[socket.socket], number: int) -> None:
    """Wait until the other side has closed so many."""
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            selector.register(connection, selectors.EVENT_READ)
        while number > 0:
            ready = selector.select(PATIENCE)
            assert ready, f"{number} are open still"
            for key, _ in ready:
                with contextlib.suppress(ConnectionError):
                    if key.fileobj.recv(4096):  # type: ignore[union-attr]  # a socket
                        continue  # a greeting
                selector.unregister(key.fileobj)
                number -= 1


def test_silent_connections_beyond_the_limit_are_closed_and_the_others_answered(directory: Path) -> None:
    options = ["--max-connections", "20", "--metrics", "127.0.0.1:0"]
    with running(directory, options=options, unix=True) as service, contextlib.ExitStack() as stack:
        first = stack.enter_context(service.stub())
        talk = Talk(first)
        talk.ask(STEP)
        before = service.open_descriptors()
        silent = connected(stack, service.target, 300)
        until_closed_are(silent, 300 - 19)  # the limit is that of an address, and one was taken
        assert first.Draft(ASKED, timeout=PATIENCE).trees
        assert talk.ask(STEP).trees
        with service.stub(service.unix) as local:
            assert local.Draft(ASKED, timeout=PATIENCE).trees
        assert metrics_of(service)["rest_store_streams",] == 1
        assert service.open_descriptors() <= before + 19 + 4
        for connection in silent:
            connection.close()
        with service.stub() as again:
            assert again.Draft(ASKED, timeout=PATIENCE, wait_for_ready=True).trees
        talk.close()


def threads_of(service: Service) -> int:
    return len(list(Path(f"/proc/{service.process.pid}/task").iterdir()))


def test_silent_connections_to_the_metrics_cost_neither_threads_nor_descriptors(directory: Path) -> None:
    with running(directory, options=["--metrics", "127.0.0.1:0"]) as service, contextlib.ExitStack() as stack:
        assert service.metrics is not None
        stub = stack.enter_context(service.stub())
        assert stub.Draft(ASKED, timeout=PATIENCE).trees
        metrics_of(service)
        descriptors, threads = service.open_descriptors(), threads_of(service)
        silent = connected(stack, service.metrics.split("/")[2], 100)
        for connection in silent[: 100 - 32]:  # a new one ends the oldest
            assert is_closed(connection)
        assert metrics_of(service)["rest_store_streams",] == 0
        assert stub.Draft(ASKED, timeout=PATIENCE).trees
        assert threads_of(service) <= threads + 4  # of the service's own workers
        assert service.open_descriptors() <= descriptors + 32 + 4


@contextlib.asynccontextmanager
async def served(directory: Path, connections: Connections, log: io.StringIO) -> AsyncIterator[str]:
    options = Options([("served", directory)], [ANY], connections=connections, drain_seconds=0)
    server = Server(options, "1", EventLog(as_json=True, file=log))
    (target,) = await server.start()
    try:
        yield target
    finally:
        await server.drain()


async def until_closed(target: str, written: bytes) -> None:
    """Connect, write, and read until the other side closes."""
    host, _, port = target.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(written)
    with contextlib.suppress(ConnectionError):
        while await reader.read(4096):
            pass
    writer.close()


LONG = 1000.0


@pytest.mark.parametrize(
    ("connections", "written"),
    [
        (Connections(handshake_seconds=0.1, ping_seconds=LONG, idle_seconds=LONG), b""),
        (Connections(handshake_seconds=0.1, ping_seconds=LONG, idle_seconds=LONG), PREFACE[:20]),
        (Connections(handshake_seconds=LONG, ping_seconds=0.1, pong_seconds=0.1, idle_seconds=LONG), PREFACE),
        (Connections(handshake_seconds=LONG, ping_seconds=LONG, idle_seconds=0.1), PREFACE),
    ],
    ids=["silent", "half a greeting", "dead", "idle"],
)
def test_a_connection_without_life_is_ended(directory: Path, connections: Connections, written: bytes) -> None:
    async def run() -> None:
        async with served(directory, connections, io.StringIO()) as target:
            await asyncio.wait_for(until_closed(target, written), PATIENCE)

    asyncio.run(run())


def test_the_limit_of_connections_fits_the_limit_of_files(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"now": (1024, 4096)}
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits["now"])
    monkeypatch.setattr(resource, "setrlimit", lambda which, values: limits.update(now=values))
    Connections(most=100).allow_files(2)
    assert limits["now"] == (1024, 4096)
    Connections(most=1000).allow_files(2)
    assert limits["now"] == (2512, 4096)
    refused(ServeError, lambda: Connections(most=2000).allow_files(2), "max_connections is 2000", "at most 1792")
    limits["now"] = (1024, resource.RLIM_INFINITY)
    Connections(most=2000).allow_files(2)
    assert limits["now"] == (4512, resource.RLIM_INFINITY)
    limits["now"] = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    Connections(most=2000).allow_files(2)
    assert limits["now"] == (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


def literal(name: bytes, value: bytes) -> bytes:
    """A header field as HPACK takes it without tables (RFC 7541, section 6.2.2); lengths below 127."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def call_of(path: bytes) -> bytes:
    """The bytes of a connection that calls `path`."""
    fields = {b":method": b"POST", b":scheme": b"http", b":path": path, b":authority": b"x"}
    fields |= {b"te": b"trailers", b"content-type": b"application/grpc"}
    block = b"".join(literal(name, value) for name, value in fields.items())
    return PREFACE + struct.pack(">I", len(block))[1:] + struct.pack(">BBI", 1, 4, 1) + block


def test_a_method_whose_name_is_not_utf8_stops_nothing(directory: Path) -> None:
    """As the asyncio server of gRPC does from 1.84 on; pyproject.toml asks for an older one."""

    async def run() -> None:
        async with (
            served(directory, Connections(), io.StringIO()) as target,
            Dialer(None, None).connect_async(target) as channel,
        ):
            stub = datastore_pb2_grpc.DatastoreServiceStub(channel)
            talk = stub.DraftStream(timeout=PATIENCE)
            await talk.write(STEP)
            answer = await talk.read()
            host, _, port = target.rpartition(":")
            for _ in range(3):
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(call_of(b"/\xff\xfe/x"))
                await reader.read(4096)
                writer.close()
                await talk.write(STEP)
                assert (await talk.read()).trees == answer.trees
                assert len((await stub.Draft(ASKED, timeout=PATIENCE)).trees) == 1
            await talk.done_writing()
            assert await talk.read() is grpc.aio.EOF

    asyncio.run(run())


def test_a_service_that_cannot_go_on_ends(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Catalog) -> None:
        raise RuntimeError("no more")

    monkeypatch.setattr(server_module, "_WATCH_SECONDS", 0.01)
    monkeypatch.setattr(Catalog, "watch", fail)
    options, log = Options([("served", directory)], [ANY]), io.StringIO()

    def run() -> None:
        asyncio.run(serve(options, "1", EventLog(file=log), lambda *_: None))

    failed(ServeError, run, "it has failed and ends", "no more")
    assert [line.split()[1] for line in log.getvalue().splitlines()] == ["start", "drain", "stop"]


def test_silent_health_checks_keep_nobody_from_the_health(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servicer, "_MOST_PUBLIC", 3)

    async def run() -> None:
        async with (
            served(directory, Connections(), io.StringIO()) as target,
            Dialer(None, None).connect_async(target) as channel,
        ):
            health = health_pb2_grpc.HealthStub(channel)
            watch = health.Watch(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
            check = channel.stream_stream("/grpc.health.v1.Health/Check")
            silent = [check(timeout=PATIENCE) for _ in range(6)]
            for call in [watch, *silent[:3]]:
                with pytest.raises(grpc.RpcError) as caught:
                    await call.read()
                assert reason_of(caught.value) == "OVERLOADED"
            for _ in range(5):
                answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
                assert answer.status == health_pb2.HealthCheckResponse.SERVING

    asyncio.run(run())


@pytest.mark.parametrize("method", ["grpc.health.v1.Health/Check", "grpc.health.v1.Health/Watch"])
def test_a_long_name_in_a_health_check_is_refused(directory: Path, method: str) -> None:
    async def run() -> None:
        async with (
            served(directory, Connections(), io.StringIO()) as target,
            Dialer(None, None).connect_async(target) as channel,
        ):
            call = channel.stream_stream(f"/{method}")(timeout=PATIENCE)
            await call.write(health_pb2.HealthCheckRequest(service="x" * 5000).SerializeToString())
            with pytest.raises(grpc.RpcError) as caught:
                await call.read()
            assert reason_of(caught.value) == "MESSAGE_SIZE"

    asyncio.run(run())


@contextlib.asynccontextmanager
async def page(**options: Any) -> AsyncIterator[Callable[[], Any]]:
    """An endpoint with one gauge; yields what connects to it."""
    registry = CollectorRegistry()
    Gauge("answer", "Of everything.", registry=registry).set(42)
    with ThreadPoolExecutor(1) as workers:
        endpoint = MetricsEndpoint(registry, workers, **options)
        url = await endpoint.start(ANY)
        port = int(url.rpartition(":")[2].removesuffix("/metrics"))
        try:
            yield lambda: asyncio.open_connection("127.0.0.1", port)
        finally:
            await endpoint.stop()


async def all_of(reader: asyncio.StreamReader) -> bytes:
    """All bytes until the other side closes or resets."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while more := await asyncio.wait_for(reader.read(65536), PATIENCE):
            data += more
    return data


def answers_to(*requests: bytes) -> list[bytes]:
    async def run() -> list[bytes]:
        answers = []
        async with page() as connect:
            for request in requests:
                reader, writer = await connect()
                writer.write(request)
                answers.append(await all_of(reader))
                writer.close()
        return answers

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("request_line", "status", "body"),
    [
        (b"GET /metrics HTTP/1.1", 200, True),
        (b"GET /metrics?x=1 HTTP/1.0", 200, True),
        (b"HEAD /metrics HTTP/1.1", 200, False),
        (b"GET / HTTP/1.1", 404, False),
        (b"POST /metrics HTTP/1.1", 405, False),
        (b"GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text;version=x", 406, False),
        (b"nonsense", 400, False),
    ],
)
def test_the_page_of_metrics_is_http(request_line: bytes, status: int, body: bool) -> None:
    (answer,) = answers_to(request_line + b"\r\nHost: x\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert (b"\nanswer 42.0\n" in answer) is body


def test_the_page_of_metrics_comes_in_the_format_asked_for() -> None:
    wanted = b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: application/openmetrics-text;version=1.0.0\r\n\r\n"
    (answer,) = answers_to(wanted)
    assert b"content-type: application/openmetrics-text" in answer.lower()
    assert answer.endswith(b"# EOF\n")


@pytest.mark.parametrize("written", [b"", b"GET /metr", b"GET /metrics HTTP/1.1\r\nHost: x\r\n"])
def test_a_client_of_the_metrics_that_is_silent_or_slow_is_ended(written: bytes) -> None:
    async def run() -> None:
        async with page(seconds=0.1) as connect:
            reader, writer = await connect()
            writer.write(written)
            assert await all_of(reader) == b""
            writer.close()

    asyncio.run(run())


def test_a_client_that_writes_a_byte_at_a_time_has_no_longer() -> None:
    async def run() -> None:
        async with page(seconds=0.1) as connect:
            reader, writer = await connect()
            ended = asyncio.create_task(all_of(reader))
            with contextlib.suppress(ConnectionError):
                while not ended.done():
                    writer.write(b"x")
                    await writer.drain()
                    await asyncio.sleep(0.01)
            answer = await ended
            assert answer == b"" or answer.startswith(b"HTTP/1.1 400 ")
            writer.close()

    asyncio.run(run())


def test_a_new_client_of_the_metrics_ends_the_oldest_and_is_answered() -> None:
    async def run() -> None:
        async with page(most_connections=3, seconds=LONG) as connect:
            silent = [await connect() for _ in range(10)]
            for _ in range(3):
                reader, writer = await connect()
                writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
                assert b"\nanswer 42.0\n" in await all_of(reader)
                writer.close()
            for reader, _ in silent[:8]:
                assert await all_of(reader) == b""
            for _, writer in silent:
                writer.close()

    asyncio.run(run())


def test_an_endpoint_that_stops_ends_its_connections() -> None:
    async def run() -> None:
        async with page(seconds=LONG) as connect:
            reader, writer = await connect()
            writer.write(b"GET")
            other, unused = await connect()
        assert await all_of(reader) == await all_of(other) == b""
        for one in (writer, unused):
            one.close()

    asyncio.run(run())


def test_an_address_of_metrics_in_use_is_named() -> None:
    async def run() -> None:
        with ThreadPoolExecutor(1) as workers, socket.create_server(("127.0.0.1", 0)) as taken:
            address = Address.parse(f"127.0.0.1:{taken.getsockname()[1]}")
            with pytest.raises(ServeError) as caught:
                await MetricsEndpoint(CollectorRegistry(), workers).start(address)
            failed(ServeError, lambda: _raise(caught.value), f"address {address.text} of metrics cannot be bound")

    asyncio.run(run())


def test_an_address_of_metrics_that_no_host_can_have_is_named() -> None:
    async def run() -> None:
        address = Address.parse("a..b:0")
        with ThreadPoolExecutor(1) as workers, pytest.raises(ServeError, match=r"a\.\.b:0 of metrics cannot be bound"):
            await MetricsEndpoint(CollectorRegistry(), workers).start(address)

    asyncio.run(run())


def _raise(error: Exception) -> None:
    raise error
