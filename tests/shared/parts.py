"""Services of parts in this process: many in one event loop, so that tests start and stop them in milliseconds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rest_store.datastore.part import Part
from rest_store.service.address import Address
from rest_store.service.server.server import ServeOptions, Server
from tests.shared.services import PATIENCE


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

    def start(self, name: str, directory: Path, part: str | None, **options: Any) -> str:
        """Serve a part of the datastore in `directory` as `served`, and return the address."""
        address = Address.parse(f"unix:{self._folder}/{name}")

        async def start() -> Server:
            own = ServeOptions(
                [("served", directory)],
                [address],
                drain_seconds=0.1,
                part=None if part is None else Part.parse(part),
                **options,
            )
            server = Server(own, "1")
            await server.start()
            return server

        self._servers[name] = self._run(start())
        return address.text

    def start_all(self, directory: Path, parts: int, prefix: str = "") -> list[list[str]]:
        """Serve all parts, one replica each; return their groups of endpoints."""
        return [
            [self.start(f"{prefix}{number}of{parts}", directory, f"{number}/{parts}")] for number in range(1, parts + 1)
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
