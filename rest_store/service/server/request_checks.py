"""Validation of requests, where their bytes enter the service and before any work is done.

Limits come first: a parsed message tells how many elements it has before anything is built from
them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError, Message

from rest_store.datastore.kernel import MAX_NODES
from rest_store.drafting.draft_options import Accepted
from rest_store.errors import (
    ArgumentError,
    ContextTypeError,
    DocumentError,
    MessageSizeError,
    QueryError,
    describe,
)
from rest_store.v1 import datastore_pb2 as pb

M = TypeVar("M", bound=Message)
Tokens = npt.NDArray[np.int32]

_MAX_ACCEPTED = 1024  # messages Accepted in one message of a session
_MAX_TOP_K = 64  # tokens after each place


def require_size(what: str, size: int, maximum: int) -> None:
    """Raise MessageSizeError if a message of `size` bytes is larger than `maximum`."""
    if size > maximum:
        raise MessageSizeError(describe(what, "size", f"{size} bytes", f"at most {maximum}"))


def parse(kind: type[M], data: bytes) -> M:
    """Return the message in `data`; raise ContextTypeError if it is not of type `kind`."""
    try:
        return kind.FromString(data)
    except DecodeError:
        actual = f"{len(data)} malformed bytes"
        raise ContextTypeError(
            describe("request", "message", actual, f"a {kind.DESCRIPTOR.name}")
        ) from None


def require_few(what: str, number: int, maximum: int) -> None:
    """Raise ArgumentError if the number of some elements of a request is above `maximum`."""
    if number > maximum:
        raise ArgumentError(describe("request", f"number of {what}", number, f"at most {maximum}"))


def parse_document(message: pb.Document, number: int) -> Tokens:
    """Return the tokens of a document to add; raise DocumentError if they are not whole."""
    if len(message.tokens) % 4:
        actual = f"{len(message.tokens)} bytes"
        raise DocumentError(describe("add", f"document {number}", actual, "tokens of 4 bytes each"))
    return np.frombuffer(message.tokens, np.int32)


def require_token(token: int, vocabulary_size: int, what: str) -> None:
    """Raise QueryError if a token of a session is outside the vocabulary."""
    if not 0 <= token < vocabulary_size:
        raise QueryError(
            describe("session", f"token id in {what}", token, f"0..{vocabulary_size - 1}")
        )


def parse_text(data: bytes, vocabulary_size: int) -> Tokens:
    """Return the text of an opening.

    Raises:
        ContextTypeError: the bytes are not whole tokens.
        QueryError: a token is outside the vocabulary.
    """
    if len(data) % 4:
        raise ContextTypeError(
            describe("session", "text", f"{len(data)} bytes", "tokens of 4 bytes each")
        )
    tokens = np.frombuffer(data, np.int32)
    for extreme in (tokens.min(initial=0), tokens.max(initial=0)):
        require_token(int(extreme), vocabulary_size, "text")
    return tokens


def parse_top_k(message: pb.TopK, what: str) -> Tokens:
    """Return the most likely tokens after some places, int32[places, k].

    The tokens of a place end at -1, or at a token outside the vocabulary.

    Raises:
        ArgumentError: k is out of range.
        ContextTypeError: the bytes are not k tokens for each place.
    """
    k = message.k
    size = len(message.tokens)
    if not 1 <= k <= _MAX_TOP_K:
        raise ArgumentError(describe("session", f"k of {what}", k, f"1..{_MAX_TOP_K}"))
    if size % (4 * k):
        raise ContextTypeError(describe("session", what, f"{size} bytes", f"rows of {4 * k} bytes"))
    return np.frombuffer(message.tokens, np.int32).reshape(-1, k)


def parse_accepted(messages: Sequence[pb.Accepted], vocabulary_size: int) -> list[Accepted]:
    """Return the accepted tokens of a message.

    Raises:
        ArgumentError: there are too many messages.
        QueryError: one has no tokens, or a token outside the vocabulary.
        ContextTypeError: as `parse_top_k`.
    """
    require_few("accepted", len(messages), _MAX_ACCEPTED)
    accepted = []
    for message in messages:
        if not message.tokens:
            raise QueryError(describe("request", "accepted", "empty", "at least one token"))
        require_token(max(message.tokens), vocabulary_size, "accepted")
        tokens = np.fromiter(message.tokens, np.int32, len(message.tokens))
        top_k = None
        if message.HasField("top_k"):
            top_k = parse_top_k(message.top_k, "top_k")
        node_top_k = None
        if message.HasField("node_top_k"):
            node_top_k = parse_top_k(message.node_top_k, "node_top_k")
        accepted.append(Accepted(tokens, top_k, node_top_k))
    return accepted


def step_costs(values: Sequence[float]) -> npt.NDArray[np.float64]:
    """Return costs of steps, float64[n + 1]; raise ArgumentError unless positive and finite."""
    require_few("costs", len(values), 1 + MAX_NODES)
    if not all(0 < value < math.inf for value in values):
        raise ArgumentError(
            describe("session", "list of costs", "not valid", "positive finite numbers")
        )
    return np.array(values, np.float64)
