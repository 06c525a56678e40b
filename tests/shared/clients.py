"""Both kinds of clients with one interface, and deadlines for a busy machine, for tests."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest

from rest_store.service.client.async_client import AsyncDatastoreClient
from rest_store.service.client.client import DatastoreClient
from rest_store.v1 import datastore_pb2 as pb
from tests.shared.services import PATIENCE
from tests.shared.strategies import identity

LATE = 0.3  # seconds of a deadline that is meant to pass
SLACK = 10.0  # seconds by which a busy machine may be late to notice


class Waiting:
    """An AsyncDatastoreClient whose methods wait, so that both clients take the same tests."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.inner: Any = AsyncDatastoreClient(*arguments, **options)
        self.loop = asyncio.new_event_loop()

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.inner, name)
        if not callable(attribute):
            return attribute

        def call(*arguments: Any, **options: Any) -> Any:
            result = attribute(*arguments, **options)
            if asyncio.iscoroutine(result):
                return self.loop.run_until_complete(result)
            waiting = Waiting.__new__(Waiting)
            waiting.loop = self.loop
            waiting.inner = result
            return waiting

        return call


@contextlib.contextmanager
def connected(kind: type[Any], *arguments: Any, **options: Any) -> Iterator[Any]:
    client = kind(*arguments, **{"timeout": PATIENCE, **options})
    try:
        yield client
    finally:
        client.close()
        if isinstance(client, Waiting):
            client.loop.close()


KINDS = pytest.mark.parametrize("kind", [DatastoreClient, Waiting], ids=["blocking", "asyncio"])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Impostor:
    """A gRPC server with a frozen datastore "a" and a live one "chat", whose answers are fixed.

    Args:
        answer: to `Draft` and `Count`, bytes or a callable that returns them.
        vocabulary_size: of the tokenizer of both.
        **streams: messages of each call of `Follow` and `Fetch`.
    """

    def __init__(
        self,
        answer: bytes | Callable[[], bytes] = b"",
        *,
        vocabulary_size: int = 300,
        **streams: Iterable[bytes],
    ) -> None:
        answering = answer if callable(answer) else lambda: answer
        tokenizer = pb.TokenizerDescription(**identity(vocabulary_size).to_manifest())
        described = pb.DescribeResponse(
            datastores=[
                pb.DatastoreDescription(name="a", tokenizer=tokenizer),
                pb.DatastoreDescription(name="chat", tokenizer=tokenizer, live=True),
            ],
        )
        methods: dict[str, Any] = {
            name: grpc.unary_unary_rpc_method_handler(lambda _request, _context: answering())
            for name in ("Draft", "Count")
        }
        methods["Describe"] = grpc.unary_unary_rpc_method_handler(
            lambda *_: described.SerializeToString()
        )
        for name, messages in streams.items():
            methods[name] = grpc.unary_stream_rpc_method_handler(
                lambda *_, messages=messages: iter(messages)
            )
        self.server = grpc.server(
            futures.ThreadPoolExecutor(4), options=[("grpc.max_send_message_length", -1)]
        )
        self.server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("rest_store.v1.DatastoreService", methods),)
        )
        self.target = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()
