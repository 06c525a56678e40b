"""What a request asks: its limits, and its contexts and proposals as token sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError, Message

from rest_store.datastore.kernel import MAX_SUFFIX
from rest_store.drafting.evidence import rows_for
from rest_store.errors import ContextTypeError, EmptyContextError, LimitError, TokenRangeError, describe
from rest_store.service.server.limits import Limits
from rest_store.v1 import datastore_pb2 as pb

_M = TypeVar("_M", bound=Message)


def parsed(kind: type[_M], data: bytes) -> _M:
    """Return the message of type `kind` in `data`.

    Raises:
        ContextTypeError: `data` is none.
    """
    try:
        return kind.FromString(data)
    except DecodeError:
        found = f"{len(data)} malformed bytes"
        raise ContextTypeError(describe("request", "message", found, f"a {kind.DESCRIPTOR.name}")) from None


class Size(NamedTuple):
    """How large drafts may be: nodes, tokens of suffix, tokens of a continuation."""

    max_nodes: int
    max_suffix: int
    max_depth: int


def size_of(message: pb.DraftLimits, limits: Limits) -> Size:
    """Return the limits that a request sets, defaults in place of zeros.

    Raises:
        LimitError: one is above the service's.
    """
    nodes = message.max_nodes or min(64, limits.max_nodes)
    suffix = message.max_suffix or min(16, limits.max_suffix)
    depth = message.max_depth or min(10, limits.max_depth)
    if nodes > limits.max_nodes or suffix > limits.max_suffix or depth > limits.max_depth:
        for what, found in (("max_nodes", nodes), ("max_suffix", suffix), ("max_depth", depth)):
            greatest = getattr(limits, what)
            if found > greatest:
                raise LimitError(describe("request", what, found, f"1..{greatest}, or 0 for the default"))
    return Size(nodes, suffix, depth)


class Survey(NamedTuple):
    """How much evidence: nodes of the client's tree, tokens of suffix, paths."""

    max_nodes: int
    max_suffix: int
    max_rows: int


def survey_of(message: pb.EvidenceLimits, limits: Limits) -> Survey:
    """Return how much evidence a request asks for, defaults in place of zeros.

    Raises:
        LimitError: a limit is above the service's.
    """
    size = size_of(pb.DraftLimits(max_nodes=message.max_nodes, max_suffix=message.max_suffix), limits)
    rows = message.max_rows or min(rows_for(size.max_nodes), limits.max_evidence_rows)
    if rows > limits.max_evidence_rows:
        raise LimitError(describe("request", "max_rows", rows, f"1..{limits.max_evidence_rows}, or 0 for the default"))
    return Survey(size.max_nodes, size.max_suffix, rows)


class Proposed(NamedTuple):
    """The client's own tree: tokens int32[P], parents int32[P], scores float32[P]."""

    tokens: npt.NDArray[np.int32]
    parents: npt.NDArray[np.int32]
    scores: npt.NDArray[np.float32]


def proposed_tree(proposals: pb.Proposals, place: int, vocabulary_size: int, limits: Limits) -> Proposed:
    """Return the proposals of a context as arrays.

    Raises:
        ContextTypeError: they are no tree.
        LimitError: they are more than the nodes of a tree may be.
        TokenRangeError: one is outside the vocabulary.
    """
    tokens, parents, scores = proposals.tokens, proposals.parents, proposals.scores
    what = f"proposals of context {place}"
    if len(tokens) != len(parents) or len(scores) not in (0, len(tokens)):
        found = f"{len(tokens)} tokens, {len(parents)} parents and {len(scores)} scores"
        raise ContextTypeError(describe("request", what, found, "as many of each"))
    if len(tokens) > limits.max_nodes:
        raise LimitError(describe("request", f"number of {what}", len(tokens), f"at most {limits.max_nodes}"))
    own = np.array(parents, np.int32)
    wrong = np.flatnonzero((own < -1) | (own >= np.arange(own.size)))
    if wrong.size:
        node = int(wrong[0])
        where = f"parent of proposal {node} of context {place}"
        raise ContextTypeError(describe("request", where, parents[node], f"-1..{node - 1}"))
    if tokens and max(tokens) >= vocabulary_size:
        where = f"token id in {what}"
        raise TokenRangeError(describe("request", where, max(tokens), f"0..{vocabulary_size - 1}"))
    return Proposed(np.array(tokens, np.int32), own, np.array(scores or [0.0] * own.size, np.float32))


def suffix_of(found: int, limits: Limits) -> int:
    """Return the longest suffix that a request asks for, the default in place of zero."""
    return size_of(pb.DraftLimits(max_suffix=found), limits).max_suffix


def require_work(amount: int, limits: Limits) -> None:
    """Raise LimitError if `amount` is above the contexts of one request, proposals and datastores counted."""
    if amount > limits.max_contexts:
        what = "number of contexts, proposals and datastores counted,"
        raise LimitError(describe("request", what, amount, f"at most {limits.max_contexts}"))


def proposed(tail: list[int], proposals: pb.Proposals, place: int) -> list[list[int]]:
    """Return `tail` continued by the path of each proposal, at most 64 tokens of each.

    Raises:
        ContextTypeError: the proposals are not a tree.
    """
    tokens, parents = proposals.tokens, proposals.parents
    if len(tokens) != len(parents):
        found = f"{len(tokens)} tokens and {len(parents)} parents"
        raise ContextTypeError(describe("request", f"proposals of context {place}", found, "as many of each"))
    sequences: list[list[int]] = []
    for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        if not -1 <= parent < node:
            what = f"parent of proposal {node} of context {place}"
            raise ContextTypeError(describe("request", what, parent, f"-1..{node - 1}"))
        sequences.append([*(sequences[parent] if parent >= 0 else tail), token][-MAX_SUFFIX:])
    return sequences


def empty_context(what: str) -> EmptyContextError:
    """Return the error of a context without tokens."""
    return EmptyContextError(describe("request", what, "empty", "at least one token"))


def require_tokens(
    sequences: Sequence[Sequence[int]], last: int, vocabulary_size: int, what: str, first: int = 0
) -> None:
    """Raise TokenRangeError if one of a sequence's `last` tokens is outside the vocabulary; they count from `first`."""
    for place, tokens in enumerate(sequences, first):
        for token in tokens[-last:]:
            if not 0 <= token < vocabulary_size:
                where = f"token id in {what} {place}"
                raise TokenRangeError(describe("request", where, token, f"0..{vocabulary_size - 1}"))
