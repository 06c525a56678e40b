"""One draft session that a service runs for a client.

It reserves the most memory that its text can take before anything is made of a message, and more as it grows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from rest_store.datastore.kernel import native_kernel
from rest_store.drafting.arguments import lowest_score
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.kernel_session import (
    NO_COSTS,
    DraftLimits,
    OpenStore,
    append,
    follow_changes,
    kernel_session,
    take_prompt,
)
from rest_store.drafting.output_document import PROMPT_TOKENS
from rest_store.drafting.sources import PromptLookup, RecycledLogits
from rest_store.errors import ContextTypeError, LimitError, describe
from rest_store.service.server.hosted_datastore import HostedDatastore, Reading
from rest_store.service.server.limits import Limits
from rest_store.service.server.requests import (
    Accepted,
    Tokens,
    accepted_of,
    node_limit,
    step_costs,
    suffix_limit,
    text_of,
    top_k_of,
)
from rest_store.v1 import datastore_pb2 as pb

FIXED_MEMORY = 256 << 10  # bytes of a session beside its text and trees, above all its calibration
_NODES = 16  # of a tree, unless the client says
_SMALL_NODES, _SMALL_TOKENS = 64, 4096  # drafted, and appended, within about a millisecond
_TOKENS_AHEAD = 1024  # for which memory is reserved at once
_REMEMBERED_MEMORY = 8  # bytes of a token that is to be remembered


class Step(NamedTuple):
    """The work of one message, without the message.

    Attributes:
        session: the session of the message.
        accepted: accepted tokens to append.
        limits: of the draft; None: no draft is asked for.
        sequence: of the response.
        tokens: number of tokens to append, those of the opening included.
    """

    session: ServedSession
    accepted: Sequence[Accepted]
    limits: DraftLimits | None
    sequence: int
    tokens: int

    @property
    def is_long(self) -> bool:
        """Whether appending the tokens may take longer than about a millisecond."""
        return self.tokens > _SMALL_TOKENS


class ServedSession:
    """One session, from its opening on. One step at a time.

    Args:
        opening: its text is read with the first step.
        served: the datastores.
        limits: of the service.
        require_memory: called with the number of further bytes to reserve; raises OverloadedError if there is no room.

    Attributes:
        calibration: of the session; to be set before the first step.
        recycled: the recycled logits; None: they are no source.
        in_step: whether a step runs, perhaps in another thread; set by the caller of the step.
        memory: bytes reserved.

    Raises:
        LimitError: the text is too long.
        OverloadedError: as `require_memory`.
    """

    calibration: Calibration
    recycled: RecycledLogits | None = None
    in_step = False

    def __init__(
        self,
        opening: pb.SessionOpening,
        served: Sequence[HostedDatastore],
        limits: Limits,
        require_memory: Callable[[int], None],
    ) -> None:
        self._served = served
        self._limits = limits
        self._require_memory = require_memory
        self._vocabulary_size = min(datastore.store.vocabulary_size for datastore in served)
        kernel = native_kernel()
        self._token_memory = int(kernel.TOKEN_MEMORY)
        self._node_memory = int(kernel.NODE_MEMORY) + len(served) * int(kernel.EVIDENCE_MEMORY)
        self._tokens_reserved = self._nodes_reserved = self._recycled_memory = 0
        self._costs = NO_COSTS  # of trees
        self._names_sent = False
        self._native: Any = None  # the kernel session, from the first step on
        self._datastores: list[OpenStore] = []  # that the kernel session reads
        self.memory = 0
        self._length = 0
        self._opening = opening
        self._output: bytearray | None = None
        if opening.remember:
            self._output = bytearray()
            self._token_memory += _REMEMBERED_MEMORY
        self._grow(len(opening.tokens))

    def _grow(self, tokens: int, nodes: int = 0) -> None:
        """Reserve memory for so many more tokens of text, and for trees of so many nodes.

        Raises:
            LimitError: the text would be too long.
            OverloadedError: there is no memory left for it.
        """
        length, most = self._length + tokens, self._limits.max_session_tokens
        if length > most:
            raise LimitError(describe("session", "number of tokens", length, f"at most {most}"))
        if length <= self._tokens_reserved and nodes <= self._nodes_reserved:
            self._length = length
            return
        reserved = self._tokens_reserved if length <= self._tokens_reserved else length + _TOKENS_AHEAD
        most_nodes = max(self._nodes_reserved, nodes)
        memory = FIXED_MEMORY + reserved * self._token_memory + most_nodes * self._node_memory
        self._require_memory(memory - self.memory)
        self.memory, self._length = memory, length
        self._tokens_reserved, self._nodes_reserved = reserved, most_nodes

    def step(self, request: pb.DraftSessionRequest) -> Step:
        """Return the work of a message; the next one follows when it is done.

        Raises:
            LimitError, TokenRangeError, ContextTypeError, EmptyContextError: the message is malformed.
            OverloadedError: there is no memory for the text.
        """
        first = self._native is None
        limits = self._limits_of(request.draft) if request.HasField("draft") else None
        accepted = accepted_of(request.accepted, self._vocabulary_size)
        new = sum(len(tokens) for tokens, _, _ in accepted)
        self._grow(new, 0 if limits is None else limits.max_nodes)
        if self._output is not None:
            for tokens, _, _ in accepted:
                self._output += tokens.tobytes()
        return Step(self, accepted, limits, request.draft.sequence, new + (self._length if first else 0))

    def _limits_of(self, draft: pb.TreeRequest) -> DraftLimits:
        """Return what a message asks for, and keep the costs of trees; raise LimitError if it is out of range."""
        max_nodes = node_limit(draft.max_nodes, _NODES)
        if draft.HasField("costs"):
            self._costs = step_costs(draft.costs)
        min_score = lowest_score(draft.min_score)
        if draft.HasField("chain"):
            most, costs = node_limit(draft.chain.max_nodes, max_nodes), step_costs(draft.chain.costs)
            return DraftLimits(most, costs, is_chain=True, min_score=min_score)
        return DraftLimits(max_nodes, self._costs, min_score=min_score)

    def follow_changes(self) -> None:
        """Release shards that live datastores have replaced, with their files and memory, unless a step reads them."""
        if not self.in_step:
            follow_changes(self._native, self._datastores)

    def output(self) -> tuple[Sequence[int], Tokens]:
        """Return what to remember: the end of the prompt, and all that the model has written since."""
        if self._output is None or self._native is None:  # or its opening was refused
            return (), np.zeros(0, np.int32)
        return self._prompt_end, np.frombuffer(self._output, np.int32)

    def require_learnt(self) -> None:
        """Require memory for what the recycled logits have learnt with the last step.

        Raises:
            OverloadedError: there is no memory left for it.
        """
        if self.recycled is not None and (memory := self.recycled.memory) > self._recycled_memory:
            self._recycled_memory = memory
            self._require_memory(0)

    def take(self, accepted: Sequence[Accepted]) -> None:
        """Append what the model produced; with the first step, take in the opening.

        Raises:
            LimitError, TokenRangeError, ContextTypeError: the opening or a top-k is malformed.
            DatastoreUnavailableError: a datastore cannot be read.
        """
        if self._native is None:
            with Reading(self._served):
                self._native = self._opened()
        for one in accepted:
            append(self._native, *one)

    def draft(self, limits: DraftLimits) -> bytes:
        """Return a draft as packed nodes, as in the response."""
        follow_changes(self._native, self._datastores)
        drafted: bytes = self._native.draft_nodes(*limits)
        return drafted

    def answer(self, tree: bytes, sequence: int) -> pb.DraftSessionResponse:
        """Return the response with a tree; raise DatastoreUnavailableError if a datastore could not be read for it."""
        with Reading(self._served):
            response = pb.DraftSessionResponse(
                sequence=sequence,
                nodes=tree,
                calibration_weights=self.calibration.native.weights,
                recent=self._native.recent,
            )
        if not self._names_sent:
            self._names_sent = True
            response.datastores.extend(datastore.name for datastore in self._served)
        return response

    def _opened(self) -> Any:
        """Return the kernel session, with the text of the opening.

        Raises:
            LimitError, TokenRangeError, ContextTypeError: the opening is malformed.
        """
        opening = self._opening
        text = text_of(opening.tokens, self._vocabulary_size, "text")
        prompt_length = len(text) - opening.written
        if prompt_length < 0:
            found = f"{opening.written} of {len(text)} tokens"
            raise ContextTypeError(describe("session", "what the model has written", found, "no more than the text"))
        top_k = top_k_of(opening.top_k, "top_k") if opening.HasField("top_k") else None
        sources: list[object] = [datastore.store for datastore in self._served]
        if opening.prompt_lookup:
            sources.append(PromptLookup())
        if self.recycled is not None:
            sources.append(self.recycled)
        max_suffix, learn = suffix_limit(opening.max_suffix), not opening.fixed_calibration
        native, datastores, _ = kernel_session(self.calibration, sources, learn=learn, max_suffix=max_suffix)
        first = self._served[0]
        native.limit_tokens(first.store.vocabulary_size)
        for place, datastore in enumerate(self._served):
            if datastore.fingerprint == first.fingerprint:
                self._datastores.append(datastores[place])
            else:  # its tokens mean something else
                native.set_trees(datastores[place].index, None)
        take_prompt(native, text[:prompt_length], top_k)
        if opening.written:
            append(native, text[prompt_length:], None, None)
        native.recent = list(opening.recent)
        if self._output is not None:
            self._prompt_end = text[:prompt_length][-PROMPT_TOKENS:].tolist()
            self._output[:0] = text[prompt_length:].tobytes()
        del self._opening
        return native


def are_small(steps: Sequence[Step]) -> bool:
    """Return whether steps together take less than about a millisecond."""
    nodes = sum(step.limits.max_nodes for step in steps if step.limits is not None)
    return nodes <= _SMALL_NODES and sum(step.tokens for step in steps) <= _SMALL_TOKENS


def run_steps(steps: Sequence[Step]) -> list[pb.DraftSessionResponse | Exception | None]:
    """Do the work of steps of different sessions, in any thread; all trees are drafted together.

    Returns:
        For each step the response, or None if no tree was asked for, or what was raised.
    """
    results: list[pb.DraftSessionResponse | Exception | None] = [None] * len(steps)
    drafting: dict[int, tuple[ServedSession, DraftLimits]] = {}
    for place, step in enumerate(steps):
        try:
            step.session.take(step.accepted)
            if step.limits is not None:
                drafting[place] = step.session, step.limits
        except Exception as error:
            results[place] = error
    for place, tree in zip(drafting, _drafted(list(drafting.values())), strict=True):
        try:
            results[place] = steps[place].session.answer(tree, steps[place].sequence)
        except Exception as error:
            results[place] = error
    return results


def _drafted(asked: Sequence[tuple[ServedSession, DraftLimits]]) -> list[bytes]:
    """Return the drafts of different sessions as packed nodes."""
    if len(asked) <= 1:
        return [session.draft(limits) for session, limits in asked]
    for session, _ in asked:
        follow_changes(session._native, session._datastores)
    natives, limits = [session._native for session, _ in asked], [limits for _, limits in asked]
    drafted: list[bytes] = native_kernel().draft_nodes_all(natives, limits)
    return drafted
