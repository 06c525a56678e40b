"""The methods of DatastoreService for gRPC.

Messages pass as bytes. So their sizes are known before they are parsed, and a malformed message
gets an error of the same form as any other.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from time import perf_counter
from typing import Any

import grpc

from rest_store.service.bearer_tokens import Grant
from rest_store.service.server.admission import GRANT, Context, ending
from rest_store.service.server.copies import Copies
from rest_store.service.server.feeds import Feeds
from rest_store.service.server.metrics import Metrics
from rest_store.service.server.queries import Queries
from rest_store.service.server.request_checks import require_size
from rest_store.service.server.service_limits import ServiceLimits
from rest_store.service.server.session_streams import SessionStreams
from rest_store.service.server.writes import Writes
from rest_store.v1 import datastore_pb2 as pb

SERVICE = pb.DESCRIPTOR.services_by_name["DatastoreService"].full_name
METHODS = tuple(
    method.name for method in pb.DESCRIPTOR.services_by_name["DatastoreService"].methods
)

Answer = Callable[[bytes, Grant], Awaitable[bytes]]
Answers = Callable[[bytes, Grant], AsyncIterator[bytes]]


def datastore_service(
    queries: Queries,
    writes: Writes,
    streams: SessionStreams,
    feeds: Feeds,
    copies: Copies,
    limits: ServiceLimits,
    metrics: Metrics,
) -> Any:
    """Return the handler of all methods, for a server of grpc.aio."""

    def unary(name: str, answer: Answer, max_bytes: int = limits.max_request_bytes) -> Any:
        async def handle(data: bytes, context: Context) -> bytes:
            start = perf_counter()
            async with ending(name, context, metrics):
                require_size("request", len(data), max_bytes)
                response = await answer(data, GRANT.get())
                require_size("response", len(response), limits.max_message_bytes)
            metrics.answered(name, perf_counter() - start)
            return response

        return grpc.unary_unary_rpc_method_handler(handle)

    def streaming(name: str, answers: Answers) -> Any:
        async def handle(data: bytes, context: Context) -> None:
            start = perf_counter()
            async with ending(name, context, metrics):
                require_size("request", len(data), limits.max_request_bytes)
                async for answer in answers(data, GRANT.get()):
                    metrics.answered(name, perf_counter() - start)
                    await context.write(answer)
                    start = perf_counter()

        return grpc.unary_stream_rpc_method_handler(handle)

    methods = {
        "Draft": unary("Draft", queries.draft),
        "DraftSession": grpc.stream_stream_rpc_method_handler(streams.run),
        "Count": unary("Count", queries.count),
        "Describe": unary("Describe", queries.describe),
        "Add": unary("Add", writes.add, limits.max_message_bytes),
        "Delete": unary("Delete", writes.delete, limits.max_message_bytes),
        "Follow": streaming("Follow", feeds.follow),
        "Fetch": streaming("Fetch", copies.fetch),
    }
    assert set(methods) == set(METHODS)
    return grpc.method_handlers_generic_handler(SERVICE, methods)
