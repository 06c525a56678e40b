"""How `rest-store bench service` asks: by generated code, blocking and with asyncio, and by `DatastoreClient`.

Each call takes an address and contexts, asks for their drafts one after the other on a connection of its own, and
returns the seconds of each.
"""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from rest_store.bench.serving import TIMEOUT as PATIENCE
from rest_store.service.client.client import DatastoreClient
from rest_store.v1 import datastore_pb2 as pb
from rest_store.v1 import datastore_pb2_grpc

stub_of: Any = datastore_pb2_grpc.DatastoreServiceStub  # generated, without types
EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # missing in the stubs
# Of the first call on a connection: trying again, where the machine was too busy to answer within gRPC's own limits.
FIRST: Any = {"wait_for_ready": True, "timeout": PATIENCE}
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]
Measure = Callable[[str, list[list[int]]], list[float]]
Asynchronous = Callable[[str, list[list[int]]], Awaitable[list[float]]]


def request_of(*contexts: list[int]) -> pb.DraftRequest:
    return pb.DraftRequest(contexts=[pb.Context(tokens=context) for context in contexts])


def unary_sync(target: str, contexts: list[list[int]]) -> list[float]:
    with grpc.insecure_channel(target, OWN_CONNECTION) as channel:
        draft = stub_of(channel).Draft
        draft(request_of(contexts[0]), **FIRST)
        times = []
        for context in contexts:
            start = time.perf_counter()
            draft(request_of(context))
            times.append(time.perf_counter() - start)
    return times


def stream_sync(target: str, contexts: list[list[int]]) -> list[float]:
    with grpc.insecure_channel(target, OWN_CONNECTION) as channel:
        requests: queue.SimpleQueue[pb.DraftStreamRequest | None] = queue.SimpleQueue()
        answers = stub_of(channel).DraftStream(iter(requests.get, None), wait_for_ready=True)
        times = []
        for context in [contexts[0], *contexts]:
            start = time.perf_counter()
            requests.put(pb.DraftStreamRequest(tokens=context))
            next(answers)
            times.append(time.perf_counter() - start)
        requests.put(None)
        assert list(answers) == []
    return times[1:]


async def unary_asyncio(target: str, contexts: list[list[int]]) -> list[float]:
    async with grpc.aio.insecure_channel(target, OWN_CONNECTION) as channel:
        draft = stub_of(channel).Draft
        await draft(request_of(contexts[0]), **FIRST)
        times = []
        for context in contexts:
            start = time.perf_counter()
            await draft(request_of(context))
            times.append(time.perf_counter() - start)
    return times


async def stream_asyncio(target: str, contexts: list[list[int]]) -> list[float]:
    async with grpc.aio.insecure_channel(target, OWN_CONNECTION) as channel:
        call = stub_of(channel).DraftStream(wait_for_ready=True)
        times = []
        for context in [contexts[0], *contexts]:
            start = time.perf_counter()
            await call.write(pb.DraftStreamRequest(tokens=context))
            await call.read()
            times.append(time.perf_counter() - start)
        await call.done_writing()
        assert await call.read() is EOF
    return times[1:]


def in_loop(call: Asynchronous) -> Measure:
    async def run(target: str, contexts: list[list[int]]) -> list[float]:
        return await call(target, contexts)

    return lambda target, contexts: asyncio.run(run(target, contexts))


def client_of(target: str) -> DatastoreClient:
    client = DatastoreClient(target, timeout=PATIENCE)
    client.connect()
    return client


def unary_client(target: str, contexts: list[list[int]]) -> list[float]:
    with client_of(target) as client:
        return timed(client.draft, contexts)


def unary_source(target: str, contexts: list[list[int]]) -> list[float]:
    with client_of(target) as client:
        times = timed(client.source().draft, contexts)
        assert client.statistics.empty_answers == 0, client.statistics
        return times


def stream_client(target: str, contexts: list[list[int]]) -> list[float]:
    with client_of(target) as client, client.stream() as stream:
        return timed(stream.draft, contexts)


def timed(draft: Callable[[list[int]], object], contexts: list[list[int]]) -> list[float]:
    draft(contexts[0])
    times = []
    for context in contexts:
        start = time.perf_counter()
        draft(context)
        times.append(time.perf_counter() - start)
    return times
