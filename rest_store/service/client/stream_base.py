"""What both streams of drafts share: the generation so far, the call that is open, and what an answer means."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from rest_store.datastore.tree import TokenTree
from rest_store.datastore.validation import IntSequence
from rest_store.errors import DeadlineError, RestStoreError, ServiceUnavailableError, describe
from rest_store.service.client.codec import Step, longest
from rest_store.service.client.endpoints import Endpoint, Endpoints, Pursuit
from rest_store.service.client.stream_state import Answer, Conversation
from rest_store.v1 import datastore_pb2 as pb

K = TypeVar("K")  # a call
L = TypeVar("L")  # what asks the service what it is


class StreamBase(ABC, Generic[K, L]):
    """A stream of drafts without what waits. See `DraftStream`.

    Args:
        conversation: the generation, as the service is told of it.
        endpoints: where the service is.
        open_call: opens a call at an endpoint.
        learn: asks what the service is, and counts that itself.
        timeout: seconds for each step.
    """

    def __init__(
        self,
        conversation: Conversation,
        endpoints: Endpoints[Any],
        open_call: Callable[[Endpoint[Any]], K],
        learn: L,
        timeout: float,
    ) -> None:
        self._conversation = conversation
        self._endpoints = endpoints
        self._open_call = open_call
        self._learn = learn
        self._timeout = timeout
        self._call: K | None = None
        self._endpoint: Endpoint[Any] | None = None
        self._closed = False

    @property
    def _needs_description(self) -> bool:
        return not self._conversation.is_known and not self._closed

    def _begin(
        self, new_tokens: IntSequence, proposals: TokenTree | None, evidence: pb.EvidenceLimits | None, ends: float
    ) -> tuple[Step, Pursuit[Any]]:
        """Take the tokens of a step; return what it asks for and its pursuit, until `ends` (`time.monotonic`).

        Raises:
            TreeError: `proposals` is no draft tree; then nothing was taken, as for the next.
            QueryError: `new_tokens` or `proposals` cannot be asked.
            ServiceUnavailableError: nothing can be asked any more, or just now; the tokens are kept.
        """
        if self._closed:
            raise ServiceUnavailableError(describe("client", "stream", "closed", "an open one"))
        step = self._conversation.step(proposals, evidence)
        self._conversation.add(new_tokens)
        self._endpoints.require_one()
        return step, Pursuit(self._endpoints, ends - time.monotonic(), self._endpoint)

    def _call_at(self, endpoint: Endpoint[Any]) -> K:
        """Return the call that is open at `endpoint`, or another that is opened there."""
        if self._call is None or self._endpoint is not endpoint:
            self._drop()
            self._call, self._endpoint = self._open_call(endpoint), endpoint
            self._endpoints.tally.add("streams_opened")
        return self._call

    def _read(self, message: bytes | None, target: str) -> Answer | None:
        """Return what a message answers, None for a late answer; raise DeadlineError if there is none in time."""
        if message is None:
            raise DeadlineError(describe(target, "service", "late", "an answer before the deadline"))
        answer = self._conversation.answer(message, target)
        if answer is None:
            self._endpoints.tally.add("late_answers")
        return answer

    def _failed(self, pursuit: Pursuit[Any], error: RestStoreError) -> float:
        """Take note of a failed attempt; return the seconds to wait before the next, or raise `error`."""
        if not isinstance(error, DeadlineError) or self._conversation.is_clogged:
            self._drop()
        return pursuit.failed(error)

    def _drop(self) -> None:
        """End the call; the next attempt opens another."""
        call, self._call, self._endpoint = self._call, None, None
        self._conversation.restart()
        if call is not None:
            self._end(call)

    @abstractmethod
    def _end(self, call: K) -> None:
        """End a call."""


def trees_of(answer: Answer) -> dict[str, TokenTree]:
    """Return the tree of the context for each datastore."""
    return {name: trees[0] for name, trees in answer.trees.items()}


def longest_of(answer: Answer) -> TokenTree:
    """Return the tree of the context whose match is the longest."""
    return longest([trees[0] for trees in answer.trees.values()])
