"""The health of a service and of each of its datastores (grpc.health.v1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_MOST_WATCHERS = 64


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # generated, without types
    """Answers Check and Watch. For use within one event loop.

    The servicer that comes with gRPC is not used: there a watcher that does not read blocks whoever sets a status, and
    one that leaves makes the others miss changes.
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

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802  the name in the definition
        """Return the status of one name; NOT_FOUND if it is unknown."""
        status = self._status(request.service)
        if status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN:
            await context.abort(
                grpc.StatusCode.NOT_FOUND, "health: the name is unknown: neither the service nor a datastore has it"
            )
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802  the name in the definition
        """Yield the status of one name, now and whenever it changes."""
        if len(self._watchers) >= _MOST_WATCHERS:
            message = f"health: there are {_MOST_WATCHERS} watchers already; try again later"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, message)
        changed = asyncio.Event()
        self._watchers.add(changed)
        try:
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
