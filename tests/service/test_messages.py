"""Plain messages of a service, read and written without protobuf, are those of protobuf; what is not plain is left."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rest_store.datastore.kernel import native_messages
from rest_store.v1 import datastore_pb2 as pb

messages = native_messages()
pytestmark = pytest.mark.skipif(messages is None, reason="the native kernel was not built")

TOKENS = st.lists(st.integers(0, 2**32 - 1) | st.integers(0, 200), max_size=150)
NUMBERS = st.sampled_from([0, 1, 127, 128, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1)


def varint(value: int) -> bytes:
    parts = []
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


@given(TOKENS, NUMBERS, st.lists(st.integers(0, 9), max_size=64))
def test_a_step_is_read_as_protobuf_reads_it(tokens: list[int], sequence: int, before: list[int]) -> None:
    tail = list(before)
    data = pb.DraftStreamRequest(tokens=tokens, sequence=sequence).SerializeToString()
    assert messages.read_step(data, tail) == sequence
    assert tail == (before + tokens)[-64:]


@given(st.lists(st.tuples(st.booleans(), TOKENS.filter(bool)), max_size=5), NUMBERS)
def test_tokens_may_come_packed_or_one_by_one_and_in_pieces(
    pieces: list[tuple[bool, list[int]]], sequence: int
) -> None:
    data = b"\x28" + varint(sequence)
    for packed, tokens in pieces:
        encoded = [varint(token) for token in tokens]
        joined = b"".join(encoded)
        data += b"\x1a" + varint(len(joined)) + joined if packed else b"".join(b"\x18" + one for one in encoded)
    expected = pb.DraftStreamRequest.FromString(data)
    tail: list[int] = []
    assert messages.read_step(data, tail) == expected.sequence == sequence
    assert tail == list(expected.tokens)[-64:]


@given(
    TOKENS,
    st.lists(st.text(max_size=9), max_size=3),
    st.text(max_size=80),
    st.tuples(*[st.integers(0, 2**32 - 1)] * 3) | st.none(),
)
def test_a_draft_request_is_read_as_protobuf_reads_it(
    tokens: list[int], names: list[str], fingerprint: str, limits: tuple[int, int, int] | None
) -> None:
    request = pb.DraftRequest(contexts=[pb.Context(tokens=tokens)])
    if names or fingerprint:
        request.selection.datastores.extend(names)
        request.selection.tokenizer_fingerprint = fingerprint
    if limits is not None:
        request.limits.max_nodes, request.limits.max_suffix, request.limits.max_depth = limits
    head, read = messages.read_draft(request.SerializeToString())
    assert read == tokens[-64:]
    del request.contexts[:]
    assert head == request.SerializeToString()


TREE = pb.Proposals(tokens=[1], parents=[-1])
NOT_PLAIN_STEPS = {
    "a selection": pb.DraftStreamRequest(tokens=[1], selection=pb.Selection()).SerializeToString(),
    "limits": pb.DraftStreamRequest(tokens=[1], limits=pb.DraftLimits(max_nodes=3)).SerializeToString(),
    "proposals": pb.DraftStreamRequest(tokens=[1], proposals=TREE).SerializeToString(),
    "an unknown field": b"\x18\x01\x30\x01",
    "a tag of a large number": b"\xf8\xff\xff\xff\x0f\x01",
    "a token of 33 bits": b"\x18" + varint(2**32),
    "tokens of another type": b"\x1d\x01\x00\x00\x00",
    "a sequence of another type": b"\x29" + bytes(8),
    "an end within a tag": b"\x18\x01\x98",
    "an end within a token": b"\x18\x80",
    "an end within packed tokens": b"\x1a\x02\x01\x80",
    "fewer bytes than said": b"\x1a\x05\x01",
    "a length of 64 bits": b"\x1a" + varint(2**64 - 1) + b"\x01",
    "a number of 65 bits": b"\x28" + b"\xff" * 9 + b"\x02",
    "a number of eleven bytes": b"\x28" + b"\x80" * 10 + b"\x01",
}


@pytest.mark.parametrize("data", NOT_PLAIN_STEPS.values(), ids=NOT_PLAIN_STEPS)
def test_a_step_that_is_not_plain_is_left_and_nothing_taken(data: bytes) -> None:
    tail = [7]
    assert messages.read_step(data, tail) is None
    assert tail == [7]


CONTEXT = pb.Context(tokens=[1])
ENCODED = pb.DraftRequest(contexts=[CONTEXT]).SerializeToString()
NOT_PLAIN_DRAFTS = {
    "nothing": b"",
    "no context": pb.DraftRequest(limits=pb.DraftLimits(max_nodes=3)).SerializeToString(),
    "two contexts": ENCODED * 2,
    "proposals": pb.DraftRequest(contexts=[pb.Context(tokens=[1], proposals=TREE)]).SerializeToString(),
    "limits after the context": ENCODED + b"\x12\x02\x08\x03",
    "limits twice": b"\x12\x02\x08\x03" * 2 + ENCODED,
    "an unknown field": ENCODED + b"\x22\x00",
    "an unknown field of the context": b"\x1a\x04\x08\x01\x18\x01",
    "a field of another type": b"\x08\x01" + ENCODED,
    "a tag of the number 0": b"\x02\x00" + ENCODED,
    "fewer bytes than said": b"\x1a\x05\x08\x01",
    "a token of 33 bits": b"\x1a\x06\x08" + varint(2**32),
}


@pytest.mark.parametrize("data", NOT_PLAIN_DRAFTS.values(), ids=NOT_PLAIN_DRAFTS)
def test_a_draft_request_that_is_not_plain_is_left(data: bytes) -> None:
    assert messages.read_draft(data) is None


@given(st.binary(max_size=60))
def test_whatever_is_read_without_protobuf_is_what_protobuf_reads(data: bytes) -> None:
    tail: list[int] = []
    sequence = messages.read_step(data, tail)
    if sequence is not None:
        step = pb.DraftStreamRequest.FromString(data)
        assert (step.sequence, list(step.tokens)[-64:]) == (sequence, tail)
        assert not any(step.HasField(name) for name in ("selection", "limits", "proposals"))
    read = messages.read_draft(data)
    if read is not None:
        request = pb.DraftRequest.FromString(data)
        assert [list(context.tokens)[-64:] for context in request.contexts] == [read[1]]
        assert not request.contexts[0].HasField("proposals")


@given(st.binary(max_size=300), st.integers(0, 2**32 - 1), NUMBERS, st.lists(st.text(max_size=9), max_size=3), NUMBERS)
def test_answers_are_written_as_protobuf_writes_them(
    nodes: bytes, length: int, count: int, names: list[str], sequence: int
) -> None:
    tree = pb.Tree(nodes=nodes, match_length=length, match_count=count)
    rest = pb.DraftResponse(datastores=names).SerializeToString()
    streamed = pb.DraftStreamResponse(trees=[tree], datastores=names, sequence=sequence)
    assert messages.tree_message(nodes, length, count, rest, sequence) == streamed.SerializeToString()
    drafted = pb.DraftResponse(trees=[tree], datastores=names)
    assert messages.tree_message(nodes, length, count, rest, 0) == drafted.SerializeToString()
