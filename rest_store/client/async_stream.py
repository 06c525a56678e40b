"""Drafts for one generation with asyncio, over one stream that replaces itself when it breaks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from rest_store.client.conversation import Conversation
from rest_store.client.counterpart import longest
from rest_store.client.endpoints import Endpoint, Endpoints, Pursuit
from rest_store.client.failures import failed_call
from rest_store.errors import (
    DeadlineError,
    RestStoreError,
    ServiceError,
    ServiceInternalError,
    ServiceUnavailableError,
    describe,
)
from rest_store.queries import IntSequence
from rest_store.tree import TokenTree


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
            if self._is_stuck:
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


class AsyncDraftStream:
    """`DraftStream` for asyncio. Make one with `AsyncDatastoreClient.stream`; one generation, one stream, one task."""

    def __init__(
        self,
        conversation: Conversation,
        endpoints: Endpoints[Any],
        open_call: Callable[[Endpoint[Any]], AsyncStreamCall],
        know: Callable[[float], Awaitable[object]],
        timeout: float,
    ) -> None:
        self._conversation = conversation
        self._endpoints = endpoints
        self._open_call = open_call
        self._know = know
        self._timeout = timeout
        self._call: AsyncStreamCall | None = None
        self._endpoint: Endpoint[Any] | None = None
        self._closed = False

    async def draft(self, new_tokens: IntSequence) -> TokenTree:
        """Return the draft tree after the tokens so far; of several datastores that of the longest match.

        Args:
            new_tokens: 1-D integers: at first the context, oldest first (its last 64 are read), then what has come
                since the last step; may be empty then.

        Raises:
            QueryError: as `Datastore.draft`.
            ServiceError: no answer; the subclass says why. The tokens are kept: the next step sends them.
        """
        return longest([trees[0] for trees in (await self._ask(new_tokens, None)).values()])

    async def draft_each(self, new_tokens: IntSequence) -> dict[str, TokenTree]:
        """Return the tree of each datastore, by name; otherwise as `draft`."""
        return {name: trees[0] for name, trees in (await self._ask(new_tokens, None)).items()}

    async def draft_with(self, new_tokens: IntSequence, proposals: TokenTree) -> dict[str, list[TokenTree]]:
        """Return what each datastore drafts after the tokens so far, and after each of `proposals`.

        Args:
            new_tokens: as `draft`.
            proposals: continuations to be continued in their turn.

        Returns:
            By name of datastore: the tree of the context, then for each node of `proposals` the tree of the context
            followed by the path to the node.

        Raises:
            TreeError: `proposals` is no draft tree.
            RestStoreError: as `draft`.
        """
        return await self._ask(new_tokens, proposals)

    async def _ask(self, new_tokens: IntSequence, proposals: TokenTree | None) -> dict[str, list[TokenTree]]:
        tally = self._endpoints.tally
        try:
            if self._closed:
                raise ServiceUnavailableError(describe("client", "stream", "closed", "an open one"))
            ends = time.monotonic() + self._timeout
            try:
                await self._know(self._timeout)
            except ServiceError:
                self._conversation.add(new_tokens)  # for the next step
                raise
            self._conversation.add(new_tokens)
            self._endpoints.require_one()
            pursuit = Pursuit(self._endpoints, ends - time.monotonic(), self._endpoint)
            while True:
                try:
                    answer = await self._attempt(pursuit, proposals)
                except RestStoreError as error:
                    if not isinstance(error, DeadlineError) or self._conversation.is_clogged:
                        self._drop()
                    wait = pursuit.failed(error)
                    if wait:
                        await asyncio.sleep(wait)
                else:
                    pursuit.succeeded()
                    return answer
        except RestStoreError as error:
            tally.failed(error)
            raise

    async def _attempt(self, pursuit: Pursuit[Any], proposals: TokenTree | None) -> dict[str, list[TokenTree]]:
        ends = time.monotonic() + pursuit.allowance()
        conversation, call = self._conversation, self._call
        if call is None or self._endpoint is not pursuit.endpoint:
            self._drop()
            call = self._call = self._open_call(pursuit.endpoint)
            self._endpoint = pursuit.endpoint
            self._endpoints.tally.add("streams_opened")
        target = pursuit.endpoint.target
        await call.send(conversation.request(proposals), ends)
        conversation.sent(proposals)
        while True:
            message = await call.receive(ends)
            if message is None:
                raise DeadlineError(describe(target, "service", "late", "an answer before the deadline"))
            answer = conversation.answer(message, target)
            if answer is not None:
                return answer
            self._endpoints.tally.add("late_answers")

    def _drop(self) -> None:
        """End the stream; the next attempt opens another."""
        call, self._call, self._endpoint = self._call, None, None
        self._conversation.restart()
        if call is not None:
            call.close()

    async def close(self) -> None:
        """End the stream for good. May be called again."""
        self._closed = True
        self._drop()

    async def __aenter__(self) -> AsyncDraftStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
