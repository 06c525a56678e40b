"""How `bench_service.py` asks a service: with generated code, blocking and asyncio, and with `DatastoreClient`.

Each function takes an address and contexts, asks for their drafts one after the other on a connection of its own, and
returns the microseconds of each.
"""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from timing import time_each

from rest_store.bench.serving import TIMEOUT
from rest_store.service.client.client import DatastoreClient
from rest_store.v1 import datastore_pb2 as pb
from rest_store.v1 import datastore_pb2_grpc

stub_of: Any = datastore_pb2_grpc.DatastoreServiceStub  # generated, without types
EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # missing in the stubs
FIRST: Any = {"wait_for_ready": True, "timeout": TIMEOUT}  # for the first call on a connection
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]
Contexts = list[list[int]]
Blocking = Callable[[str, Contexts], list[float]]
Asynchronous = Callable[[str, Contexts], Awaitable[list[float]]]


def request_of(*contexts: list[int]) -> pb.DraftRequest:
    return pb.DraftRequest(contexts=[pb.Context(tokens=context) for context in contexts])


def unary_sync(target: str, contexts: Contexts) -> list[float]:
    with grpc.insecure_channel(target, OWN_CONNECTION) as channel:
        draft = stub_of(channel).Draft
        draft(request_of(contexts[0]), **FIRST)
        return time_each(lambda context: draft(request_of(context)), contexts)


def stream_sync(target: str, contexts: Contexts) -> list[float]:
    with grpc.insecure_channel(target, OWN_CONNECTION) as channel:
        requests: queue.SimpleQueue[pb.DraftStreamRequest | None] = queue.SimpleQueue()
        answers = stub_of(channel).DraftStream(iter(requests.get, None), wait_for_ready=True)

        def ask(context: list[int]) -> None:
            requests.put(pb.DraftStreamRequest(tokens=context))
            next(answers)

        times = time_each(ask, [contexts[0], *contexts])
        requests.put(None)
        assert list(answers) == []
    return times[1:]


async def unary_asyncio(target: str, contexts: Contexts) -> list[float]:
    async with grpc.aio.insecure_channel(target, OWN_CONNECTION) as channel:
        draft = stub_of(channel).Draft
        await draft(request_of(contexts[0]), **FIRST)
        return await time_each_async(lambda context: draft(request_of(context)), contexts)


async def stream_asyncio(target: str, contexts: Contexts) -> list[float]:
    async with grpc.aio.insecure_channel(target, OWN_CONNECTION) as channel:
        call = stub_of(channel).DraftStream(wait_for_ready=True)

        async def ask(context: list[int]) -> None:
            await call.write(pb.DraftStreamRequest(tokens=context))
            await call.read()

        times = await time_each_async(ask, [contexts[0], *contexts])
        await call.done_writing()
        assert await call.read() is EOF
    return times[1:]


async def time_each_async(call: Callable[[list[int]], Awaitable[object]], contexts: Contexts) -> list[float]:
    times = []
    for context in contexts:
        start = time.perf_counter_ns()
        await call(context)
        times.append((time.perf_counter_ns() - start) / 1e3)
    return times


def blocking(call: Asynchronous) -> Blocking:
    """Return `call` in an event loop of its own."""

    async def run(target: str, contexts: Contexts) -> list[float]:
        return await call(target, contexts)

    return lambda target, contexts: asyncio.run(run(target, contexts))


def unary_client(target: str, contexts: Contexts) -> list[float]:
    with DatastoreClient(target, timeout=TIMEOUT) as client:
        client.connect()
        times = time_each(client.draft, [contexts[0], *contexts])
        assert client.statistics.answers == client.statistics.calls, client.statistics
    return times[1:]


def stream_client(target: str, contexts: Contexts) -> list[float]:
    with DatastoreClient(target, timeout=TIMEOUT) as client, client.stream() as stream:
        return time_each(stream.draft, [contexts[0], *contexts])[1:]
