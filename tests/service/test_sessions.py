"""Draft sessions that a service runs: what is sent out of order or measure has one named status and leaves nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from rest_store.datastore.datastore import Datastore
from rest_store.drafting.session import DraftSession
from rest_store.drafting.sources import PromptLookup, RecycledLogits
from rest_store.v1 import datastore_pb2 as pb
from tests.shared.live import until
from tests.shared.messages import CODES, begin, ending
from tests.shared.services import Service
from tests.shared.sessions import (
    CONTEXTS,
    NAMES,
    TEXT,
    Nodes,
    Request,
    SessionTalk,
    opening,
    sessions_of,
    step,
    top_k,
)
from tests.shared.strategies import identity

LARGEST = (64 << 10) + 512 * CONTEXTS  # bytes of a message but the first
THREE = pb.Selection(datastores=["a", "b", "c"])
FIRST = opening(1, 2)
NAN, INFINITE = math.nan, math.inf


@pytest.fixture(scope="module")
def channel(service: Service) -> Iterator[grpc.Channel]:
    with service.channel() as channel:
        yield channel


def end_of(channel: grpc.Channel, *messages: Request | bytes) -> tuple[int, str | None]:
    """Send the messages of one session; return the number of answers, and the reason of the error that ends it."""
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
    found = Request.FromString(data + b"\x92\x06" + number + bytes(length))
    assert found.ByteSize() == size
    return found


def opened(*tokens: int, **fields: Any) -> Request:
    """An opening that asks for nothing."""
    return opening(*tokens, nodes=None, **fields)


def costing(*costs: float) -> Request:
    return Request(draft=pb.TreeRequest(costs=pb.StepCosts(of_step=costs)))


def rows_of(count: int, k: int = 2) -> pb.TopK:
    return top_k([[3] * k] * count)


def selecting(*names: str, **fields: Any) -> Request:
    return opening(1, 2, selection=pb.Selection(datastores=names, **fields))


BAD: dict[str, tuple[list[Request | bytes], str]] = {
    # Out of order.
    "nothing first": ([b""], "MESSAGE_ORDER"),
    "a request before the opening": ([step()], "MESSAGE_ORDER"),
    "tokens before the opening": ([step(3, nodes=None)], "MESSAGE_ORDER"),
    "a second opening": ([FIRST, FIRST], "MESSAGE_ORDER"),
    "a second opening without a request": ([opened(1), opened(1)], "MESSAGE_ORDER"),
    # Not messages, or too large ones.
    "malformed at first": ([b"\xff\xff"], "CONTEXT_TYPE"),
    "malformed later": ([FIRST, b"\x0a\xff"], "CONTEXT_TYPE"),
    "an opening that is too large": ([padded(FIRST, LARGEST + 4 * TEXT + 1)], "MESSAGE_SIZE"),
    "a message that is too large": ([FIRST, padded(step(3), LARGEST + 1)], "MESSAGE_SIZE"),
    # Text.
    "a token outside the vocabulary": ([opening(1, 300)], "TOKEN_RANGE"),
    "the greatest token": ([opening(2**32 - 1, 1)], "TOKEN_RANGE"),
    "an accepted token outside the vocabulary": ([FIRST, step(3, 300)], "TOKEN_RANGE"),
    "datastores of two tokenizers": ([selecting("other", "a")], "TOKENIZER_MISMATCH"),
    "a text that is too long": ([opening(*[1] * (TEXT + 1))], "LIMIT"),
    "a text that is too long with its first tokens": (
        [Request(open=opened(*[1] * TEXT).open, accepted=[pb.Accepted(tokens=[1])])],
        "LIMIT",
    ),
    "a text that becomes too long": ([opening(*[1] * 1400), step(*[1] * 100), step(1)], "LIMIT"),
    "a text that becomes too long by many": ([FIRST, Request(accepted=[pb.Accepted(tokens=[1] * 150)] * 10)], "LIMIT"),
    # Accepted.
    "nothing accepted": ([FIRST, Request(accepted=[pb.Accepted()])], "EMPTY_CONTEXT"),
    "nothing accepted after something": (
        [FIRST, Request(accepted=[pb.Accepted(tokens=[3]), pb.Accepted(top_k=rows_of(1))])],
        "EMPTY_CONTEXT",
    ),
    "1,025 accepted": ([FIRST, Request(accepted=[pb.Accepted(tokens=[3])] * 1025)], "LIMIT"),
    # Most likely tokens.
    "rows of nothing": ([FIRST, step(3, top_k=pb.TopK(tokens=bytes(8)))], "LIMIT"),
    "rows of 65": ([FIRST, step(3, top_k=rows_of(1, 65))], "LIMIT"),
    "rows of very many": ([FIRST, step(3, top_k=pb.TopK(k=2**32 - 1))], "LIMIT"),
    "half a row": ([FIRST, step(3, top_k=pb.TopK(k=2, tokens=bytes(12)))], "CONTEXT_TYPE"),
    "fewer rows than tokens": ([FIRST, step(3, 4, top_k=rows_of(1))], "CONTEXT_TYPE"),
    "more rows than text": ([FIRST, step(3, top_k=rows_of(4))], "CONTEXT_TYPE"),
    "rows of nothing for nodes": ([FIRST, step(3, node_top_k=pb.TopK())], "LIMIT"),
    "rows of 65 for nodes": ([FIRST, step(3, node_top_k=rows_of(9, 65))], "LIMIT"),
    "half a row for nodes": ([FIRST, step(3, node_top_k=pb.TopK(k=64, tokens=bytes(4)))], "CONTEXT_TYPE"),
    "rows for nodes of another tree": ([FIRST, step(3, node_top_k=rows_of(99))], "CONTEXT_TYPE"),
    "rows for nodes of no tree": ([opened(1, 2), step(3, node_top_k=rows_of(5))], "CONTEXT_TYPE"),
    "rows for nodes of the tree before": ([FIRST, step(3, nodes=None), step(4, node_top_k=rows_of(5))], "CONTEXT_TYPE"),
    "rows of nothing for the prompt": ([opening(1, 2, top_k=pb.TopK())], "LIMIT"),
    "rows of 65 for the prompt": ([opening(1, 2, top_k=rows_of(1, 65))], "LIMIT"),
    "half a row for the prompt": ([opening(1, 2, top_k=pb.TopK(k=3, tokens=bytes(16)))], "CONTEXT_TYPE"),
    "more rows than text at first": ([opening(1, 2, top_k=rows_of(3))], "CONTEXT_TYPE"),
    # Trees.
    "1,025 nodes": ([opening(1, 2, nodes=1025)], "LIMIT"),
    "2,000 nodes later": ([FIRST, step(3, nodes=2000)], "LIMIT"),
    "the most nodes that can be written": ([FIRST, step(3, nodes=2**32 - 1)], "LIMIT"),
    "a suffix of 65": ([opening(1, 2, max_suffix=65)], "LIMIT"),
    "a cost that is no number": ([FIRST, costing(1.0, NAN)], "LIMIT"),
    "a cost without end": ([FIRST, costing(1.0, INFINITE)], "LIMIT"),
    "a cost of nothing": ([FIRST, costing(0.0, 1.0)], "LIMIT"),
    "a cost below nothing": ([FIRST, costing(1.0, -1.0)], "LIMIT"),
    "1,026 costs": ([FIRST, costing(*[1.0] * 1026)], "LIMIT"),
    "a score that is no number": ([FIRST, Request(draft=pb.TreeRequest(min_score=NAN))], "LIMIT"),
    "a score below 0": ([FIRST, Request(draft=pb.TreeRequest(min_score=-0.5))], "LIMIT"),
    # What sessions share.
    "a key of 65 bytes": ([opening(1, 2, recycled_logits=b"k" * 65)], "LIMIT"),
    "a name of 257 bytes": ([opening(1, 2, shared_calibration="n" * 257)], "LIMIT"),
    "a name of 129 long characters": ([opening(1, 2, shared_calibration="\u00e9" * 129)], "LIMIT"),
    # Datastores.
    "seven datastores": ([selecting(*NAMES)], "LIMIT"),
    "very many datastores": ([selecting(*["a"] * 65)], "LIMIT"),
    "a datastore twice": ([selecting("a", "b", "a")], "LIMIT"),
    "an unknown datastore": ([selecting("a", "none")], "UNKNOWN_DATASTORE"),
    "another tokenizer": ([selecting("a", tokenizer_fingerprint=identity(301).fingerprint)], "TOKENIZER_MISMATCH"),
    "no tokenizer of any": ([selecting(tokenizer_fingerprint="sha256:")], "TOKENIZER_MISMATCH"),
    "no selection among several tokenizers": ([selecting()], "TOKENIZER_MISMATCH"),
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
    "accepted before a tree was drafted": [opened(1, 2), step(3, nodes=None), step(4)],
    "a text that grows up to the limit": [opening(*[1] * (TEXT - 1)), step(1)],
    "tokens with the opening": [Request(open=FIRST.open, accepted=[pb.Accepted(tokens=[3])], draft=pb.TreeRequest())],
    "asked again": [FIRST, step(), step()],
    "1,024 accepted": [opened(1), Request(accepted=[pb.Accepted(tokens=[3])] * 1024), step()],
    "the largest messages": [padded(FIRST, LARGEST + 4 * TEXT), padded(step(3), LARGEST)],
    "rows of 64": [opening(1, 2, top_k=rows_of(2, 64)), step(3, top_k=rows_of(3, 64))],
    "rows of tokens that no datastore knows": [FIRST, step(3, top_k=top_k([[300, 2**31 - 1, -1, -7]]))],
    "the row of the text without a tree": [opened(1, 2), step(3, node_top_k=rows_of(1))],
    "the largest tree": [opening(1, 2, nodes=1024), step(3, nodes=0)],
    "costs of one node": [opening(1, 2), costing(1.0)],
    "costs that are taken back": [opening(1, 2), costing(1.0, 1.1), costing()],
    "the longest names": [opening(1, 2, recycled_logits=b"\xff" * 64)],
    "six datastores": [selecting(*NAMES[:6])],
    "all of a tokenizer": [selecting(tokenizer_fingerprint=identity(301).fingerprint)],
}


@pytest.mark.parametrize("messages", GOOD.values(), ids=GOOD)
def test_what_is_just_within_measure_is_answered(channel: grpc.Channel, messages: list[Request]) -> None:
    assert end_of(channel, *messages) == (trees_asked(messages), None)


def test_a_stream_is_the_session_in_process(service: Service, phrases: Path) -> None:
    """Answers are the trees that the same calls give here, and their sequences those of the requests."""
    stores = [Datastore.open(phrases) for _ in range(3)]
    sources = [*stores, PromptLookup(), RecycledLogits()]
    with service.stub() as stub, DraftSession(sources, [1, 2, 3, 1, 2]) as here:
        talk = SessionTalk(stub)
        fields = {"prompt_lookup": True, "recycled_logits": b""}
        first = opening(1, 2, 3, 1, 2, nodes=4, selection=THREE, **fields)
        first.draft.sequence = 2**64 - 1
        answer = talk.ask(first)
        assert (answer.sequence, list(answer.datastores)) == (2**64 - 1, ["a", "b", "c"])
        tree = here.draft(4)
        for turn in range(4):
            assert tree.scores is not None
            assert tree.origins is not None
            columns = (tree.tokens, tree.scores, tree.parents, tree.origins)
            assert Nodes.of(answer.nodes) == Nodes(*(column.tolist() for column in columns))
            rows = [[5 + node, 6] for node in range(1 + len(tree))]
            here.accept([3, 4], [[4, 7], [5, -1]], node_top_k=rows)
            talk.tell(step(3, 4, nodes=None, top_k=top_k([[4, 7], [5, -1]]), node_top_k=top_k(rows)))
            here.accept([1 + turn])
            costs = [1.0, 1.2, 1.3] if turn == 1 else None
            ask = step(1 + turn, nodes=8)
            ask.draft.sequence = turn
            if costs:
                ask.draft.costs.of_step.extend(costs)
            answer = talk.ask(ask)
            assert (answer.sequence, list(answer.datastores)) == (turn, [])
            tree = here.draft(8, [1.0, 1.2, 1.3] if turn >= 1 else None)
        talk.close()
