"""The turns of a stream, both ways in which gRPC does them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from rest_store.service.server import turns
from rest_store.service.server.turns import EOF, Turns
from tests.shared.services import PATIENCE

METHOD = "/Echo/Talk"


def other_signature(*_: object) -> None:
    raise TypeError("execute_batch() takes exactly 4 positional arguments (3 given)")


@pytest.fixture(params=["joined", "no core", "no state", "another signature"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How turns are taken: as one, or by the public calls because something is not as expected."""
    if request.param == "no core":
        monkeypatch.setattr(turns, "_State", None)
    elif request.param == "no state":
        monkeypatch.setattr(turns, "_State", dict)
    elif request.param == "another signature":
        send, receive, _ = turns._OPERATIONS
        monkeypatch.setattr(turns, "_OPERATIONS", (send, receive, other_signature))
    return str(request.param)


class Echo(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in its stubs alone
    """Answers each message with itself, and notes whether turns were joined, and how streams end."""

    def __init__(self) -> None:
        self.joined: list[bool] = []
        self.ends: asyncio.Queue[str] = asyncio.Queue()

    def service(self, handler_call_details: Any) -> Any:
        return grpc.stream_stream_rpc_method_handler(self.talk)

    async def talk(self, _: object, context: Any) -> None:
        taken = Turns(context)
        try:
            request = await taken.first()
            while request is not EOF:
                request = await taken.next(request)
                self.joined.append(taken.joined)
            self.ends.put_nowait("EOF")
        except asyncio.CancelledError:
            self.ends.put_nowait("cancelled")
            raise


@asynccontextmanager
async def echoing() -> AsyncIterator[tuple[Echo, Any]]:
    echo = Echo()
    server = grpc.aio.server(handlers=[echo])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield echo, channel.stream_stream(METHOD, None, None)
    await server.stop(None)


def test_answers_go_out_and_requests_come_in(way: str) -> None:
    messages = [b"one", b"two", b"", bytes(100_000), b"five"]

    async def run() -> list[bool]:
        async with echoing() as (echo, stream):
            call = stream(timeout=PATIENCE)
            for message in messages:
                await call.write(message)
                assert await call.read() == message
            await call.done_writing()
            assert await call.read() is EOF
            assert await call.code() is grpc.StatusCode.OK
            assert await asyncio.wait_for(echo.ends.get(), PATIENCE) == "EOF"
            return echo.joined

    assert asyncio.run(run()) == [way in ("joined", "another signature"), *[way == "joined"] * 4]


def test_requests_may_come_before_their_turn(way: str) -> None:
    messages = [bytes([place]) for place in range(50)]

    async def run() -> None:
        async with echoing() as (echo, stream):
            call = stream(timeout=PATIENCE)
            for message in messages:
                await call.write(message)
            await call.done_writing()
            assert [message async for message in call] == messages
            assert await asyncio.wait_for(echo.ends.get(), PATIENCE) == "EOF"

    asyncio.run(run())


@pytest.mark.parametrize("answers", [1, 3])
def test_a_client_that_leaves_ends_the_handler(way: str, answers: int) -> None:
    async def run() -> str:
        async with echoing() as (echo, stream):
            call = stream(timeout=PATIENCE)
            for _ in range(answers):
                await call.write(b"one")
                await call.read()
            call.cancel()
            return await asyncio.wait_for(echo.ends.get(), PATIENCE)

    assert asyncio.run(run()) in ("cancelled", "EOF")  # whichever gRPC notices first, here as without turns
