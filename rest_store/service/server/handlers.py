"""From the bytes of a request to the bytes of its answer; nothing here knows of gRPC.

The requests that come most, one context for one datastore, take a short way without protobuf; whatever is unusual
about one of them sends it the long way.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from rest_store.datastore.kernel import MAX_SUFFIX, native_messages
from rest_store.datastore.tree import TokenTree
from rest_store.drafting.evidence import Evidence, collect_evidence
from rest_store.errors import EmptyContextError, LimitError, QueryError, describe
from rest_store.service.server.catalog import Catalog, Served
from rest_store.service.server.executor import Reply, Work
from rest_store.service.server.limits import Limits
from rest_store.service.server.metrics import Metrics
from rest_store.service.server.requests import (
    Proposed,
    Size,
    Survey,
    empty_context,
    parsed,
    proposed,
    proposed_tree,
    require_tokens,
    require_work,
    size_of,
    suffix_of,
    survey_of,
)
from rest_store.service.server.stream_state import Generation, Short
from rest_store.v1 import datastore_pb2 as pb

_AT_ONCE = 512  # nodes at most that are drafted in the event loop
_PIECE = 8192  # nodes at most that a worker thread drafts in one go
_COUNTS_AT_ONCE = 16
_ROWS_AT_ONCE = 64  # of evidence
_COUNTS_PIECE = 256
_LONGEST_HEAD = 512  # bytes of a request's selection and limits that are remembered
_MOST_HEADS = 256
_NODE_SIZE = 20  # bytes of a node in an answer
_messages: Any = native_messages()


class Replies:
    """Answers requests from the datastores of `catalog`. For use within one event loop, which owns `metrics`."""

    def __init__(self, catalog: Catalog, limits: Limits, metrics: Metrics, work: Work) -> None:
        self._catalog = catalog
        self._limits = limits
        self._metrics = metrics
        native = metrics.build["kernel"] == "native"
        self._most_evidence_rows = limits.max_evidence_rows if native else 0
        self._work = work
        self._heads: dict[bytes, Short] = {}

    # Each returns the bytes of the response, now or later, and raises an error of the table in statuses.py.

    def draft(self, data: bytes) -> Reply:
        """Answer a DraftRequest."""
        head = None
        if _messages is not None and (plain := _messages.read_draft(data)) is not None:
            head, tokens = plain
            short, start = self._heads.get(head), perf_counter()
            if short is not None and short.version == self._catalog.version and start >= self._work.patient_until:
                if not tokens:
                    raise empty_context("context 0")
                return self._shortly(short, tokens, short.names, 0, start)
        request = parsed(pb.DraftRequest, data)
        selection = request.selection
        served = self._catalog.select(tuple(selection.datastores), selection.tokenizer_fingerprint)
        if request.HasField("evidence"):
            return self._evident(served, request)
        size = size_of(request.limits, self._limits)
        sequences: list[list[int]] = []
        ends: list[int] = []
        contexts = request.contexts
        require_work(len(contexts) * len(served), self._limits)
        for place, context in enumerate(contexts):
            tail = context.tokens[-size.max_suffix :]
            if not tail:
                raise empty_context(f"context {place}")
            sequences.append(tail)
            if context.HasField("proposals"):
                sequences += self._proposed(tail, context.proposals, place, len(served))
            ends.append(len(sequences))
        names = [one.name for one in served]
        if head is not None and len(head) <= _LONGEST_HEAD and (short := self._short_way(served, size)) is not None:
            if len(self._heads) >= _MOST_HEADS:
                self._heads.clear()
            self._heads[head] = short

        def finish(drafts: list[list[TokenTree]]) -> bytes:
            response = pb.DraftResponse(datastores=names)
            start = 0
            for end in ends:
                for trees in drafts:
                    self._put(response.trees, trees[start:end])
                start = end
            return response.SerializeToString()

        return self._drafted(served, sequences, size, finish)

    def continued(self, generation: Generation, data: bytes) -> Reply:
        """Answer the next DraftStreamRequest of a generation."""
        short, start = generation.short, perf_counter()
        if short is not None and short.version == self._catalog.version and start >= self._work.patient_until:
            sequence = _messages.read_step(data, generation.tail)
            if sequence is not None:
                return self._shortly(short, generation.tail, b"", sequence, start)
            generation.short = None  # until this one is answered
        request = parsed(pb.DraftStreamRequest, data)
        if request.HasField("selection"):
            selection = request.selection
            generation.names = tuple(selection.datastores)
            generation.fingerprint = selection.tokenizer_fingerprint
            generation.version = -1
        if generation.version != self._catalog.version:
            generation.served = self._catalog.select(generation.names, generation.fingerprint)
            generation.version = self._catalog.version
            generation.unnamed = True
        if generation.size is None or request.HasField("limits"):
            generation.size = size_of(request.limits, self._limits)
        size, served = generation.size, generation.served
        tail = generation.tail
        tail += request.tokens[-MAX_SUFFIX:]
        del tail[:-MAX_SUFFIX]
        response = pb.DraftStreamResponse(sequence=request.sequence)
        names = generation.named
        if generation.unnamed:
            names = tuple(one.name for one in served)
            if names != generation.named:
                response.datastores.extend(names)
        if request.HasField("evidence"):

            def finish_evidence(found: list[list[Evidence]]) -> bytes:
                self._put_evidence(response.evidence, found[0])
                generation.named, generation.unnamed = names, False
                return response.SerializeToString()

            bounds = survey_of(request.evidence, self._limits)
            return self._surveyed(served, bounds, [(tail[-bounds.max_suffix :], request.proposals)], finish_evidence)
        if not tail:
            raise empty_context("context")

        def settle() -> None:
            generation.named, generation.unnamed = names, False
            generation.short = self._short_way(served, size)

        if not request.HasField("proposals"):
            if (
                len(served) == 1
                and size.max_nodes <= _AT_ONCE
                and (start := perf_counter()) >= self._work.patient_until
            ):
                tree = _draft(served[0], tail, size)
                self._work.look_at_disk(start)
                self._put(response.trees, (tree,))
                settle()
                return response.SerializeToString()
            sequences = [tail]
        else:
            sequences = [tail, *self._proposed(tail, request.proposals, 0, len(served))]

        def finish(drafts: list[list[TokenTree]]) -> bytes:
            for trees in drafts:
                self._put(response.trees, trees)
            settle()
            return response.SerializeToString()

        return self._drafted(served, sequences, size, finish)

    def _short_way(self, served: tuple[Served, ...], size: Size) -> Short | None:
        """Return the short way for requests of one context, if there is one."""
        if _messages is None or len(served) > 1 or size.max_nodes > _AT_ONCE:
            return None
        names = pb.DraftResponse(datastores=[served[0].name]).SerializeToString()
        return Short(served[0], size, names, self._catalog.version)

    def _shortly(self, short: Short, tokens: list[int], names: bytes, sequence: int, start: float) -> bytes:
        """Answer one context with one tree, begun at `start`; written out in full, as calls are what it costs."""
        served, (nodes, suffix, depth), _, _ = short
        try:
            tree = served.store.draft(tokens, max_nodes=nodes, max_suffix=suffix, max_depth=depth)
        except QueryError:
            require_tokens([tokens], suffix, served.store.vocabulary_size, "context")
            raise
        served.require_readable()
        self._work.look_at_disk(start)
        packed, (length, count) = tree.packed, tree.match
        metrics = self._metrics
        metrics.match_lengths[length] += 1
        metrics.nodes += len(packed) // _NODE_SIZE
        metrics.trees += 1
        reply: bytes = _messages.tree_message(packed, length, count, names, sequence)
        return reply

    def longest_suffix_match(self, data: bytes) -> Reply:
        """Answer a LongestSuffixMatchRequest."""
        request = parsed(pb.LongestSuffixMatchRequest, data)
        selection = request.selection
        served = self._catalog.select(tuple(selection.datastores), selection.tokenizer_fingerprint)
        require_work(len(served), self._limits)
        max_suffix = suffix_of(request.max_suffix, self._limits)
        tail = request.tokens[-max_suffix:]
        if not tail:
            raise empty_context("context")

        def match(one: Served) -> tuple[int, int]:
            found = one.store.longest_suffix_match(tail, max_suffix=max_suffix)
            one.require_readable()
            return found

        def finish(matches: list[tuple[int, int]]) -> bytes:
            response = pb.LongestSuffixMatchResponse()
            for one, (length, count) in zip(served, matches, strict=True):
                response.matches.add(datastore=one.name, length=length, count=count)
            return response.SerializeToString()

        return self._work.done([partial(match, one) for one in served], len(served) <= _COUNTS_AT_ONCE, finish)

    def count(self, data: bytes) -> Reply:
        """Answer a CountRequest."""
        request = parsed(pb.CountRequest, data)
        selection = request.selection
        served = self._catalog.select(tuple(selection.datastores), selection.tokenizer_fingerprint)
        require_work(len(request.sequences) * len(served), self._limits)
        sequences = [list(sequence.tokens) for sequence in request.sequences]
        for place, sequence in enumerate(sequences):
            what = f"sequence {place}"
            if not sequence:
                raise EmptyContextError(describe("request", what, "empty", "at least one token"))
            if len(sequence) > MAX_SUFFIX:
                raise LimitError(describe("request", f"length of {what}", len(sequence), f"1..{MAX_SUFFIX}"))
        for one in served:
            require_tokens(sequences, MAX_SUFFIX, one.store.vocabulary_size, "sequence")

        def count(piece: Sequence[list[int]]) -> list[int]:
            counts = [one.store.count(sequence) for sequence in piece for one in served]
            for one in served:
                one.require_readable()
            return counts

        def finish(counts: list[list[int]]) -> bytes:
            flat = [count for piece in counts for count in piece]
            names = [one.name for one in served]
            return pb.CountResponse(counts=flat, datastores=names).SerializeToString()

        pieces = [sequences[at : at + _COUNTS_PIECE] for at in range(0, len(sequences), _COUNTS_PIECE)]
        small = len(sequences) * len(served) <= _COUNTS_AT_ONCE
        return self._work.done([partial(count, piece) for piece in pieces], small, finish)

    def describe(self, data: bytes) -> Reply:
        """Answer a DescribeRequest."""
        parsed(pb.DescribeRequest, data)
        build, limits = self._metrics.build, self._limits
        return pb.DescribeResponse(
            version=build["version"],
            kernel=build["kernel"],
            datastores=[served.describe() for served in self._catalog.served],
            limits=pb.ServiceLimits(**{**vars(limits), "max_evidence_rows": self._most_evidence_rows}),
        ).SerializeToString()

    def _proposed(self, tail: list[int], proposals: pb.Proposals, place: int, times: int) -> list[list[int]]:
        require_work((1 + len(proposals.tokens)) * times, self._limits)
        return proposed(tail, proposals, place)

    def _evident(self, served: tuple[Served, ...], request: pb.DraftRequest) -> Reply:
        """Answer a DraftRequest that asks for evidence."""
        bounds = survey_of(request.evidence, self._limits)
        asked = [(context.tokens[-bounds.max_suffix :], context.proposals) for context in request.contexts]

        def finish(found: list[list[Evidence]]) -> bytes:
            response = pb.DraftResponse(datastores=[one.name for one in served])
            for of_context in found:
                self._put_evidence(response.evidence, of_context)
            return response.SerializeToString()

        return self._surveyed(served, bounds, asked, finish)

    def _surveyed(
        self,
        served: tuple[Served, ...],
        bounds: Survey,
        asked: list[tuple[list[int], pb.Proposals]],
        finish: Callable[[list[list[Evidence]]], bytes],
    ) -> Reply:
        """Read evidence of `served` for each context and its proposals, and make the answer of it."""
        amount = len(asked) * len(served) * bounds.max_rows
        require_work(amount, self._limits)
        if not self._most_evidence_rows:
            raise LimitError(describe("request", "evidence", "asked for", "not asked for: this service has none"))
        vocabulary_size = min(one.store.vocabulary_size for one in served)
        require_tokens([tail for tail, _ in asked], MAX_SUFFIX, vocabulary_size, "context")
        trees = [proposed_tree(own, place, vocabulary_size, self._limits) for place, (_, own) in enumerate(asked)]
        stores = {one.name: one.store for one in served}

        def read(tail: list[int], tree: Proposed) -> list[Evidence]:
            found = collect_evidence(stores, np.array(tail, np.int32), *tree, **bounds._asdict())
            for one in served:
                one.require_readable()
            return found

        work = [partial(read, tail, tree) for (tail, _), tree in zip(asked, trees, strict=True)]
        return self._work.done(work, amount <= _ROWS_AT_ONCE, finish)

    def _drafted(
        self,
        served: tuple[Served, ...],
        sequences: list[list[int]],
        size: Size,
        finish: Callable[[list[list[TokenTree]]], bytes],
    ) -> Reply:
        """Draft for all `sequences` from each of `served`, and make the answer of it."""
        amount = len(sequences) * len(served)
        require_work(amount, self._limits)

        def draft(one: Served, piece: list[list[int]], first: int) -> list[TokenTree]:
            nodes, suffix, depth = size
            try:
                if len(piece) == 1:
                    trees = [one.store.draft(piece[0], max_nodes=nodes, max_suffix=suffix, max_depth=depth)]
                else:
                    trees = one.store.draft_batch(piece, max_nodes=nodes, max_suffix=suffix, max_depth=depth)
            except QueryError:
                what = "context" if len(sequences) == 1 else "sequence"
                require_tokens(piece, suffix, one.store.vocabulary_size, what, first)
                raise
            one.require_readable()
            return trees

        if amount * size.max_nodes <= _AT_ONCE:
            return self._work.done([partial(draft, one, sequences, 0) for one in served], True, finish)
        step = max(1, _PIECE // size.max_nodes)
        starts = range(0, len(sequences), step)
        work = [partial(draft, one, sequences[at : at + step], at) for one in served for at in starts]

        def join(pieces: list[list[TokenTree]]) -> bytes:
            rows = iter(pieces)
            return finish([[tree for _ in starts for tree in next(rows)] for _ in served])

        return self._work.done(work, False, join)

    def _put_evidence(self, to: Any, found: Sequence[Evidence]) -> None:
        """Append `found` to the repeated field `to`, and count it."""
        for evidence in found:
            to.add(rows=evidence.rows)
            self._metrics.evidence_rows += evidence.row_count

    def _put(self, to: Any, trees: Sequence[TokenTree]) -> None:
        """Append `trees` to the repeated field `to`, and count them."""
        metrics = self._metrics
        lengths = metrics.match_lengths
        nodes = 0
        for tree in trees:
            length, count = tree.match
            to.add(nodes=_little_endian(tree), match_length=length, match_count=count)
            lengths[length] += 1
            nodes += len(tree)
        metrics.nodes += nodes
        metrics.trees += len(trees)


def _draft(served: Served, tokens: list[int], size: Size) -> TokenTree:
    """Return the draft of one context, from the shortest way to it."""
    nodes, suffix, depth = size
    try:
        tree = served.store.draft(tokens, max_nodes=nodes, max_suffix=suffix, max_depth=depth)
    except QueryError:
        require_tokens([tokens], suffix, served.store.vocabulary_size, "context")
        raise
    served.require_readable()
    return tree


def _little_endian(tree: TokenTree) -> bytes:
    """Return the nodes as a Tree message has them."""
    if sys.byteorder == "little":
        return tree.packed
    columns = (tree.counts, tree.tokens, tree.parents, tree.depths)
    return b"".join(column.astype(column.dtype.newbyteorder("<")).tobytes() for column in columns)
