"""What `DraftStream` and `AsyncDraftStream` share: the text so far, messages and answers."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np

from rest_store.datastore.tree import TokenTree
from rest_store.datastore.validation import IntSequence
from rest_store.drafting.evidence import Evidence
from rest_store.errors import (
    DeadlineError,
    EmptyContextError,
    ProtocolError,
    RestStoreError,
    ServiceUnavailableError,
    describe,
)
from rest_store.service.client.answers import evidence_bytes, parse, tree_bytes
from rest_store.service.client.codec import TreeLimits, tail_of
from rest_store.service.client.generation_stream import GenerationStream, K, Route
from rest_store.service.client.retry import RetryPolicy
from rest_store.v1 import datastore_pb2 as pb

KEPT_TOKENS = 64  # of a generation, by service and client: the longest suffix that can be asked for
ANY_TOKEN = 1 << 31
_MOST_UNANSWERED = 8


class Step(NamedTuple):
    """What one step asks for: evidence along `proposals`, or trees if there are no limits of evidence."""

    proposals: pb.Proposals | None = None
    evidence: pb.EvidenceLimits | None = None


class Answer(NamedTuple):
    """The answer to one step, from each datastore."""

    trees: list[TokenTree]  # empty if evidence was asked for
    evidence: list[Evidence] | None  # None if it was not asked for, or the service has none


class StreamBase(GenerationStream[K]):
    """A stream of drafts without the calls, which either block or are awaited. See `DraftStream`.

    Args:
        route: to its service.
        limits: of every draft tree.
    """

    def __init__(self, route: Route[K], limits: TreeLimits) -> None:
        super().__init__(route)
        self._limits = limits
        self._context: list[int] = []  # its end
        self._unsent: list[int] = []  # the part of it that has not been sent
        self._is_new = True  # nothing has been sent on that call
        self._names: tuple[str, ...] = ()  # of the datastores that answer it
        self._unanswered: dict[int, Step] = {}  # by sequence number

    def _add(self, tokens: IntSequence, may_be_empty: bool) -> None:
        """Append the tokens since the last step; raise QueryError if they are invalid, or there are still none."""
        # While the vocabulary is unknown, the service says which token is outside.
        vocabulary_size = self._codec.vocabulary_size if self._codec.is_known else ANY_TOKEN
        new = tail_of(tokens, KEPT_TOKENS, vocabulary_size)
        self._context = (self._context + new)[-KEPT_TOKENS:]
        self._unsent = (self._unsent + new)[-KEPT_TOKENS:]
        if not self._context and not may_be_empty:
            raise EmptyContextError(describe("query", "context", "empty", "at least one token"))

    def _new_in(self, context: IntSequence, size: int) -> list[int]:
        """Return the tokens to append so that the text so far ends with the last `size` tokens of `context`.

        A context of fewer tokens is the whole text: if it does not continue the text so far, that is dropped.
        """
        last: list[int] = np.asarray(context)[-size:].tolist()
        known, overlap = self._context, min(len(self._context), len(last))
        while known[len(known) - overlap :] != last[:overlap]:
            overlap -= 1
        if len(last) < size and overlap < len(known):
            self._drop()
            self._context, self._unsent, overlap = [], [], 0
        return last[overlap:]

    def _begin(
        self, new_tokens: IntSequence, proposals: TokenTree | None, evidence: pb.EvidenceLimits | None, ends: float
    ) -> tuple[Step, RetryPolicy[Any]]:
        """Append the tokens of a step; return the step and its retry policy, until `ends` (`time.monotonic`).

        After an error in an argument the tokens are not appended; after any other error they are.
        """
        if self._closed:
            raise ServiceUnavailableError("client: the stream is closed")
        step = Step()
        # A service without evidence is asked for trees, only to send it the tokens: the answer is not used.
        if proposals is not None and evidence is not None and self._codec.max_evidence_rows:
            step = Step(self._codec.proposals(proposals), self._codec.bounded(evidence))
        self._add(new_tokens, may_be_empty=evidence is not None)
        self._endpoints.require_one()
        return step, RetryPolicy(self._endpoints, ends - time.monotonic(), self._endpoint)

    def _message(self, step: Step) -> bytes:
        """Return the next message; call `_sent` once it was sent."""
        tokens = self._context if self._is_new else self._unsent
        request = pb.DraftStreamRequest(
            tokens=tokens, sequence=self._sequence + 1, proposals=step.proposals, evidence=step.evidence
        )
        if self._is_new:
            request.selection.CopyFrom(self._codec.selection)
            request.limits.max_nodes, request.limits.max_suffix, request.limits.max_depth = self._limits
        return request.SerializeToString()

    def _sent(self, step: Step) -> None:
        """Record that the message of `step` was sent."""
        self._sequence += 1
        self._is_new = False
        self._unsent = []
        self._unanswered[self._sequence] = step

    def _read(self, message: bytes | None, target: str) -> Answer | None:
        """Return the answer to the last step, or None for a late one to an earlier step.

        Raises:
            DeadlineError: there is no message: nothing came in time.
            ProtocolError: not an answer to a step of this stream.
        """
        if message is None:
            raise DeadlineError(f"{target}: service did not answer before the deadline")
        response = parse(pb.DraftStreamResponse, message, target, self._codec.largest(self._bytes_of_datastore()))
        step = self._unanswered.pop(response.sequence, None)
        if step is None:
            expected = f"one of {list(self._unanswered)}"
            raise ProtocolError(describe(target, "sequence of an answer", response.sequence, expected))
        if response.datastores or not self._names:
            self._names = self._codec.require_names(response.datastores, target)
        if response.sequence != self._sequence:
            self._endpoints.counters.add("late_answers")
            return None
        if step.evidence is None:
            return Answer(self._codec.trees(response.trees, len(self._names), self._limits, target), None)
        if response.trees:
            return Answer([], None)
        return Answer([], self._codec.evidence(response.evidence, self._names, step.evidence, target))

    def _bytes_of_datastore(self) -> int:
        """Return the size of the largest tree or evidence of a datastore in the answers that are still to come."""
        most = tree_bytes(self._limits[0])
        for step in self._unanswered.values():
            if step.evidence is not None:
                most = max(most, evidence_bytes(step.evidence))
        return most

    def _drop_after(self, error: RestStoreError) -> None:
        """End the call after a failed attempt, unless it was only late and its answer may still come."""
        if not isinstance(error, DeadlineError) or len(self._unanswered) >= _MOST_UNANSWERED:
            self._drop()

    def _drop(self) -> None:
        """End the call; the next attempt opens another and sends the context again."""
        super()._drop()
        self._is_new = True
        self._names = ()
        self._unanswered.clear()
