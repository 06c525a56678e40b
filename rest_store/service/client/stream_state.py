"""The state of one stream of drafts, without the network: what to send next, and what an answer means."""

from __future__ import annotations

from typing import NamedTuple

from rest_store.datastore.tree import TokenTree
from rest_store.datastore.validation import IntSequence, tail
from rest_store.drafting.evidence import Evidence
from rest_store.errors import EmptyContextError, ProtocolError, describe
from rest_store.service.client.answers import parsed
from rest_store.service.client.codec import Counterpart, Limits, Step, by_name
from rest_store.v1 import datastore_pb2 as pb

KEPT = 64  # tokens that service and client keep of a generation: the longest suffix that can be asked for
_ANY_TOKEN = 1 << 31
_MOST_UNANSWERED = 8


class Answer(NamedTuple):
    """What a step was answered.

    Attributes:
        trees: by name of datastore: the tree of the context, then one for each proposal; not of evidence.
        evidence: of each datastore; None if it was not asked for, or the service knows none.
    """

    trees: dict[str, list[TokenTree]]
    evidence: list[Evidence] | None


class Conversation:
    """What one generation has said to a service. Not thread-safe.

    Args:
        counterpart: the service.
        bounds: limits of every draft.
    """

    def __init__(self, counterpart: Counterpart, bounds: Limits) -> None:
        self._counterpart = counterpart
        self._bounds = bounds
        self._kept: list[int] = []
        self._unsent: list[int] = []
        self._fresh = True
        self._sequence = 0
        self._names: tuple[str, ...] = ()
        self._asked: dict[int, Step] = {}  # unanswered requests

    @property
    def is_known(self) -> bool:
        """Whether the service has been described, so that it can be asked."""
        return self._counterpart.is_known

    @property
    def is_clogged(self) -> bool:
        """Whether so many requests are unanswered that a new stream is better than waiting for them."""
        return len(self._asked) >= _MOST_UNANSWERED

    def add(self, tokens: IntSequence) -> None:
        """Take the tokens that came since the last step.

        Raises:
            QueryError: not 1-D integers of the vocabulary, or there has never been one.
        """
        none = not tokens if isinstance(tokens, list | tuple) else getattr(tokens, "size", 1) == 0
        known = self._counterpart.is_known  # else the service will say what is outside its vocabulary
        new = [] if none else tail(tokens, KEPT, self._counterpart.vocabulary_size if known else _ANY_TOKEN)
        self._kept = (self._kept + new)[-KEPT:]
        self._unsent = (self._unsent + new)[-KEPT:]
        if not self._kept:
            raise EmptyContextError(describe("query", "context", "empty", "at least one token"))

    def restart(self) -> None:
        """Begin anew, on a new stream: the next request carries the kept tokens."""
        self._fresh = True
        self._names = ()
        self._asked.clear()

    def step(self, proposals: TokenTree | None, evidence: pb.EvidenceLimits | None) -> Step:
        """Return what to ask for as the service takes it; raise TreeError or QueryError for proposals that are none."""
        known = self._counterpart
        if evidence is None:
            return Step(known.proposed(proposals))
        if not known.max_evidence_rows:  # one tree, which nobody reads, keeps the service's place in the text
            return Step()
        return Step(known.proposed(proposals, scored=True), known.bounded(evidence))

    def request(self, step: Step) -> bytes:
        """Return the next message; `sent` says that it has left."""
        tokens = self._kept if self._fresh else self._unsent
        bounds = self._bounds if self._fresh else None
        return self._counterpart.stream_request(tokens, bounds, step, self._sequence + 1)

    def sent(self, step: Step) -> None:
        """Take note that the message of `request` has left."""
        self._sequence += 1
        self._fresh = False
        self._unsent = []
        self._asked[self._sequence] = step

    def answer(self, message: bytes, target: str) -> Answer | None:
        """Read a message of the service.

        Returns:
            The answer to the last request; None for a late answer to an earlier one.

        Raises:
            ProtocolError: not an answer to a request of this stream.
        """
        response = parsed(pb.DraftStreamResponse, message, target)
        step = self._asked.pop(response.sequence, None)
        if step is None:
            expected = f"one of {list(self._asked)}"
            raise ProtocolError(describe(target, "sequence of an answer", response.sequence, expected))
        if response.datastores or not self._names:
            self._names = self._counterpart.answering(response.datastores, target)
        if response.sequence != self._sequence:
            return None
        names, known = self._names, self._counterpart
        if step.evidence is not None:
            if response.trees:
                return Answer({}, None)
            return Answer({}, known.evidence(response.evidence, names, step.evidence, target))
        each = 1 + (len(step.proposals.tokens) if step.proposals is not None else 0)
        trees = known.drafts(response.trees, names, self._bounds, target, groups=1, each=each)
        return Answer(by_name(names, trees), None)
