"""Validation of requests, before any work is done for them.

First come the limits: a parsed message tells the number of its parts before anything is built from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError, Message

from rest_store.datastore.kernel import MAX_DEPTH, MAX_LISTED, MAX_NODES, MAX_SEQUENCE, MAX_SUFFIX
from rest_store.drafting.evidence import MAX_EVIDENCE_ROWS, rows_for
from rest_store.errors import ContextTypeError, EmptyContextError, LimitError, TokenRangeError, describe
from rest_store.service.served_part import ServedPart
from rest_store.service.server.limits import Limits
from rest_store.v1 import datastore_pb2 as pb

M = TypeVar("M", bound=Message)
Tokens = npt.NDArray[np.int32]

_MOST_ACCEPTED = 1024  # in one message of a session
_MOST_TOP_K = 64  # tokens of a row


class TreeLimits(NamedTuple):
    """Largest tree: nodes, tokens of the suffix, tokens of a continuation."""

    max_nodes: int
    max_suffix: int
    max_depth: int

    @property
    def work(self) -> int:
        """How many contexts a context with such a tree counts for."""
        return -(-self.max_nodes // MAX_NODES)


class EvidenceLimits(NamedTuple):
    """Most evidence: nodes of the client's tree, tokens of the suffix, paths."""

    max_nodes: int
    max_suffix: int
    max_rows: int


class Accepted(NamedTuple):
    """What a target model produced in a session, as `DraftSession.accept` takes it."""

    tokens: Tokens
    top_k: Tokens | None
    node_top_k: Tokens | None


class Proposals(NamedTuple):
    """The client's own tree: tokens int32[P], parents int32[P], scores float32[P]."""

    tokens: npt.NDArray[np.int32]
    parents: npt.NDArray[np.int32]
    scores: npt.NDArray[np.float32]


def parse(kind: type[M], data: bytes) -> M:
    """Return the message of type `kind` in `data`; raise ContextTypeError if it holds another."""
    try:
        return kind.FromString(data)
    except DecodeError:
        found = f"{len(data)} malformed bytes"
        raise ContextTypeError(describe("request", "message", found, f"a {kind.DESCRIPTOR.name}")) from None


