"""One draft session that a service runs for a client.

It reserves the most memory that its text can take before anything is made of a message, and more as
it grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from rest_store.datastore.kernel import MAX_NODES, native_kernel
from rest_store.datastore.validation import check_int
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.draft_options import DraftOptions
from rest_store.drafting.kernel_session import OpenStore, append, follow_changes, kernel_session
from rest_store.drafting.sources import PromptLookup, RecycledLogits
from rest_store.errors import ArgumentError, describe
from rest_store.service.server.catalog import HostedDatastore, reading, require_readable
from rest_store.service.server.request_checks import Accepted, parse_accepted, step_costs, text_of
from rest_store.service.server.service_limits import Budget, ServiceLimits
from rest_store.v1 import datastore_pb2 as pb

_FIXED_MEMORY = 256 << 10  # bytes of a session beside its text and trees, above all its calibration
_NODES = 16  # of a tree, unless the client says
_SMALL_NODES, _SMALL_TOKENS = 64, 4096  # drafted, and appended, within about a millisecond
_TOKENS_AHEAD = 1024  # for which memory is reserved at once


class SessionStep(NamedTuple):
    """The work of one message, without the message.

    Attributes:
        accepted: accepted tokens to append.
        limits: of the draft; None: no draft is asked for.
        is_small: whether it takes less than about a millisecond.
    """

    accepted: Sequence[Accepted]
    limits: DraftOptions | None
    is_small: bool


class ServedSession:
    """One session. `open` comes first, then one step at a time.

    Attributes:
        memory: bytes reserved.
        opens_at_once: whether `open` takes less than about a millisecond.

    Raises:
        ArgumentError: the text is too long.
        OverloadedError: there is no memory for it.
    """

    def __init__(
        self,
        opening: pb.SessionOpening,
        served: Sequence[HostedDatastore],
        recycled: RecycledLogits | None,
        limits: ServiceLimits,
        budget: Budget,
    ) -> None:
        self._recycled = recycled  # which it may share; None where they are no source
        self.memory = 0
        self._served = served
        self._max_tokens = limits.max_session_tokens
        self._budget = budget
        self._vocabulary_size = served[0].store.vocabulary_size
        kernel = native_kernel()
        self._token_memory = int(kernel.TOKEN_MEMORY)
        self._node_memory = int(kernel.NODE_MEMORY) + len(served) * int(kernel.EVIDENCE_MEMORY)
        self._tokens_reserved = self._nodes_reserved = self._length = 0
        self._native: Any = None  # the kernel session, once it is open
        self._datastores: list[OpenStore] = []  # that the kernel session reads
        self._opening = opening
        references = sum(1 + len(reference) // 4 for reference in opening.references)
        self._grow(references + len(opening.tokens) // 4, 0)
        self.opens_at_once = self._length <= _SMALL_TOKENS

    def _grow(self, tokens: int, nodes: int) -> None:
        """Reserve memory for so many more tokens of text, and for trees of so many nodes.

        Raise as the constructor.
        """
        length = self._length + tokens
        if length > self._max_tokens:
            raise ArgumentError(
                describe("session", "number of tokens", length, f"at most {self._max_tokens}")
            )
        if length > self._tokens_reserved or nodes > self._nodes_reserved:
            reserved = (
                self._tokens_reserved if length <= self._tokens_reserved else length + _TOKENS_AHEAD
            )
            max_nodes = max(self._nodes_reserved, nodes)
            memory = _FIXED_MEMORY + reserved * self._token_memory + max_nodes * self._node_memory
            self._budget.take(memory - self.memory)
            self.memory, self._tokens_reserved, self._nodes_reserved = memory, reserved, max_nodes
        self._length = length

    def step(self, request: pb.DraftSessionRequest) -> SessionStep:
        """Return the work of a message.

        Raise an error of the table in service/statuses.py for one that is malformed.
        """
        limits, draft = None, request.draft
        if request.HasField("draft"):
            max_nodes = check_int("max_nodes", draft.max_nodes or _NODES, MAX_NODES)
            limits = DraftOptions(max_nodes, step_costs(draft.costs), draft.chain)
        accepted = (
            parse_accepted(request.accepted, self._vocabulary_size) if request.accepted else ()
        )
        tokens = sum(len(one.tokens) for one in accepted)
        nodes = 0 if limits is None else limits.max_nodes
        self._grow(tokens, nodes)
        return SessionStep(accepted, limits, nodes <= _SMALL_NODES and tokens <= _SMALL_TOKENS)

    def run(self, step: SessionStep) -> pb.Tree | None:
        """Append the accepted tokens, and return the draft tree if one is asked for.

        May run in any thread.

        Raises:
            RestStoreError: as `step`.
            DatastoreUnavailableError: a datastore cannot be read.
        """
        for accepted in step.accepted:
            append(self._native, *accepted)
        if step.limits is None:
            return None
        follow_changes(self._native, self._datastores)
        nodes, scores, origins = self._native.draft(*step.limits)
        require_readable(self._served)
        return pb.Tree(nodes=nodes, scores=scores, origins=origins)

    def follow_changes(self) -> None:
        """Release shards that live datastores have replaced, with their files and memory.

        Not during a step.
        """
        if self._native is not None:
            follow_changes(self._native, self._datastores)

    def open(self) -> None:
        """Take in the text of the opening, before the first step; in any thread.

        Raises as `run`.
        """
        opening = self._opening
        references = [text_of(reference, self._vocabulary_size) for reference in opening.references]
        text = text_of(opening.tokens, self._vocabulary_size)
        sources: list[object] = [datastore.store for datastore in self._served]
        if opening.prompt_lookup:
            sources.append(PromptLookup())
        if self._recycled is not None:
            sources.append(self._recycled)
        with reading(self._served):
            native, datastores = kernel_session(
                Calibration.default(), sources, learn=not opening.fixed_calibration
            )
            native.limit_tokens(self._vocabulary_size)
            for reference in references:
                native.add_reference(reference)
            native.prompt(text)
        self._native, self._datastores = native, list(datastores.values())
        del self._opening
