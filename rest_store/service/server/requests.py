"""Validation of requests, before any work is done for them.

First come the limits: a parsed message tells the number of its parts before anything is built from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError, Message

from rest_store.datastore.kernel import MAX_DEPTH, MAX_NODES, MAX_SEQUENCE, MAX_SUFFIX
from rest_store.errors import (
    ContextTypeError,
    DocumentError,
    EmptyContextError,
    LimitError,
    MessageSizeError,
    TokenRangeError,
    describe,
)
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


class Accepted(NamedTuple):
    """What a target model produced in a session, as `DraftSession.accept` takes it."""

    tokens: Tokens
    top_k: Tokens | None
    node_top_k: Tokens | None


# --- Messages as they come --------------------------------------------------------------------------------------------


def require_size(what: str, size: int, most: int) -> None:
    """Raise MessageSizeError if a message of `size` bytes is larger than `most`."""
    if size > most:
        raise MessageSizeError(describe(what, "size", f"{size} bytes", f"at most {most}"))


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
    position = fields = 0
    while position < len(data) and fields <= most:
        key, position = _varint(data, position)
        fields += 1
        match key & 7:
            case 0:
                _, position = _varint(data, position)
            case 1:
                position += 8
            case 2:
                size, position = _varint(data, position)
                position += size
            case 5:
                position += 4
    if fields > most:
        raise LimitError(describe("request", "number of fields", f"over {most}", f"at most {most}"))


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the varint at `position`, and where it ends. Parsing refuses a malformed one later."""
    value = shift = 0
    while position < len(data) and shift < 70:
        byte = data[position]
        value |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            break
    return value, position


# --- Limits and amounts -----------------------------------------------------------------------------------------------


def require_few(what: str, number: int, most: int) -> None:
    """Raise LimitError if a request has more than `most` of something."""
    if number > most:
        raise LimitError(describe("request", f"number of {what}", number, f"at most {most}"))


def tree_limits(message: pb.DraftLimits) -> TreeLimits:
    """Return the limits of a request, with defaults for zeros; raise LimitError for one that is out of range."""
    max_depth = _limit("max_depth", message.max_depth, 10, MAX_DEPTH)
    return TreeLimits(node_limit(message.max_nodes, 64), suffix_limit(message.max_suffix), max_depth)


def suffix_limit(max_suffix: int) -> int:
    """Return the longest suffix that a request asks for, as `tree_limits`."""
    return _limit("max_suffix", max_suffix, 16, MAX_SUFFIX)


def node_limit(max_nodes: int, default: int) -> int:
    """Return how many nodes a request asks for, as `tree_limits`."""
    return _limit("max_nodes", max_nodes, default, MAX_NODES)


def _limit(name: str, value: int, default: int, greatest: int) -> int:
    if value > greatest:
        raise LimitError(describe("request", name, value, f"1..{greatest}, or 0 for the default"))
    return value or default


# --- Tokens -----------------------------------------------------------------------------------------------------------


def require_tokens(sequences: Sequence[Sequence[int]], vocabulary_size: int, what: str, first: int = 0) -> None:
    """Raise TokenRangeError if a token is outside the vocabulary; the message counts sequences from `first`."""
    for number, tokens in enumerate(sequences, first):
        if (greatest := max(tokens, default=0)) >= vocabulary_size:  # none is negative in a message
            where = f"token id in {what} {number}"
            raise TokenRangeError(describe("request", where, greatest, f"0..{vocabulary_size - 1}"))


def tails_of(contexts: Iterable[pb.Context], max_suffix: int) -> list[list[int]]:
    """Return the ends of the contexts of a request; raise EmptyContextError if one has no tokens."""
    tails = [context.tokens[-max_suffix:] for context in contexts]
    for number, tail in enumerate(tails):
        _require_not_empty(tail, f"context {number}")
    return tails


def sequences_of(messages: Iterable[pb.TokenSequence]) -> list[list[int]]:
    """Return the sequences of a request for counts.

    Raises:
        EmptyContextError: a sequence has no tokens.
        LimitError: a sequence is longer than a suffix and a continuation may be.
    """
    sequences = []
    for number, message in enumerate(messages):
        _require_not_empty(message.tokens, f"sequence {number}")
        if (length := len(message.tokens)) > MAX_SEQUENCE:
            raise LimitError(describe("request", f"length of sequence {number}", length, f"1..{MAX_SEQUENCE}"))
        sequences.append(list(message.tokens))
    return sequences


def _require_not_empty(tokens: Sequence[int], what: str) -> None:
    if not tokens:
        raise EmptyContextError(describe("request", what, "empty", "at least one token"))


def document_of(message: pb.Document, number: int) -> Tokens:
    """Return the tokens of a document to add; raise DocumentError if they are not whole."""
    if len(message.tokens) % 4:
        found = f"{len(message.tokens)} bytes"
        raise DocumentError(describe("add", f"document {number}", found, "tokens of 4 bytes each"))
    return np.frombuffer(message.tokens, "<i4")


# --- Sessions ---------------------------------------------------------------------------------------------------------


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
    require_few("accepted", len(messages), _MOST_ACCEPTED)
    accepted = []
    for message in messages:
        _require_not_empty(message.tokens, "accepted")
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
    require_few("costs", len(message.of_step), 1 + MAX_NODES)
    costs = np.array(message.of_step, np.float64)
    if not bool(np.all((costs > 0) & np.isfinite(costs))):
        raise LimitError(describe("session", "costs", "other numbers", "positive finite ones"))
    return costs


def lowest_score(min_score: float) -> float:
    """Return the least score of the nodes that a request asks for; raise LimitError unless it is 0..1."""
    if not 0 <= min_score <= 1:
        raise LimitError(describe("session", "min_score", min_score, "0..1"))
    return min_score
