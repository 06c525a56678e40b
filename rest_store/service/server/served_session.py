"""A draft session that a service runs for a client.

Before anything is built from a message, the session reserves the memory that its text can take. It
reserves more as the text grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from rest_store.datastore.kernel import MAX_NODES, native_kernel
from rest_store.datastore.validation import check_int
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.draft_options import Accepted, DraftOptions
from rest_store.drafting.kernel_session import OpenStore, append_all, follow_changes, kernel_session
from rest_store.drafting.sources import PromptLookup, RecycledLogits
from rest_store.errors import ArgumentError, describe
from rest_store.service.server.catalog import HostedDatastore, reading, require_readable
from rest_store.service.server.request_checks import (
    parse_accepted,
    parse_text,
    step_costs,
)
from rest_store.service.server.service_limits import Budget, ServiceLimits
from rest_store.v1 import datastore_pb2 as pb

# Bytes of a session without its text and trees. Most of them are those of its calibration.
_FIXED_MEMORY = 256 << 10
_NODES = 16  # of a tree, unless the client names another number
# Nodes that are drafted, and tokens that are appended, within about a millisecond.
_SMALL_NODES = 64
_SMALL_TOKENS = 4096
_TOKENS_AHEAD = 1024  # further tokens for which memory is reserved at once


class SessionStep(NamedTuple):
    """The work that a message asks for.

    Attributes:
        accepted: tokens to append.
        options: of the draft tree; None: no tree is asked for.
        is_small: whether the work takes less than about a millisecond.
    """

    accepted: Sequence[Accepted]
    options: DraftOptions | None
    is_small: bool


class ServedSession:
    """A session. Call `open` first, then take one step at a time.

    Args:
        opening: the first part of its first message.
        served: its datastores.
        recycled: recycled logits, which other sessions may share; None: they are no source.
        limits: of the service.
        budget: of the memory of all sessions.

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
        self._recycled = recycled
        self.memory = 0
        self._served = served
        self._max_tokens = limits.max_session_tokens
        self._budget = budget
        self._vocabulary_size = served[0].store.vocabulary_size
        kernel = native_kernel()
        self._token_memory = int(kernel.TOKEN_MEMORY)
        self._node_memory = int(kernel.NODE_MEMORY) + len(served) * int(kernel.EVIDENCE_MEMORY)
        self._tokens_reserved = 0
        self._nodes_reserved = 0
        self._length = 0
        self._native: Any = None  # the session of the kernel, once this one is open
        self._datastores: list[OpenStore] = []  # that the session of the kernel reads
        self._opening = opening
        references = sum(1 + len(reference) // 4 for reference in opening.references)
        self._grow(references + len(opening.tokens) // 4, 0)
        self.opens_at_once = self._length <= _SMALL_TOKENS

    def _grow(self, tokens: int, nodes: int) -> None:
        """Reserve memory for further tokens and for a tree; raises as the constructor."""
        length = self._length + tokens
        if length > self._max_tokens:
            raise ArgumentError(
                describe("session", "number of tokens", length, f"at most {self._max_tokens}")
            )
        if length > self._tokens_reserved or nodes > self._nodes_reserved:
            max_tokens = self._tokens_reserved
            if length > max_tokens:
                max_tokens = length + _TOKENS_AHEAD
            max_nodes = max(self._nodes_reserved, nodes)
            memory = _FIXED_MEMORY + max_tokens * self._token_memory + max_nodes * self._node_memory
            self._budget.take(memory - self.memory)
            self.memory = memory
            self._tokens_reserved = max_tokens
            self._nodes_reserved = max_nodes
        self._length = length

    def step(self, request: pb.DraftSessionRequest) -> SessionStep:
        """Return the work that a message asks for.

        Raises:
            RestStoreError: of the table in service/statuses.py; the message is malformed.
        """
        options = None
        if request.HasField("draft"):
            draft = request.draft
            max_nodes = check_int("max_nodes", draft.max_nodes or _NODES, MAX_NODES)
            options = DraftOptions(max_nodes, step_costs(draft.costs), draft.chain)
        accepted = parse_accepted(request.accepted, self._vocabulary_size)
        tokens = sum(len(each.tokens) for each in accepted)
        nodes = 0 if options is None else options.max_nodes
        self._grow(tokens, nodes)
        is_small = nodes <= _SMALL_NODES and tokens <= _SMALL_TOKENS
        return SessionStep(accepted, options, is_small)

    def run(self, step: SessionStep) -> pb.Tree | None:
        """Append the accepted tokens, and return the draft tree if one is asked for.

        May run in any thread.

        Raises:
            RestStoreError: as `step`.
            DatastoreUnavailableError: a datastore cannot be read.
        """
        for accepted in step.accepted:
            append_all("request", [self._native], [accepted])
        if step.options is None:
            return None
        follow_changes(self._native, self._datastores)
        nodes, scores, origins = self._native.draft(*step.options)
        require_readable(self._served)
        return pb.Tree(nodes=nodes, scores=scores, origins=origins)

    def follow_changes(self) -> None:
        """Release replaced shards of live datastores, with their files and memory.

        Not to be called during a step.
        """
        if self._native is not None:
            follow_changes(self._native, self._datastores)

    def open(self) -> None:
        """Take in the text of the opening, before the first step; raises as `run`.

        May run in any thread.
        """
        opening = self._opening
        references = [
            parse_text(reference, self._vocabulary_size) for reference in opening.references
        ]
        text = parse_text(opening.tokens, self._vocabulary_size)
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
        self._native = native
        self._datastores = list(datastores.values())
        del self._opening
