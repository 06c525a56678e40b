"""Clients of a service for tests: both kinds behind one face, with time for a busy machine."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from rest_store.client.async_client import AsyncDatastoreClient
from rest_store.client.client import DatastoreClient
from tests.services import PATIENCE

LATE = 0.3  # seconds of a deadline that is meant to pass
SLACK = 10.0  # seconds by which a busy machine may be late to notice


class Waiting:
    """An AsyncDatastoreClient whose methods wait, so that both clients take the same tests."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.inner: Any = AsyncDatastoreClient(*arguments, **options)
        self.loop = asyncio.new_event_loop()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if not callable(found):
            return found

        def call(*arguments: Any, **options: Any) -> Any:
            result = found(*arguments, **options)
            if asyncio.iscoroutine(result):
                return self.loop.run_until_complete(result)
            waiting = Waiting.__new__(Waiting)
            waiting.loop, waiting.inner = self.loop, result
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
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
