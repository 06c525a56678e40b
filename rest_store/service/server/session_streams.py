"""The streams of `DraftSession`: one session each, until its
client, an error or the service ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import grpc

from rest_store.datastore.kernel import native_kernel
from rest_store.drafting.sources import RecycledLogits
from rest_store.errors import ArgumentError, ProtocolError, RestStoreError, describe
from rest_store.service.server.admission import GRANT, Context, ending, shutting_down
from rest_store.service.server.catalog import Catalog, HostedDatastore
from rest_store.service.server.executor import Executor
from rest_store.service.server.metrics import Metrics
from rest_store.service.server.request_checks import parse, require_size
from rest_store.service.server.served_session import ServedSession
from rest_store.service.server.service_limits import Budget, ServiceLimits
from rest_store.v1 import datastore_pb2 as pb

_NAME = "DraftSession"
_MAX_KEY_BYTES = 64  # bytes
_MAX_TABLES = 64  # of recycled logits that are kept for later sessions, which have up to 9 MB
_EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # missing in the stubs


@dataclass(eq=False)
class _Stream:
    """One open stream: its task, and its session once that is open."""

    task: asyncio.Task[Any]
    session: ServedSession | None = None
    in_step: bool = False  # whether its latest message is not answered yet
    ending: RestStoreError | None = None  # why the service ends it


class SessionStreams:
    """Answers the messages of sessions. For use within one event loop.

    Args:
        catalog: the datastores.
        limits: of messages and sessions.
        metrics: count trees, steps and tokens.
        executor: does the work.

    Attributes:
        memory: bytes that sessions have reserved, besides recycled logits.
        open: the streams that are open now.
    """

    def __init__(
        self, catalog: Catalog, limits: ServiceLimits, metrics: Metrics, executor: Executor
    ) -> None:
        self._catalog = catalog
        self._limits = limits
        self._metrics = metrics
        self._executor = executor
        self.memory = Budget("bytes of memory for sessions", limits.max_session_memory)
        self._tables: dict[bytes, RecycledLogits] = {}  # by key, the latest last
        self.open: set[_Stream] = set()
        self._is_draining = False

    async def run(self, _: object, context: Context) -> None:
        """Run a stream; its messages are bytes."""
        task = asyncio.current_task()
        assert task is not None
        stream = _Stream(task)
        async with ending(_NAME, context, self._metrics):
            try:
                await self._converse(stream, context)
            except asyncio.CancelledError as error:
                raise stream.ending or error from None

    async def _converse(self, stream: _Stream, context: Context) -> None:
        """Answer the messages of a stream, one after the other, until
        its client ends it or this service drains.
        """
        self.open.add(stream)
        try:
            while (data := await context.read()) is not _EOF:
                start = perf_counter()
                stream.in_step = True
                response = await self._step(stream, data)
                self._metrics.answered(_NAME, perf_counter() - start)
                if response is not None:
                    await context.write(response)
                stream.in_step = False
                if self._is_draining:
                    raise shutting_down()
        finally:  # before the client hears of the end
            self.open.discard(stream)
            if stream.session is not None:
                self.memory.give_back(stream.session.memory)

    async def _step(self, stream: _Stream, data: bytes) -> bytes | None:
        """Answer the next message, if it asks for anything.

        Raise an error of the table in service/statuses.py.
        """
        session, limits = stream.session, self._limits
        require_size(
            "request",
            len(data),
            limits.max_opening_bytes if session is None else limits.max_request_bytes,
        )
        request = parse(pb.DraftSessionRequest, data)
        if request.HasField("open") != (session is None):
            found, expected = ("absent", "first") if session is None else ("second", "none")
            raise ProtocolError(
                describe("session", "opening", found, f"{expected}: a session is opened once")
            )
        if session is None:
            served = self._catalog.select(request.open.selection, GRANT.get())
            session = stream.session = self._begin(request.open, served)
            await self._executor.open(session.open, small=session.opens_at_once)
        step = session.step(request)
        tree = await self._executor.run(partial(session.run, step), small=step.is_small)
        for accepted in step.accepted:
            self._metrics.count_step(len(accepted.tokens))
        if tree is None:
            return None
        self._metrics.count_trees(_NAME, 1, len(tree.origins))
        return pb.DraftSessionResponse(tree=tree).SerializeToString()

    def _begin(
        self, opening: pb.SessionOpening, served: Sequence[HostedDatastore]
    ) -> ServedSession:
        """Return a new session over the datastores `served`. Its text is not read yet.

        Raises:
            ArgumentError: the text or a key is too long, or there are too many datastores.
            OverloadedError: the sessions take too much memory.
        """
        most = int(native_kernel().MAX_STORES)
        if len(served) > most:
            raise ArgumentError(
                describe("session", "number of datastores", len(served), f"at most {most}")
            )
        recycled = (
            self._recycled_logits(opening.recycled_logits) if opening.recycled_logits else None
        )
        return ServedSession(opening, served, recycled, self._limits, self.memory)

    def _recycled_logits(self, key: bytes) -> RecycledLogits:
        """Return what sessions with the same key share, and keep it for later ones."""
        if len(key) > _MAX_KEY_BYTES:
            found, expected = f"{len(key)} bytes", f"at most {_MAX_KEY_BYTES}"
            raise ArgumentError(describe("session", "key of recycled logits", found, expected))
        table = self._tables.pop(key, None)
        self._tables[key] = table = RecycledLogits() if table is None else table
        if len(self._tables) > _MAX_TABLES:
            del self._tables[next(iter(self._tables))]  # open sessions go on with theirs
        return table

    def follow_changes(self) -> None:
        """Have sessions between two steps release what live datastores have replaced.

        To be called every second.
        """
        for stream in self.open:
            if stream.session is not None and not stream.in_step:
                stream.session.follow_changes()

    def drain(self) -> None:
        """End streams between two steps, each as soon as its present one is answered.

        New ones likewise.
        """
        self._is_draining = True
        for stream in self.open:
            if not stream.in_step:
                stream.ending = shutting_down()
                stream.task.cancel()
