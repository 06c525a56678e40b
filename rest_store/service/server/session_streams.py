"""The streams of `DraftSession`, each with one session."""

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
_MAX_KEY_BYTES = 64
_MAX_TABLES = 64  # of recycled logits, of up to 9 MB each, that wait for later sessions
_EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # missing in the stubs


@dataclass(eq=False)
class _Stream:
    """An open stream.

    Attributes:
        task: of the call.
        session: None: its opening has not come yet.
        in_step: whether a message is being answered.
        ending: the error with which the service ends the stream; None: it does not.
    """

    task: asyncio.Task[Any]
    session: ServedSession | None = None
    in_step: bool = False
    ending: RestStoreError | None = None


class SessionStreams:
    """Answers the messages of sessions. For use within one event loop.

    Args:
        catalog: the datastores.
        limits: of messages and sessions.
        metrics: count trees, steps and tokens.
        executor: runs the work.

    Attributes:
        memory: bytes that sessions have reserved, without recycled logits.
        open: the open streams.
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
        """Answer a call of `DraftSession`, whose messages are bytes."""
        task = asyncio.current_task()
        assert task is not None
        stream = _Stream(task)
        async with ending(_NAME, context, self._metrics):
            try:
                await self._converse(stream, context)
            except asyncio.CancelledError as error:
                raise stream.ending or error from None

    async def _converse(self, stream: _Stream, context: Context) -> None:
        """Answer the messages of a stream, until its client ends it or this service drains."""
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
        finally:  # before the client learns of the end
            self.open.discard(stream)
            if stream.session is not None:
                self.memory.give_back(stream.session.memory)

    async def _step(self, stream: _Stream, data: bytes) -> bytes | None:
        """Return the answer to the next message; None if it asks for no tree.

        Raises:
            RestStoreError: of the table in service/statuses.py.
        """
        session = stream.session
        limits = self._limits
        max_bytes = limits.max_opening_bytes if session is None else limits.max_request_bytes
        require_size("request", len(data), max_bytes)
        request = parse(pb.DraftSessionRequest, data)
        has_opening = request.HasField("open")
        if session is None:
            if not has_opening:
                raise ProtocolError("session: the first message has no opening")
            served = self._catalog.select(request.open.selection, GRANT.get())
            session = self._begin(request.open, served)
            stream.session = session
            await self._executor.open(session.open, small=session.opens_at_once)
        elif has_opening:
            raise ProtocolError("session: it is open; only its first message has an opening")
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
        """Return a new session over the datastores `served`, without its text.

        Raises:
            ArgumentError: the text or a key is too long, or there are too many datastores.
            OverloadedError: the sessions take too much memory.
        """
        max_stores = int(native_kernel().MAX_STORES)
        if len(served) > max_stores:
            raise ArgumentError(
                describe("session", "number of datastores", len(served), f"at most {max_stores}")
            )
        recycled = None
        if opening.recycled_logits:
            recycled = self._recycled_logits(opening.recycled_logits)
        return ServedSession(opening, served, recycled, self._limits, self.memory)

    def _recycled_logits(self, key: bytes) -> RecycledLogits:
        """Return the table that sessions with the same key share, and keep it for later ones."""
        if len(key) > _MAX_KEY_BYTES:
            actual = f"{len(key)} bytes"
            expected = f"at most {_MAX_KEY_BYTES}"
            raise ArgumentError(describe("session", "key of recycled logits", actual, expected))
        table = self._tables.pop(key, None)
        if table is None:
            table = RecycledLogits()
        self._tables[key] = table  # as the latest one
        if len(self._tables) > _MAX_TABLES:
            earliest = next(iter(self._tables))
            del self._tables[earliest]  # open sessions keep theirs
        return table

    def follow_changes(self) -> None:
        """Release replaced shards of live datastores, in sessions between two steps.

        To be called every second.
        """
        for stream in self.open:
            if stream.session is not None and not stream.in_step:
                stream.session.follow_changes()

    def drain(self) -> None:
        """End all streams, later ones too, each once its present message is answered."""
        self._is_draining = True
        for stream in self.open:
            if not stream.in_step:
                stream.ending = shutting_down()
                stream.task.cancel()
