"""Drafts for one generation, over one stream that replaces itself when it breaks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rest_store.client.conversation import Conversation
from rest_store.client.counterpart import longest
from rest_store.client.endpoints import Endpoint, Endpoints, Pursuit
from rest_store.client.exchange import StreamCall
from rest_store.errors import DeadlineError, RestStoreError, ServiceError, ServiceUnavailableError, describe
from rest_store.queries import IntSequence
from rest_store.tree import TokenTree


class DraftStream:
    """Drafts for one generation: after the first step only new tokens travel. Make one with `DatastoreClient.stream`.

    Opened by the first step. When the service goes away, the next attempt opens another stream, there or at another
    endpoint, with the last 64 tokens. An answer that comes after its deadline is skipped when it comes.

    Not thread-safe: one generation, one stream, one thread at a time.
    """

    def __init__(
        self,
        conversation: Conversation,
        endpoints: Endpoints[Any],
        open_call: Callable[[Endpoint[Any]], StreamCall],
        know: Callable[[float], object],
        timeout: float,
    ) -> None:
        self._conversation = conversation
        self._endpoints = endpoints
        self._open_call = open_call
        self._know = know
        self._timeout = timeout
        self._call: StreamCall | None = None
        self._endpoint: Endpoint[Any] | None = None
        self._closed = False

    def draft(self, new_tokens: IntSequence) -> TokenTree:
        """Return the draft tree after the tokens so far; of several datastores that of the longest match.

        Args:
            new_tokens: 1-D integers: at first the context, oldest first (its last 64 are read), then what has come
                since the last step; may be empty then.

        Raises:
            QueryError: as `Datastore.draft`.
            ServiceError: no answer; the subclass says why. The tokens are kept: the next step sends them.
        """
        return longest([trees[0] for trees in self._ask(new_tokens, None).values()])

    def draft_each(self, new_tokens: IntSequence) -> dict[str, TokenTree]:
        """Return the tree of each datastore, by name; otherwise as `draft`."""
        return {name: trees[0] for name, trees in self._ask(new_tokens, None).items()}

    def draft_with(self, new_tokens: IntSequence, proposals: TokenTree) -> dict[str, list[TokenTree]]:
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
        return self._ask(new_tokens, proposals)

    def _ask(self, new_tokens: IntSequence, proposals: TokenTree | None) -> dict[str, list[TokenTree]]:
        tally = self._endpoints.tally
        try:
            if self._closed:
                raise ServiceUnavailableError(describe("client", "stream", "closed", "an open one"))
            ends = time.monotonic() + self._timeout
            try:
                self._know(self._timeout)
            except ServiceError:
                self._conversation.add(new_tokens)  # for the next step
                raise
            self._conversation.add(new_tokens)
            self._endpoints.require_one()
            pursuit = Pursuit(self._endpoints, ends - time.monotonic(), self._endpoint)
            while True:
                try:
                    answer = self._attempt(pursuit, proposals)
                except RestStoreError as error:
                    if not isinstance(error, DeadlineError) or self._conversation.is_clogged:
                        self._drop()
                    wait = pursuit.failed(error)
                    if wait:
                        time.sleep(wait)
                else:
                    pursuit.succeeded()
                    return answer
        except RestStoreError as error:
            tally.failed(error)
            raise

    def _attempt(self, pursuit: Pursuit[Any], proposals: TokenTree | None) -> dict[str, list[TokenTree]]:
        ends = time.monotonic() + pursuit.allowance()
        conversation, call = self._conversation, self._call
        if call is None or self._endpoint is not pursuit.endpoint:
            self._drop()
            call = self._call = self._open_call(pursuit.endpoint)
            self._endpoint = pursuit.endpoint
            self._endpoints.tally.add("streams_opened")
        target = pursuit.endpoint.target
        call.send(conversation.request(proposals), ends)
        conversation.sent(proposals)
        while True:
            message = call.receive(ends)
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

    def close(self) -> None:
        """End the stream for good. May be called again."""
        self._closed = True
        self._drop()

    def __enter__(self) -> DraftStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
