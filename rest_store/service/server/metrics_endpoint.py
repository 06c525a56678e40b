"""The page of metrics, over HTTP from the event loop."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import Executor
from contextlib import suppress

import h11
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from rest_store.errors import ServeError
from rest_store.service.address import Address

_PATH = b"/metrics"
_LONGEST_HEAD = 16 << 10  # bytes of a request's line and headers


class MetricsEndpoint:
    """Answers `GET /metrics`, one request a connection. For use within one event loop.

    A connection ends after `seconds`, whether its peer is silent, sends slowly or reads slowly. Beyond
    `most_connections`, a new connection ends the oldest. So peers that only hold connections cost a few descriptors,
    and others still reach the page.

    Args:
        metrics: what the page shows.
        workers: the threads that write the page.
        most_connections: most connections at once.
        seconds: longest time of a connection.
    """

    def __init__(
        self, metrics: Collector, workers: Executor, *, most_connections: int = 32, seconds: float = 10.0
    ) -> None:
        self._metrics = metrics
        self._workers = workers
        self._most_connections = most_connections
        self._seconds = seconds
        self._connections: dict[asyncio.Task[None], None] = {}  # the oldest first
        self._server: asyncio.Server | None = None
        self._page = asyncio.Lock()  # one page is written at a time

    async def start(self, address: Address) -> str:
        """Listen at a TCP address; return the URL of the page. Raises ServeError if it cannot be bound."""
        try:
            loop = asyncio.get_running_loop()
            entries = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
            self._server = await asyncio.start_server(self._serve, str(entries[0][4][0]), address.port)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            message = f"service: address {address.text} of metrics cannot be bound ({reason})"
            raise ServeError(message) from None
        port = self._server.sockets[0].getsockname()[1]
        return f"http://{address.with_port(port).text}{_PATH.decode()}"

    async def stop(self) -> None:
        """Stop listening and end all connections."""
        if self._server is not None:
            self._server.close()
        connections = list(self._connections)
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._connections) >= self._most_connections:
            oldest = next(iter(self._connections))
            del self._connections[oldest]
            oldest.cancel()
        self._connections[task] = None
        try:
            with suppress(asyncio.TimeoutError, asyncio.CancelledError, OSError):
                await asyncio.wait_for(self._answer(reader, writer), self._seconds)
        finally:
            writer.transport.abort()  # all was sent, or nobody reads it
            self._connections.pop(task, None)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read one request, send its answer, and close."""
        http = h11.Connection(h11.SERVER, max_incomplete_event_size=_LONGEST_HEAD)
        request, status, content_type, body = None, 400, "text/plain", b""
        try:
            while (event := http.next_event()) is h11.NEED_DATA:
                http.receive_data(await reader.read(_LONGEST_HEAD))
            if not isinstance(event, h11.Request):
                return  # the peer has closed the connection
            request = event
            status, content_type, body = await self._respond(request)
        except h11.RemoteProtocolError as error:
            status = error.error_status_hint
        headers = [("content-type", content_type), ("content-length", str(len(body))), ("connection", "close")]
        writer.write(http.send(h11.Response(status_code=status, headers=headers)) or b"")
        if request is not None and request.method != b"HEAD":
            writer.write(http.send(h11.Data(data=body)) or b"")
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def _respond(self, request: h11.Request) -> tuple[int, str, bytes]:
        """Return status, type and content of the answer."""
        if request.target.partition(b"?")[0] != _PATH:
            return 404, "text/plain", b"metrics are at /metrics\n"
        if request.method not in (b"GET", b"HEAD"):
            return 405, "text/plain", b""
        try:
            encode, content_type = choose_encoder(dict(request.headers).get(b"accept", b"").decode("latin-1"))
        except (TypeError, ValueError):  # raised for a malformed version
            return 406, "text/plain", b""
        async with self._page:
            page = await asyncio.get_running_loop().run_in_executor(self._workers, encode, self._metrics)
        return 200, content_type, page