def require_few_fields(data: bytes, most: int) -> None:
    """Raise LimitError if a message has more than `most` fields. Called before large messages are parsed.

    An empty field of two bytes takes fifty once it is parsed, and parsing many of them would block the event loop.
    """
    place = fields = 0
    while place < len(data) and fields <= most:
        key, place = _varint(data, place)
        fields += 1
        match key & 7:
            case 0:
                _, place = _varint(data, place)
            case 1:
                place += 8
            case 2:
                size, place = _varint(data, place)
                place += size
            case 5:
                place += 4
    if fields > most:
        raise LimitError(describe("request", "number of fields", f"over {most}", f"at most {most}"))


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """Return the varint at `place`, and where it ends. Parsing refuses a malformed one later."""
    value = shift = 0
    while place < len(data) and shift < 70:
        byte = data[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            break
    return value, place


def tree_limits(message: pb.DraftLimits) -> TreeLimits:
    """Return the limits of a request, with defaults for zeros; raise LimitError for one that is out of range."""
    max_nodes = _limit("max_nodes", message.max_nodes, 64, MAX_LISTED)
    max_depth = _limit("max_depth", message.max_depth, 10, MAX_DEPTH)
    return TreeLimits(max_nodes, suffix_limit(message.max_suffix), max_depth)


def evidence_limits(message: pb.EvidenceLimits) -> EvidenceLimits:
    """Return the limits of a request for evidence, as `tree_limits`."""
    max_nodes = node_limit(message.max_nodes)
    max_rows = _limit("max_rows", message.max_rows, rows_for(max_nodes), MAX_EVIDENCE_ROWS)
    return EvidenceLimits(max_nodes, suffix_limit(message.max_suffix), max_rows)


def suffix_limit(max_suffix: int) -> int:
    """Return the longest suffix that a request asks for, as `tree_limits`."""
    return _limit("max_suffix", max_suffix, 16, MAX_SUFFIX)


def node_limit(max_nodes: int, default: int = 64) -> int:
    """Return how many nodes a request asks for, as `tree_limits`."""
    return _limit("max_nodes", max_nodes, default, MAX_NODES)


def _limit(name: str, value: int, default: int, greatest: int) -> int:
    if value > greatest:
        raise LimitError(describe("request", name, value, f"1..{greatest}, or 0 for the default"))
    return value or default


def require_work(amount: int, limits: Limits) -> None:
    """Raise LimitError if the contexts of a request, times datastores, rows and each 1024 nodes, exceed the limit."""
    if amount > limits.max_contexts:
        what = "number of contexts, times datastores, rows of evidence and each 1024 nodes,"
        raise LimitError(describe("request", what, amount, f"at most {limits.max_contexts}"))


class Selection(NamedTuple):
    """The datastores that a request is for: their names, their tokenizer, and which part of which build each is."""

    names: tuple[str, ...] = ()
    fingerprint: str = ""
    parts: tuple[ServedPart, ...] = ()


def selection_of(message: pb.Selection, limits: Limits) -> Selection:
    """Return the selection of a message; raise LimitError if it names more than `max_contexts` datastores."""
    named = max(len(message.datastores), len(message.parts))
    if named > limits.max_contexts:
        expected = f"at most {limits.max_contexts}"
        raise LimitError(describe("request", "number of datastores named", named, expected))
    parts = tuple(map(ServedPart.of, message.parts))
    return Selection(tuple(message.datastores), message.tokenizer_fingerprint, parts)


def require_few_proposals(messages: Iterable[pb.Proposals], limits: Limits) -> None:
    """Raise LimitError if all proposals of a request together exceed the limit."""
    amount = sum(len(message.tokens) for message in messages)
    if amount > limits.max_proposals:
        raise LimitError(describe("request", "number of all proposals", amount, f"at most {limits.max_proposals}"))


def require_not_empty(tokens: Sequence[int], what: str) -> None:
    """Raise EmptyContextError if there are no `tokens`."""
    if not tokens:
        raise EmptyContextError(describe("request", what, "empty", "at least one token"))


def require_tokens(sequences: Sequence[Sequence[int]], vocabulary_size: int, what: str, first: int = 0) -> None:
    """Raise TokenRangeError if a token is outside the vocabulary; the message counts sequences from `first`."""
    for place, tokens in enumerate(sequences, first):
        if (greatest := max(tokens, default=0)) >= vocabulary_size:  # none is negative in a message
            where = f"token id in {what} {place}"
            raise TokenRangeError(describe("request", where, greatest, f"0..{vocabulary_size - 1}"))


def require_no_proposals(message: pb.Context | pb.DraftStreamRequest, place: int) -> None:
    """Raise ContextTypeError if a request for trees has proposals, which only requests for evidence may have."""
    if message.HasField("proposals"):
        where = f"proposals of context {place}"
        raise ContextTypeError(describe("request", where, "present without evidence limits", "none"))


def tails_of(contexts: Iterable[pb.Context], max_suffix: int) -> list[list[int]]:
    """Return the ends of the contexts of a request for trees.

    Raises:
        EmptyContextError: a context has no tokens.
        ContextTypeError: as `require_no_proposals`.
    """
    tails = []
    for place, context in enumerate(contexts):
        require_not_empty(context.tokens, f"context {place}")
        require_no_proposals(context, place)
        tails.append(context.tokens[-max_suffix:])
    return tails


def sequences_of(messages: Iterable[pb.TokenSequence]) -> list[list[int]]:
    """Return the sequences of a request for counts.

    Raises:
        EmptyContextError: a sequence has no tokens.
        LimitError: a sequence is longer than a suffix and a continuation may be.
    """
    sequences = []
    for place, message in enumerate(messages):
        require_not_empty(message.tokens, f"sequence {place}")
        if (length := len(message.tokens)) > MAX_SEQUENCE:
            raise LimitError(describe("request", f"length of sequence {place}", length, f"1..{MAX_SEQUENCE}"))
        sequences.append(list(message.tokens))
    return sequences


def proposals_of(message: pb.Proposals, place: int, vocabulary_size: int) -> Proposals:
    """Return the proposals of the context at `place`.

    Raises:
        ContextTypeError: they are not a tree.
        LimitError: they are more than the nodes of a tree may be.
        TokenRangeError: a token is outside the vocabulary.
    """
    what, size = f"proposals of context {place}", len(message.tokens)
    if size != len(message.parents) or len(message.scores) not in (0, size):
        found = f"{size} tokens, {len(message.parents)} parents and {len(message.scores)} scores"
        raise ContextTypeError(describe("request", what, found, "equal numbers"))
    if size > MAX_NODES:
        raise LimitError(describe("request", f"number of {what}", size, f"at most {MAX_NODES}"))
    tokens, parents = message.tokens[:], message.parents[:]
    for node, parent in enumerate(parents):
        if not -1 <= parent < node:
            where = f"parent of proposal {node} of context {place}"
            raise ContextTypeError(describe("request", where, parent, f"-1..{node - 1}"))
    if (greatest := max(tokens, default=0)) >= vocabulary_size:
        where = f"token id in {what}"
        raise TokenRangeError(describe("request", where, greatest, f"0..{vocabulary_size - 1}"))
    scores = message.scores[:] or [0.0] * size
    return Proposals(np.array(tokens, np.int32), np.array(parents, np.int32), np.array(scores, np.float32))


def text_of(tokens: Sequence[int], vocabulary_size: int, what: str) -> Tokens:
    """Return the tokens of a session as int32; raise TokenRangeError if one is outside the vocabulary."""
    if (greatest := max(tokens, default=0)) >= vocabulary_size:
        raise TokenRangeError(describe("session", f"token id in {what}", greatest, f"0..{vocabulary_size - 1}"))
    return np.fromiter(tokens, np.int32, len(tokens))


def top_k_of(message: pb.TopK, what: str) -> Tokens:
    """Return most likely tokens as int32[rows, k]; -1 ends a row, and so does one outside the vocabulary.

    Raises:
        LimitError: k is out of range.
        ContextTypeError: not whole rows.
    """
    k, size = message.k, len(message.tokens)
    if not 1 <= k <= _MOST_TOP_K:
        raise LimitError(describe("session", f"k of {what}", k, f"1..{_MOST_TOP_K}"))
    if size % (4 * k):
        raise ContextTypeError(describe("session", what, f"{size} bytes", f"rows of {4 * k} bytes"))
    return np.frombuffer(message.tokens, "<i4").reshape(-1, k)


def accepted_of(messages: Sequence[pb.Accepted], vocabulary_size: int) -> list[Accepted]:
    """Return the accepted tokens of a message.

    Raises:
        EmptyContextError: no tokens.
        TokenRangeError, LimitError, ContextTypeError: as `text_of` and `top_k_of`; LimitError also for too many.
    """
    if len(messages) > _MOST_ACCEPTED:
        raise LimitError(describe("session", "number of accepted", len(messages), f"at most {_MOST_ACCEPTED}"))
    accepted = []
    for message in messages:
        require_not_empty(message.tokens, "accepted")
        tokens = text_of(message.tokens, vocabulary_size, "accepted")
        top_k = top_k_of(message.top_k, "top_k") if message.HasField("top_k") else None
        node_top_k = top_k_of(message.node_top_k, "node_top_k") if message.HasField("node_top_k") else None
        accepted.append(Accepted(tokens, top_k, node_top_k))
    return accepted


def step_costs(message: pb.StepCosts) -> npt.NDArray[np.float64]:
    """Return the costs of steps, float64[n + 1]; empty: trees are not cut.

    Raises:
        LimitError: too many, or not positive finite numbers.
    """
    costs = message.of_step
    if len(costs) > 1 + MAX_NODES:
        raise LimitError(describe("session", "number of costs", len(costs), f"at most {1 + MAX_NODES}"))
    values = np.array(costs, np.float64)
    if not bool(np.all((values > 0) & np.isfinite(values))):
        raise LimitError(describe("session", "costs", "other numbers", "positive finite ones"))
    return values
