"""From the bytes of a request to the bytes of its response; nothing here knows gRPC."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from rest_store.datastore.kernel import MAX_DEPTH, MAX_LISTED, MAX_SUFFIX
from rest_store.datastore.tree import TokenTree
from rest_store.drafting.evidence import MAX_EVIDENCE_ROWS, Evidence, collect_evidence
from rest_store.errors import LimitError, MessageSizeError, QueryError, describe
from rest_store.service.server.catalog import Catalog
from rest_store.service.server.executor import Executor
from rest_store.service.server.hosted_datastore import HostedDatastore, Reading
from rest_store.service.server.limits import MAX_STREAM_SESSIONS, Limits
from rest_store.service.server.metrics import Metrics
from rest_store.service.server.requests import (
    Proposals,
    Selection,
    TreeLimits,
    evidence_limits,
    parse,
    proposals_of,
    require_few_proposals,
    require_no_proposals,
    require_not_empty,
    require_tokens,
    require_work,
    selection_of,
    sequences_of,
    suffix_limit,
    tails_of,
    tree_limits,
)
from rest_store.service.server.rights import Rights
from rest_store.service.server.sessions import Sessions
from rest_store.v1 import datastore_pb2 as pb

# The most work that runs in the event loop, by kind, and the most of a piece for a worker thread.
_SMALL_NODES, _PIECE_NODES = 512, 8192
_SMALL_COUNTS, _PIECE_COUNTS = 16, 256
_SMALL_ROWS = 160


@dataclass
class StreamState:
    """The rights of a stream, what its messages have selected so far, and the end of its context."""

    rights: Rights
    selection: Selection = field(default_factory=Selection)  # not the message, which holds its request
    limits: TreeLimits | None = None
    context: list[int] = field(default_factory=list)
    names_sent: tuple[str, ...] | None = None  # of the datastores that answered last


class _EvidenceWork(NamedTuple):
    """The work of a request for evidence, without the message that asked for it."""

    tasks: Sequence[Callable[[], list[Evidence]]]  # of each context
    small: bool  # as `Executor.run` takes it


class Handlers:
    """Answers requests from the datastores of `catalog`. For use within one event loop, which owns `metrics`.

    Each method takes the bytes of a request, and the rights of its call or the state of its stream, returns the bytes
    of the response, and raises an error of the table in service/errors.py.
    """

    def __init__(
        self, catalog: Catalog, limits: Limits, metrics: Metrics, executor: Executor, sessions: Sessions | None
    ) -> None:
        self._catalog = catalog
        self._sessions = sessions
        self._limits = limits
        self._metrics = metrics
        self._executor = executor
        self._max_evidence_rows = MAX_EVIDENCE_ROWS if metrics.build["kernel"] == "native" else 0

    async def draft(self, data: bytes, rights: Rights) -> bytes:
        """Answer a DraftRequest."""
        request = parse(pb.DraftRequest, data)
        served = self._catalog.select(selection_of(request.selection, self._limits), rights)
        require_work(len(request.contexts) * len(served), self._limits)  # before anything is made of the contexts
        response = pb.DraftResponse(datastores=[datastore.name for datastore in served])
        if request.HasField("evidence"):
            contexts = [(context.tokens, context.proposals) for context in request.contexts]
            work = self._evidence_work(served, request.evidence, contexts)
            del request, contexts  # here and below: frees the memory of a message while its work waits
            await self._add_evidence(response.evidence, work)
        else:
            limits = tree_limits(request.limits)
            require_work(len(request.contexts) * len(served) * limits.work, self._limits)
            tails = tails_of(request.contexts, limits.max_suffix)
            del request
            await self._add_trees(response.trees, served, limits, tails)
        return response.SerializeToString()

    async def draft_step(self, state: StreamState, data: bytes) -> bytes:
        """Answer the next DraftStreamRequest of a stream."""
        request = parse(pb.DraftStreamRequest, data)
        if request.HasField("selection"):
            state.selection = selection_of(request.selection, self._limits)
        served = self._catalog.select(state.selection, state.rights)
        require_work(len(served), self._limits)
        if state.limits is None or request.HasField("limits"):
            state.limits = tree_limits(request.limits)
        require_work(len(served) * state.limits.work, self._limits)
        state.context = (state.context + request.tokens[-MAX_SUFFIX:])[-MAX_SUFFIX:]
        response = pb.DraftStreamResponse(sequence=request.sequence)
        names = tuple(datastore.name for datastore in served)
        if names != state.names_sent:
            response.datastores.extend(names)
            state.names_sent = names
        if request.HasField("evidence"):
            work = self._evidence_work(served, request.evidence, [(state.context, request.proposals)])
            del request
            await self._add_evidence(response.evidence, work)
        else:
            require_not_empty(state.context, "context 0")
            require_no_proposals(request, 0)
            del request
            await self._add_trees(response.trees, served, state.limits, [state.context[-state.limits.max_suffix :]])
        return response.SerializeToString()

    async def longest_suffix_match(self, data: bytes, rights: Rights) -> bytes:
        """Answer a LongestSuffixMatchRequest."""
        request = parse(pb.LongestSuffixMatchRequest, data)
        served = self._catalog.select(selection_of(request.selection, self._limits), rights)
        require_work(len(served), self._limits)
        max_suffix = suffix_limit(request.max_suffix)
        tail = request.tokens[-max_suffix:]
        del request
        require_not_empty(tail, "context 0")

        def match(datastore: HostedDatastore) -> tuple[int, int]:
            with Reading([datastore]):
                return datastore.store.longest_suffix_match(tail, max_suffix=max_suffix)

        small = len(served) <= _SMALL_COUNTS
        matches = await self._executor.run([partial(match, datastore) for datastore in served], small=small)
        response = pb.LongestSuffixMatchResponse()
        for datastore, (length, count) in zip(served, matches, strict=True):
            response.matches.add(datastore=datastore.name, length=length, count=count)
        return response.SerializeToString()

    async def count(self, data: bytes, rights: Rights) -> bytes:
        """Answer a CountRequest."""
        request = parse(pb.CountRequest, data)
        served = self._catalog.select(selection_of(request.selection, self._limits), rights)
        amount = len(request.sequences) * len(served)
        require_work(amount, self._limits)
        sequences = sequences_of(request.sequences)
        del request
        for datastore in served:
            require_tokens(sequences, datastore.store.vocabulary_size, "sequence")

        def count(piece: Sequence[list[int]]) -> list[int]:
            with Reading(served):
                return [datastore.store.count(tokens) for tokens in piece for datastore in served]

        pieces = [sequences[start : start + _PIECE_COUNTS] for start in range(0, len(sequences), _PIECE_COUNTS)]
        counts = await self._executor.run([partial(count, piece) for piece in pieces], small=amount <= _SMALL_COUNTS)
        return pb.CountResponse(
            counts=[number for piece in counts for number in piece], datastores=[datastore.name for datastore in served]
        ).SerializeToString()

    async def describe(self, data: bytes, rights: Rights) -> bytes:
        """Answer a DescribeRequest."""
        parse(pb.DescribeRequest, data)
        build, limits = self._metrics.build, vars(self._limits)
        if self._sessions is None:
            limits = {**limits, "max_session_tokens": 0}
        return pb.DescribeResponse(
            version=build["version"],
            kernel=build["kernel"],
            datastores=[served.describe(rights) for served in self._catalog.included(rights)],
            limits=pb.ServiceLimits(
                max_nodes=MAX_LISTED,
                max_suffix=MAX_SUFFIX,
                max_depth=MAX_DEPTH,
                max_evidence_rows=self._max_evidence_rows,
                max_request_bytes=self._limits.max_request_bytes,
                max_stream_sessions=MAX_STREAM_SESSIONS if self._sessions is not None else 0,
                **limits,
            ),
            calibration=self._sessions.fingerprint if self._sessions is not None else "",
        ).SerializeToString()

    async def _add_trees(
        self, messages: Any, served: tuple[HostedDatastore, ...], limits: TreeLimits, contexts: Sequence[list[int]]
    ) -> None:
        """Append the tree of each context from each datastore, context by context, to `messages`, and count them."""
        amount, size, most = len(contexts) * len(served), 0, self._limits.max_message_bytes

        def draft(datastore: HostedDatastore, first: int) -> list[TokenTree]:
            nonlocal size
            piece = contexts[first : first + step]
            try:
                with Reading([datastore]):
                    trees = datastore.store.continuations(piece, *limits)
            except QueryError:
                require_tokens(piece, datastore.store.vocabulary_size, "context", first)  # says which
                raise
            size += sum(len(tree.packed) for tree in trees)
            if size > most:  # no more of an answer that will not be sent
                raise MessageSizeError(describe("response", "size", f"more than {size} bytes", f"at most {most}"))
            return trees

        step = max(1, _PIECE_NODES // limits.max_nodes)
        starts = range(0, len(contexts), step)
        tasks = [partial(draft, datastore, start) for start in starts for datastore in served]
        pieces = await self._executor.run(tasks, small=amount * limits.max_nodes <= _SMALL_NODES)
        metrics = self._metrics
        for place in range(0, len(pieces), len(served)):
            for of_context in zip(*pieces[place : place + len(served)], strict=True):
                for tree in of_context:
                    length, count = tree.match
                    messages.add(nodes=_little_endian(tree), match_length=length, match_count=count)
                    metrics.match_lengths[length] += 1
                    metrics.nodes += len(tree)
        metrics.trees += amount

    def _evidence_work(
        self,
        served: tuple[HostedDatastore, ...],
        message: pb.EvidenceLimits,
        contexts: Sequence[tuple[Sequence[int], pb.Proposals]],
    ) -> _EvidenceWork:
        """Return the work of reading the evidence for each context, given its tokens and its proposals."""
        limits = evidence_limits(message)
        amount = len(contexts) * len(served) * limits.max_rows
        require_work(amount, self._limits)
        if not self._max_evidence_rows:
            expected = "only trees: this service has no native kernel to read evidence with"
            raise LimitError(describe("request", "evidence", "asked for", expected))
        require_few_proposals((proposals for _, proposals in contexts), self._limits)
        vocabulary_size = min(datastore.store.vocabulary_size for datastore in served)
        tails = [list(tokens[-limits.max_suffix :]) for tokens, _ in contexts]
        require_tokens(tails, vocabulary_size, "context")
        trees = [proposals_of(proposals, place, vocabulary_size) for place, (_, proposals) in enumerate(contexts)]
        # By place, since a name may be asked for twice.
        stores = {str(place): datastore.store for place, datastore in enumerate(served)}

        def read(tail: list[int], proposals: Proposals) -> list[Evidence]:
            with Reading(served):
                return collect_evidence(stores, np.array(tail, np.int32), *proposals, **limits._asdict())

        tasks = [partial(read, tail, proposals) for tail, proposals in zip(tails, trees, strict=True)]
        return _EvidenceWork(tasks, small=amount <= _SMALL_ROWS)

    async def _add_evidence(self, messages: Any, work: _EvidenceWork) -> None:
        """Append the evidence of each datastore, context by context, to `messages`, and count it."""
        for of_context in await self._executor.run(work.tasks, small=work.small):
            for evidence in of_context:
                messages.add(rows=evidence.rows)
                self._metrics.evidence_rows += evidence.row_count


def _little_endian(tree: TokenTree) -> bytes:
    """Return the nodes as a Tree message has them."""
    if sys.byteorder == "little":
        return tree.packed
    columns = (tree.counts, tree.tokens, tree.parents, tree.depths)
    return b"".join(column.astype(column.dtype.newbyteorder("<")).tobytes() for column in columns)
