"""Drafts for one generation with asyncio, over one stream that replaces itself when it breaks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from rest_store.datastore.tree import TokenTree
from rest_store.datastore.validation import IntSequence
from rest_store.drafting.evidence import Evidence, rows_for
from rest_store.errors import (
    RestStoreError,
    ServiceError,
    ServiceInternalError,
    ServiceUnavailableError,
    describe,
)
from rest_store.service.client.cancellation import is_cancelled
from rest_store.service.client.codec import Step
from rest_store.service.client.endpoints import Endpoint
from rest_store.service.client.requests import evidence_limits
from rest_store.service.client.stream_base import StreamBase, longest_of, trees_of
from rest_store.service.client.stream_state import Answer
from rest_store.service.errors import failed_call
from rest_store.v1 import datastore_pb2 as pb


def _retrieve(reading: asyncio.Future[Any]) -> None:
    """Take the error of a read that nobody waits for any more, so that asyncio does not complain of it."""
    if not reading.cancelled():
        reading.exception()


class AsyncStreamCall:
    """One stream to a service.

    Cancelling a read of grpc.aio would cancel the whole call, so a read that is late goes on and is waited for again.
    """

    def __init__(self, call: Any, target: str) -> None:
        self._call = call
        self._target = target
        self._reading: asyncio.Future[Any] | None = None
        self._is_stuck = False

    async def send(self, message: bytes, ends: float) -> None:
        """Send a message; raise ServiceError if the stream has ended, or has not taken it by `ends`."""
        timer = asyncio.get_running_loop().call_later(max(0.0, ends - time.monotonic()), self._give_up)
        try:
            await self._call.write(message)
        except grpc.aio.AioRpcError as error:
            found = failed_call(self._target, error)
            # What grpc.aio calls an internal error here is only that the call has ended; its status is lost then, and
            # a further attempt learns it.
            raise (self._ended() if isinstance(found, ServiceInternalError) else found) from None
        except asyncio.InvalidStateError:
            raise self._ended() from None
        except asyncio.CancelledError:
            if self._is_stuck or not is_cancelled():
                raise self._ended() from None
            raise
        finally:
            timer.cancel()

    def _give_up(self) -> None:
        self._is_stuck = True
        self._call.cancel()

    def _ended(self) -> ServiceUnavailableError:
        found = "not taking messages" if self._is_stuck else "ended by the service"
        return ServiceUnavailableError(describe(self._target, "stream", found, "one that goes on"))

    async def receive(self, ends: float) -> bytes | None:
        """Return the next message, or None at `ends` (`time.monotonic`); raise ServiceError if the stream has ended."""
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._call.read())
            self._reading.add_done_callback(_retrieve)
        done, _ = await asyncio.wait((self._reading,), timeout=max(0.0, ends - time.monotonic()))
        if not done:
            return None
        reading, self._reading = self._reading, None
        try:
            message = reading.result()
        except grpc.aio.AioRpcError as error:
            raise failed_call(self._target, error) from None
        except asyncio.CancelledError:  # the call was cancelled, not this task
            raise self._ended() from None
        if not isinstance(message, bytes):  # grpc.aio.EOF
            raise self._ended()
        return message

    def close(self) -> None:
        """End the stream."""
        self._call.cancel()
        if self._reading is not None:
            self._reading.cancel()


class AsyncDraftStream(StreamBase[AsyncStreamCall, Callable[..., Awaitable[object]]]):
    """`DraftStream` for asyncio. Make one with `AsyncDatastoreClient.stream`; one generation, one stream, one task."""

    async def draft(self, new_tokens: IntSequence) -> TokenTree:
        """Return the draft tree after the tokens so far; of several datastores that of the longest match.

        Args:
            new_tokens: 1-D integers: at first the context, oldest first (its last 64 are read), then what has come
                since the last step; may be empty then.

        Raises:
            QueryError: as `Datastore.draft`.
            ServiceError: no answer; the subclass says why. The tokens are kept: the next step sends them.
        """
        return longest_of(await self._ask(new_tokens, None))

    async def draft_each(self, new_tokens: IntSequence) -> dict[str, TokenTree]:
        """Return the tree of each datastore, by name; otherwise as `draft`."""
        return trees_of(await self._ask(new_tokens, None))

    async def draft_with(self, new_tokens: IntSequence, proposals: TokenTree) -> dict[str, list[TokenTree]]:
        """Return what each datastore drafts after the tokens so far, and after each of `proposals`.

        Args:
            new_tokens: as `draft`.
            proposals: continuations to be continued in their turn.

        Returns:
            By name of datastore: the tree of the context, then for each node of `proposals` the tree of the context
            followed by the path to the node.

        Raises:
            TreeError: `proposals` is no draft tree; `new_tokens` were not taken, as with any QueryError.
            RestStoreError: as `draft`.
        """
        return (await self._ask(new_tokens, proposals)).trees

    async def evidence(
        self,
        new_tokens: IntSequence,
        proposals: TokenTree,
        *,
        max_nodes: int,
        max_suffix: int = 16,
        max_rows: int | None = None,
    ) -> list[Evidence] | None:
        """Return what each datastore knows along the paths that a session's tree may take; see `DatastoreClient`.

        Args:
            new_tokens: as `draft`.
            proposals: the tree that the session's other sources would draft, with scores.
            max_nodes: of the session's tree, 1..1024.
            max_suffix: longest suffix of the text tried, in tokens, 1..64.
            max_rows: most paths, 1..1024; None: 8 more than nodes.

        Returns:
            None if the service knows no evidence; `new_tokens` were taken all the same.

        Raises:
            LimitError: a limit is out of range; `new_tokens` were not taken.
            RestStoreError: as `draft_with`.
        """
        asked = evidence_limits(max_nodes, max_suffix, rows_for(max_nodes) if max_rows is None else max_rows)
        return (await self._ask(new_tokens, proposals, asked)).evidence

    async def _ask(
        self, new_tokens: IntSequence, proposals: TokenTree | None, evidence: pb.EvidenceLimits | None = None
    ) -> Answer:
        ends = time.monotonic() + self._timeout
        if self._needs_description:
            try:
                await self._learn(timeout=self._timeout)
            except ServiceError:
                self._conversation.add(new_tokens)  # for the next step
                raise
        try:
            step, pursuit = self._begin(new_tokens, proposals, evidence, ends)
            while True:
                seconds = pursuit.allowance()
                try:
                    answer = await self._attempt(pursuit.endpoint, step, time.monotonic() + seconds)
                except RestStoreError as error:
                    wait = self._failed(pursuit, error)
                    if wait:
                        await asyncio.sleep(wait)
                else:
                    pursuit.succeeded()
                    return answer
        except RestStoreError as error:
            self._endpoints.tally.failed(error)
            raise

    async def _attempt(self, endpoint: Endpoint[Any], step: Step, ends: float) -> Answer:
        call = self._call_at(endpoint)
        await call.send(self._conversation.request(step), ends)
        self._conversation.sent(step)
        while True:
            answer = self._read(await call.receive(ends), endpoint.target)
            if answer is not None:
                return answer

    def _end(self, call: AsyncStreamCall) -> None:
        call.close()

    async def close(self) -> None:
        """End the stream for good. May be called again."""
        self._closed = True
        self._drop()

    async def __aenter__(self) -> AsyncDraftStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
