"""Services in this process, with their partitions in one event loop: they start in milliseconds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from rest_store.datastore.partition import Partition
from rest_store.service.address import Address
from rest_store.service.server.server import ServeOptions, Server
from tests.shared.services import PATIENCE


@asynccontextmanager
async def serving_here(directory: Path) -> AsyncIterator[tuple[Server, str]]:
    """Serve the datastore "a" in this process, where tests may change what happens.

    Yield the server's address, too.
    """
    server = Server(
        ServeOptions([("a", directory)], [Address.parse("127.0.0.1:0")], drain_seconds=0), "1"
    )
    [target] = await server.start()
    yield server, target
    await server.drain()


class Serving:
    """Services on sockets in `folder`, by name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._servers: dict[str, Server] = {}

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    def start(self, name: str, directory: Path, partition: str | None) -> str:
        """Serve a partition of the datastore in `directory` as `served`, and return the address."""
        address = Address.parse(f"unix:{self._folder}/{name}")

        async def start() -> Server:
            own = None if partition is None else Partition.parse(partition)
            server = Server(
                ServeOptions([("served", directory)], [address], drain_seconds=0.1, partition=own),
                "1",
            )
            await server.start()
            return server

        self._servers[name] = self._run(start())
        return address.text

    def start_all(self, directory: Path, partitions: int, prefix: str = "") -> list[list[str]]:
        """Serve all partitions, one replica each; return their groups of endpoints."""
        return [
            [self.start(f"{prefix}{number}of{partitions}", directory, f"{number}/{partitions}")]
            for number in range(1, partitions + 1)
        ]

    def stop(self, name: str) -> None:
        self._run(self._servers.pop(name).drain())

    def end(self) -> None:
        for name in [*self._servers]:
            self.stop(name)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()


@contextmanager
def serving(folder: Path) -> Iterator[Serving]:
    served = Serving(folder)
    try:
        yield served
    finally:
        served.end()
