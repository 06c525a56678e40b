"""Wrong messages of a session that a service runs have one named status, and leave nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import grpc
import pytest

from rest_store.v1 import datastore_pb2 as pb
from tests.shared.live import until
from tests.shared.messages import CODES, begin, ending
from tests.shared.services import Service
from tests.shared.sessions import (
    CONTEXTS,
    NAMES,
    TEXT,
    Request,
    opening,
    sessions_of,
    step,
    token_bytes,
    top_k,
)
from tests.shared.strategies import identity

LARGEST = (64 << 10) + 512 * CONTEXTS  # bytes of a message but the first
FIRST = opening(1, 2)
NAN = math.nan


@pytest.fixture(scope="module")
def channel(service: Service) -> Iterator[grpc.Channel]:
    with service.channel() as channel:
        yield channel


def end_of(channel: grpc.Channel, *messages: Request | bytes) -> tuple[int, str | None]:
    """Send the messages of one session.

    Return the number of answers, and the reason of the error that ends it.
    """
    sent = [one if isinstance(one, bytes) else one.SerializeToString() for one in messages]
    answers, code, reason = ending(begin(channel, "DraftSession", *sent), stream=True)
    assert code == (CODES[reason] if reason is not None else "OK")
    return len(answers), reason


def trees_asked(messages: Sequence[Request | bytes]) -> int:
    return sum(one.HasField("draft") for one in messages if isinstance(one, Request))


def padded(message: Request, size: int) -> Request:
    """The message in so many bytes, with a field that nobody knows."""
    data = message.SerializeToString()
    length = size - len(data) - 5  # of its content, after two bytes of its number and three of this
    number = bytes([length & 127 | 128, length >> 7 & 127 | 128, length >> 14])
    result = Request.FromString(data + b"\x92\x06" + number + bytes(length))
    assert result.ByteSize() == size
    return result


def opened(*tokens: int, **fields: Any) -> Request:
    """An opening that asks for nothing."""
    return opening(*tokens, nodes=None, **fields)


def costing(*costs: float) -> Request:
    return Request(draft=pb.DraftOptions(costs=costs))


def rows_of(count: int, k: int = 2) -> pb.TopK:
    return top_k([[3] * k] * count)


def selecting(*names: str, **fields: Any) -> Request:
    return opening(1, 2, selection=pb.Selection(datastores=names, **fields))


BAD: dict[str, tuple[list[Request | bytes], str]] = {
    # Out of order.
    "nothing first": ([b""], "PROTOCOL"),
    "a request before the opening": ([step()], "PROTOCOL"),
    "a second opening": ([FIRST, FIRST], "PROTOCOL"),
    # Not messages, or too large ones.
    "malformed at first": ([b"\xff\xff"], "CONTEXT_TYPE"),
    "malformed later": ([FIRST, b"\x0a\xff"], "CONTEXT_TYPE"),
    "an opening that is too large": ([padded(FIRST, LARGEST + 4 * TEXT + 1)], "MESSAGE_SIZE"),
    "a message that is too large": ([FIRST, padded(step(3), LARGEST + 1)], "MESSAGE_SIZE"),
    # Text.
    "a token outside the vocabulary": ([opening(1, 300)], "QUERY"),
    "an accepted token outside the vocabulary": ([FIRST, step(3, 300)], "QUERY"),
    "datastores of two tokenizers": ([selecting("other", "a")], "TOKENIZER_MISMATCH"),
    "a text that is too long": ([opening(*[1] * (TEXT + 1))], "ARGUMENT"),
    "references that are too long": (
        [opening(1, references=[token_bytes([1] * (TEXT - 1))])],
        "ARGUMENT",
    ),
    "too many references": ([opening(references=[b""] * (TEXT + 1))], "ARGUMENT"),
    "half a token of a reference": ([opening(1, references=[bytes(6)])], "CONTEXT_TYPE"),
    "a reference outside the vocabulary": ([opening(1, references=[token_bytes([300])])], "QUERY"),
    "a text that becomes too long": ([opening(*[1] * 1400), step(*[1] * 100), step(1)], "ARGUMENT"),
    # Accepted.
    "nothing accepted": ([FIRST, Request(accepted=[pb.Accepted()])], "QUERY"),
    "1,025 accepted": ([FIRST, Request(accepted=[pb.Accepted(tokens=[3])] * 1025)], "ARGUMENT"),
    # Most likely tokens.
    "rows of nothing": ([FIRST, step(3, top_k=pb.TopK(tokens=bytes(8)))], "ARGUMENT"),
    "rows of 65": ([FIRST, step(3, top_k=rows_of(1, 65))], "ARGUMENT"),
    "half a row": ([FIRST, step(3, top_k=pb.TopK(k=2, tokens=bytes(12)))], "CONTEXT_TYPE"),
    "fewer rows than tokens": ([FIRST, step(3, 4, top_k=rows_of(1))], "CONTEXT_TYPE"),
    "more rows than text": ([FIRST, step(3, top_k=rows_of(4))], "CONTEXT_TYPE"),
    "rows of nothing for nodes": ([FIRST, step(3, node_top_k=pb.TopK())], "ARGUMENT"),
    "rows for nodes of another tree": ([FIRST, step(3, node_top_k=rows_of(99))], "CONTEXT_TYPE"),
    "rows for nodes of no tree": ([opened(1, 2), step(3, node_top_k=rows_of(5))], "CONTEXT_TYPE"),
    "rows for nodes of the tree before": (
        [FIRST, step(3, nodes=None), step(4, node_top_k=rows_of(5))],
        "CONTEXT_TYPE",
    ),
    # Trees.
    "1,025 nodes": ([opening(1, 2, nodes=1025)], "ARGUMENT"),
    "a cost that is no number": ([FIRST, costing(1.0, NAN)], "ARGUMENT"),
    "a cost of nothing": ([FIRST, costing(0.0, 1.0)], "ARGUMENT"),
    "1,026 costs": ([FIRST, costing(*[1.0] * 1026)], "ARGUMENT"),
    # What sessions share.
    "a key of 65 bytes": ([opening(1, 2, recycled_logits=b"k" * 65)], "ARGUMENT"),
    # Datastores.
    "seven datastores": ([selecting(*NAMES)], "ARGUMENT"),
    "an unknown datastore": ([selecting("a", "none")], "UNKNOWN_DATASTORE"),
}


@pytest.mark.parametrize(("messages", "reason"), BAD.values(), ids=BAD)
def test_what_cannot_be_has_one_status_and_leaves_nothing(
    service: Service, channel: grpc.Channel, messages: list[Request | bytes], reason: str
) -> None:
    assert end_of(channel, *messages) == (trees_asked(messages[:-1]), reason)
    until(lambda: sessions_of(service) == (0, 0))
    assert end_of(channel, FIRST, step(3)) == (2, None), "it goes on for others"


GOOD: dict[str, list[Request]] = {
    "no text": [opening(), step(1)],
    "the longest text": [opening(*[1] * TEXT)],
    "the longest reference": [opening(1, references=[token_bytes([1] * (TEXT - 2))])],
    "accepted before a tree was drafted": [opened(1, 2), step(3, nodes=None), step(4)],
    "a text that grows up to the limit": [opening(*[1] * (TEXT - 1)), step(1)],
    "1,024 accepted": [opened(1), Request(accepted=[pb.Accepted(tokens=[3])] * 1024), step()],
    "the largest messages": [padded(FIRST, LARGEST + 4 * TEXT), padded(step(3), LARGEST)],
    "rows of 64": [opening(1, 2), step(3, top_k=rows_of(3, 64))],
    "rows of tokens that no datastore knows": [
        FIRST,
        step(3, top_k=top_k([[300, 2**31 - 1, -1, -7]])),
    ],
    "the largest tree": [opening(1, 2, nodes=1024), step(3, nodes=0)],
    "costs that are taken back": [opening(1, 2), costing(1.0, 1.1), costing()],
    "six datastores": [selecting(*NAMES[:6])],
    "one of a tokenizer": [selecting("other", tokenizer_fingerprint=identity(301).fingerprint)],
}


@pytest.mark.parametrize("messages", GOOD.values(), ids=GOOD)
def test_what_is_just_within_measure_is_answered(
    channel: grpc.Channel, messages: list[Request]
) -> None:
    assert end_of(channel, *messages) == (trees_asked(messages), None)
