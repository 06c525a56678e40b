"""Connections without a request, or with nonsense, are few and end, and others are answered."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import selectors
import signal
import socket
import struct
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry

from rest_store.service.address import Address
from rest_store.service.server import admission, http_server, serve_command
from rest_store.service.server.http_server import HttpServer
from rest_store.service.server.service_limits import ServiceLimits
from rest_store.v1 import datastore_pb2 as pb
from tests.shared.live import until
from tests.shared.served import serving_here
from tests.shared.services import PATIENCE, Service, metrics_of, running
from tests.shared.sessions import SessionTalk, opening, step

ASKED = pb.DraftRequest(contexts=[pb.Context(tokens=[1, 2])])
OPENING = opening(1, 2, selection=pb.Selection())
# And empty SETTINGS.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000")


def connected(stack: contextlib.ExitStack, target: str, number: int) -> list[socket.socket]:
    host, _, port = target.rpartition(":")
    return [
        stack.enter_context(socket.create_connection((host, int(port)), PATIENCE))
        for _ in range(number)
    ]


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


def test_silent_connections_beyond_the_limit_are_closed_and_the_others_answered(
    directory: Path,
) -> None:
    options = ["--max-connections", "20", "--metrics", "127.0.0.1:0"]
    with running(directory, options=options, unix=True) as service, contextlib.ExitStack() as stack:
        first = stack.enter_context(service.stub())
        talk = SessionTalk(first)
        talk.ask(OPENING)
        before = service.open_descriptors()
        silent = connected(stack, service.target, 300)
        until_closed_are(silent, 300 - 19)  # the limit is that of an address, and one was taken
        assert first.Draft(ASKED, timeout=PATIENCE).trees
        assert talk.ask(step(1)).tree.nodes
        with service.stub(service.unix) as local:
            assert local.Draft(ASKED, timeout=PATIENCE).trees
        assert metrics_of(service)["rest_store_streams",] == 1
        assert service.open_descriptors() <= before + 19 + 4
        for connection in silent:
            connection.close()
        with service.stub() as again:
            assert again.Draft(ASKED, timeout=PATIENCE, wait_for_ready=True).trees
        talk.close()


@pytest.mark.parametrize(
    ("option", "written"),
    [
        ("grpc.server_handshake_timeout_ms", b""),
        ("grpc.server_handshake_timeout_ms", PREFACE[:20]),
        ("grpc.keepalive_time_ms", PREFACE),
        ("grpc.max_connection_idle_ms", PREFACE),
    ],
    ids=["silent", "half a greeting", "dead", "idle"],
)
def test_a_connection_without_life_is_ended(
    directory: Path, monkeypatch: pytest.MonkeyPatch, option: str, written: bytes
) -> None:
    others = {
        "grpc.server_handshake_timeout_ms",
        "grpc.keepalive_time_ms",
        "grpc.max_connection_idle_ms",
    } - {option}
    channel_options = ServiceLimits.channel_options

    def changed(self: ServiceLimits) -> list[tuple[str, int]]:
        of_others = dict.fromkeys(others, 1_000_000)
        own = {option: 100, "grpc.keepalive_timeout_ms": 100, "grpc.http2.ping_timeout_ms": 100}
        return [*{**dict(channel_options(self)), **of_others, **own}.items()]

    monkeypatch.setattr(ServiceLimits, "channel_options", changed)

    async def run() -> None:
        async with serving_here(directory) as (_, target):
            host, _, port = target.rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(written)
            with contextlib.suppress(ConnectionError):
                while await asyncio.wait_for(reader.read(4096), PATIENCE):
                    pass
            writer.close()

    asyncio.run(run())


def test_health_checks_beyond_their_limit_are_refused_and_cost_nobody_else(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "_MAX_HEALTH_CHECKS", 3)

    async def run() -> None:
        async with (
            serving_here(directory) as (_, target),
            grpc.aio.insecure_channel(target) as channel,
        ):
            health = health_pb2_grpc.HealthStub(channel)
            watches = [
                health.Watch(health_pb2.HealthCheckRequest(), timeout=PATIENCE) for _ in range(3)
            ]
            for watch in watches:
                assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
            with pytest.raises(grpc.RpcError) as caught:
                await health.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            draft = channel.unary_unary("/rest_store.v1.DatastoreService/Draft")
            assert await draft(ASKED.SerializeToString(), timeout=PATIENCE)
            watches[0].cancel()
            while True:
                with contextlib.suppress(grpc.RpcError):
                    await health.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
                    break

    asyncio.run(run())


def test_workers_share_an_address_and_end_together(directory: Path) -> None:
    def workers(service: Service) -> list[int]:
        process = service.process.pid
        return [
            *map(int, Path(f"/proc/{process}/task/{process}/children").read_text("ascii").split())
        ]

    def open_files(worker: int) -> int:
        return len([*Path(f"/proc/{worker}/fd").iterdir()])

    with running(f"served={directory}", options=["--workers", "3"]) as service:
        first = workers(service)
        assert len(first) == 3
        files = [open_files(worker) for worker in first]
        with contextlib.ExitStack() as stack:  # each a connection, which one of the workers has
            stubs = [stack.enter_context(service.stub()) for _ in range(30)]
            assert all(len(stub.Draft(ASKED, timeout=PATIENCE).trees) == 1 for stub in stubs)
            connections = [
                open_files(worker) - before for worker, before in zip(first, files, strict=True)
            ]
            assert max(connections) < 30 <= sum(connections)
        with (
            pytest.raises(RuntimeError, match="in use"),
            running(directory, listen=[service.target]),
        ):
            pass
        with (
            pytest.raises(RuntimeError, match="in use"),
            running(directory, listen=[service.target], options=["--workers", "2"]),
        ):
            pass
        service.signal(signal.SIGHUP)
        until(lambda: sum("reloaded served" in line for line in service.log) == 3)
        assert service.stop() == 0
        service.restart()
        again = workers(service)
        os.kill(again[1], signal.SIGKILL)
        assert service._ended() == 9
        assert not any(Path(f"/proc/{worker}").exists() for worker in [*first, *again])
        service.restart()
        last = workers(service)
        service.kill()
        # Nobody is left behind.
        until(lambda: not any(Path(f"/proc/{worker}").exists() for worker in last))


def test_workers_are_for_frozen_datastores_and_ports(directory: Path, tmp_path: Path) -> None:
    absent = str(tmp_path / "absent")
    for arguments, status, actual in (
        ([str(directory), "--live", str(tmp_path / "chat")], 2, "needs frozen datastores"),
        ([str(directory), "--listen", f"unix:{tmp_path}/socket"], 2, "and HOST:PORT to listen on"),
        ([absent], 1, "absent"),
    ):
        with (
            pytest.raises(RuntimeError, match=f"(?s)status {status}.*{actual}"),
            running(options=["--workers", "2", *arguments]),
        ):
            pass


def call_of(path: bytes) -> bytes:
    """The bytes of a connection that calls `path`, without tables of fields (RFC 7541, 6.2.2)."""
    fields = {b":method": b"POST", b":scheme": b"http", b":path": path, b":authority": b"x"}
    fields |= {b"te": b"trailers", b"content-type": b"application/grpc"}
    block = b"".join(
        b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value
        for name, value in fields.items()
    )
    return PREFACE + struct.pack(">I", len(block))[1:] + struct.pack(">BBI", 1, 4, 1) + block


def test_a_method_whose_name_is_not_utf8_stops_nothing(directory: Path) -> None:
    """From 1.84 on it stops the asyncio server of gRPC, and pyproject.toml names an older one."""
    with (
        running(directory) as service,
        service.stub() as stub,
        contextlib.ExitStack() as stack,
    ):
        talk = SessionTalk(stub)
        talk.ask(OPENING)
        for connection in connected(stack, service.target, 3):
            connection.sendall(call_of(b"/\xff\xfe/x"))
            connection.recv(4096)
            talk.ask(step(3))
            assert len(stub.Draft(ASKED, timeout=PATIENCE).trees) == 1
        talk.close()


@pytest.mark.parametrize("sent", [b"", b"GET /metr", b"GET /metrics HTTP/1.1\r\nHost: x\r\n"])
def test_a_silent_client_of_the_metrics_is_ended(
    monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    assert http_server._Handler.timeout == 10
    monkeypatch.setattr(http_server._Handler, "timeout", 0.1)
    server = HttpServer(Address.parse("127.0.0.1:0"), CollectorRegistry(), lambda: True)
    try:
        host, port = server.url.split("/")[2].split(":")
        with socket.create_connection((host, int(port)), PATIENCE) as silent:
            silent.sendall(sent)
            assert silent.recv(1) == b""
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("soft", "hard", "expected"),
    [
        (1024, 4096, 4096),
        (1024, 1 << 20, 1 << 16),
        (1024, resource.RLIM_INFINITY, 1 << 16),
        (1 << 17, 1 << 20, 1 << 17),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None),
    ],
)
def test_connections_do_not_use_up_the_files_that_a_service_may_open(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, expected: int | None
) -> None:
    made: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: made.append(limits))
    serve_command._allow_files()
    assert made == ([] if expected is None else [(expected, hard)])
