"""The health of a service and of each of its datastores (grpc.health.v1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from grpc_health.v1 import health_pb2

from rest_store.errors import UnknownDatastoreError, describe


class Health:
    """Answers Check and Watch, whose methods take requests and yield responses. For use within one event loop.

    The servicer that comes with gRPC is not used: there, a watcher that does not read blocks the caller of `set`, and a
    watcher that leaves makes the others miss changes.
    """

    def __init__(self) -> None:
        self._serving: dict[str, bool] = {}
        self._watchers: set[asyncio.Event] = set()

    def set(self, serving: dict[str, bool]) -> None:
        """Replace the status of every name: whether it is served. Never waits."""
        if serving != self._serving:
            self._serving = dict(serving)
            for watcher in self._watchers:
                watcher.set()

    def _status(self, name: str) -> int:
        if name not in self._serving:
            return int(health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)
        serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
        return int(serving if self._serving[name] else not_serving)

    async def check(self, requests: AsyncIterator[Any]) -> AsyncGenerator[Any, None]:
        """Yield the status of one name; raise UnknownDatastoreError for a name of neither service nor datastore."""
        async for request in requests:
            status = self._status(request.service)
            if status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN:
                expected = "empty, the service's or that of a datastore"
                raise UnknownDatastoreError(describe("health", "name", "unknown", expected))
            yield health_pb2.HealthCheckResponse(status=status)

    async def watch(self, requests: AsyncIterator[Any]) -> AsyncGenerator[Any, None]:
        """Yield the status of one name, now and whenever it changes."""
        changed = asyncio.Event()
        self._watchers.add(changed)
        try:
            async for request in requests:
                shown = None
                while True:
                    changed.clear()
                    status = self._status(request.service)
                    if status != shown:
                        shown = status
                        yield health_pb2.HealthCheckResponse(status=status)
                    await changed.wait()
        finally:
            self._watchers.discard(changed)
