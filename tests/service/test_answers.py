"""Answers of a faulty service: refused by name, never a broken tree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rest_store.datastore.kernel import native_kernel
from rest_store.datastore.tree import TokenTree
from rest_store.errors import ProtocolError
from rest_store.service.client import answers
from rest_store.service.client.answers import native_order, parse, read_tree, served_by, tree_fault
from rest_store.service.client.codec import Codec
from rest_store.service.client.counters import ClientCounters
from rest_store.service.client.requests import Requests
from rest_store.v1 import datastore_pb2 as pb
from tests.shared.strategies import refused

VOCABULARY = 300


def read(message: pb.Tree) -> TokenTree:
    return read_tree(message, VOCABULARY, (16, 16, 10), "peer")


@pytest.fixture(autouse=True, params=["native", "numpy"])
def verified_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "numpy":
        monkeypatch.setattr(answers, "_tree_fault", tree_fault)


@st.composite
def token_trees(draw: st.DrawFn) -> TokenTree:
    size = draw(st.integers(0, 16))
    depths: list[int] = []
    parents: list[int] = []
    for node in range(size):
        parent = draw(st.integers(-1, node - 1).filter(lambda p: p < 0 or depths[p] < 10))
        parents.append(parent)
        depths.append(1 if parent < 0 else depths[parent] + 1)
    tokens = draw(st.lists(st.integers(0, VOCABULARY - 1), min_size=size, max_size=size))
    counts = draw(st.lists(st.integers(1, 2**62), min_size=size, max_size=size))
    length = draw(st.integers(1 if size else 0, 16))
    return TokenTree(tokens, parents, counts, match=(length, 5 if length else 0))  # type: ignore[arg-type]


def message(tree: TokenTree) -> pb.Tree:
    return pb.Tree(nodes=tree.packed, match_length=tree.match.length, match_count=tree.match.count)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(token_trees(), max_size=8))
def test_trees_arrive_as_they_were(trees: list[TokenTree]) -> None:
    assert [read(message(tree)) for tree in trees] == trees


def is_tree(nodes: bytes) -> bool:
    """Whether packed nodes are a tree of the vocabulary, at most 10 deep, by the definition in tree.py."""
    size = len(nodes) // 20
    counts, columns = np.frombuffer(nodes, np.int64, size), np.frombuffer(nodes, np.int32, offset=8 * size)
    tokens, parents, depths = columns.reshape(3, size).tolist()
    above = [depths[parent] if 0 <= parent < node else 0 for node, parent in enumerate(parents)]
    return (
        all(0 <= token < VOCABULARY for token in tokens)
        and all(-1 <= parent < node for node, parent in enumerate(parents))
        and depths == [depth + 1 for depth in above]
        and max(depths) <= 10
        and int(counts.min()) >= 1
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(token_trees().filter(len), st.data())
def test_a_damaged_tree_is_refused_unless_it_is_still_a_tree(tree: TokenTree, data: st.DataObject) -> None:
    nodes = bytearray(tree.packed)
    place = data.draw(st.integers(0, len(nodes) - 1))
    nodes[place] ^= data.draw(st.integers(1, 255))
    damaged = pb.Tree(nodes=bytes(nodes), match_length=1, match_count=1)
    if is_tree(bytes(nodes)):
        assert read(damaged).packed == bytes(nodes)
    else:
        refused(ProtocolError, lambda: read(damaged), "of a draft tree")


def packed(tokens: Any, parents: Any, depths: Any, counts: Any) -> bytes:
    columns = [np.array(counts, np.int64), *(np.array(column, np.int32) for column in (tokens, parents, depths))]
    return b"".join(column.tobytes() for column in columns)


@pytest.mark.parametrize(
    ("what", "tree"),
    [
        ("nodes", pb.Tree(nodes=b"x" * 19, match_length=1, match_count=1)),
        ("nodes", pb.Tree(nodes=bytes(20 * 17), match_length=1, match_count=1)),
        ("match", pb.Tree(match_length=17, match_count=1)),
        ("match", pb.Tree(match_length=1, match_count=0)),
        ("match", pb.Tree(match_length=0, match_count=1)),
        ("match", pb.Tree(nodes=packed([1], [-1], [1], [1]))),
        ("token ids", pb.Tree(nodes=packed([VOCABULARY], [-1], [1], [1]), match_length=1, match_count=1)),
        ("token ids", pb.Tree(nodes=packed([-1], [-1], [1], [1]), match_length=1, match_count=1)),
        ("parents", pb.Tree(nodes=packed([1], [0], [1], [1]), match_length=1, match_count=1)),
        ("parents", pb.Tree(nodes=packed([1, 2], [-1, -2], [1, 1], [1, 1]), match_length=1, match_count=1)),
        ("parents", pb.Tree(nodes=packed([1], [2**31 - 1], [1], [1]), match_length=1, match_count=1)),
        ("depths", pb.Tree(nodes=packed([1, 2], [-1, 0], [1, 1], [1, 1]), match_length=1, match_count=1)),
        ("depths", pb.Tree(nodes=packed([1], [-1], [2], [1]), match_length=1, match_count=1)),
        (
            "depths",
            pb.Tree(nodes=packed([1] * 11, range(-1, 10), range(1, 12), [1] * 11), match_length=1, match_count=1),
        ),
        ("counts", pb.Tree(nodes=packed([1], [-1], [1], [0]), match_length=1, match_count=1)),
    ],
)
def test_each_fault_of_a_tree_is_named(what: str, tree: pb.Tree) -> None:
    refused(ProtocolError, lambda: read(tree), "peer", f"{what} of a draft tree")


def test_bringing_nodes_into_this_machines_order_keeps_them() -> None:
    tree = TokenTree([1, 2], [-1, 0], [7, 3])
    assert native_order(tree.packed) == tree.packed


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=60))
def test_malformed_messages_are_refused(data: bytes) -> None:
    try:
        pb.DraftResponse.FromString(data)
    except DecodeError:
        refused(ProtocolError, lambda: parse(pb.DraftResponse, data, "peer", 60), "peer: DraftResponse")
    else:
        assert isinstance(parse(pb.DraftResponse, data, "peer", 60), pb.DraftResponse)


def test_a_message_larger_than_an_answer_can_be_is_refused_unread() -> None:
    """Empty parts take two bytes in a message and dozens in memory."""
    codec = Codec([], None)
    codec.vocabulary_size = VOCABULARY
    requests = Requests(codec, ClientCounters())
    drafts = requests.draft_batch([[1], [2]], 64, 16, 10)
    assert drafts is not None
    asked: list[Any] = [
        requests.describe,
        requests.match([1], 16),
        requests.count([1]),
        requests.draft([1], 64, 16, 10),
        drafts,
        requests.evidence([1], TokenTree([], [], []), 64, 16, None),
    ]
    for request in asked:
        message = refused(ProtocolError, lambda: request.decode(b"\x0a\x00" * 2_200_000, "peer"), "peer: size of a ")  # noqa: B023
        assert "4400000 bytes, expected at most " in message


def test_the_largest_answers_are_taken() -> None:
    """Of as many datastores as may answer, with long names and full trees and evidence."""
    codec = Codec([], None)
    codec.vocabulary_size = VOCABULARY
    requests = Requests(codec, ClientCounters())
    names = [f"{place:01000}" for place in range(codec.max_datastores)]
    tree = message(TokenTree([1] * 32, range(-1, 31), range(32, 0, -1), match=(16, 2**62)))  # type: ignore[arg-type]
    drafts = requests.draft_batch([[1], [2]], 32, 16, 32)
    assert drafts is not None
    trees = pb.DraftResponse(trees=[tree] * (2 * len(names)), datastores=names)
    assert len(drafts.decode(trees.SerializeToString(), "peer")) == 2
    counts = pb.CountResponse(counts=[2**62] * len(names), datastores=names)
    assert requests.count([1]).decode(counts.SerializeToString(), "peer") == 2**62 * len(names)
    match = pb.LongestSuffixMatchResponse.Match(length=16, count=2**62)
    matches = [pb.LongestSuffixMatchResponse.Match(datastore=name, length=16, count=2**62) for name in names]
    best = requests.match([1], 16).decode(pb.LongestSuffixMatchResponse(matches=matches).SerializeToString(), "peer")
    assert best == (match.length, match.count)
    rows = 16 + 1023 * 6 + 1024 * (1 + 6 * (11 + 16 * 5))
    packed_rows = [pb.Evidence(rows=bytes(rows))] * len(names)
    evidence = requests.evidence([1], TokenTree([], [], []), 1024, 16, 1024)
    largest = pb.DraftResponse(evidence=packed_rows, datastores=names)
    refused(ProtocolError, lambda: evidence.decode(largest.SerializeToString(), "peer"), "evidence", "of 0")


def test_more_datastores_than_may_answer_are_refused() -> None:
    codec = Codec([], None)
    refused(ProtocolError, lambda: codec.require_names((str(place) for place in range(65)), "peer"), "at most 64")
    described = [description(name=str(place)) for place in range(1025)]
    refused(ProtocolError, lambda: served_by(pb.DescribeResponse(datastores=described), "peer"), "1025", "at most 1024")
    codec.learn(pb.DescribeResponse(datastores=described[:100]), "peer")
    assert len(codec.require_names((str(place) for place in range(100)), "peer")) == 100


@pytest.mark.parametrize(("datastores", "max_contexts", "rows"), [(1, 1024, 72), (2, 100, 50), (3, 100, 33), (3, 2, 1)])
def test_rows_are_no_more_than_the_contexts_of_a_request_allow(datastores: int, max_contexts: int, rows: int) -> None:
    codec = Codec([], None)
    described = [description(name=str(place)) for place in range(datastores)]
    limits = pb.ServiceLimits(max_evidence_rows=1024, max_contexts=max_contexts)
    codec.learn(pb.DescribeResponse(datastores=described, limits=limits), "peer")
    assert codec.bounded(pb.EvidenceLimits(max_nodes=64, max_rows=72)).max_rows == rows


def description(**changes: Any) -> pb.DatastoreDescription:
    tokenizer = pb.TokenizerDescription(name="t", fingerprint="sha256:" + "0" * 64, vocabulary_size=9)
    return pb.DatastoreDescription(**({"name": "a", "tokenizer": tokenizer} | changes))


@pytest.mark.parametrize(
    "datastores",
    [
        [],
        [description(), description()],
        [description(tokenizer=pb.TokenizerDescription(name="t", fingerprint="md5", vocabulary_size=9))],
        [description(tokenizer=pb.TokenizerDescription(name="t", fingerprint="sha256:" + "0" * 64))],
        [description(built={"seconds": 2**62})],
    ],
)
def test_invalid_descriptions_are_refused(datastores: list[pb.DatastoreDescription]) -> None:
    refused(ProtocolError, lambda: served_by(pb.DescribeResponse(datastores=datastores), "peer"))


def test_a_description_is_read() -> None:
    (found,) = served_by(pb.DescribeResponse(datastores=[description(token_count=5, generation=2)]), "peer")
    assert (found.name, found.token_count, found.generation, found.tokenizer.vocabulary_size) == ("a", 5, 2, 9)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(token_trees().filter(len), st.lists(st.tuples(st.integers(0, 319), st.integers(0, 255)), max_size=3))
def test_kernel_and_numpy_refuse_the_same(tree: TokenTree, changes: list[tuple[int, int]]) -> None:
    nodes = bytearray(tree.packed)
    for place, value in changes:
        nodes[place % len(nodes)] = value
    native = native_kernel().tree_fault
    faults = [check(bytes(nodes), VOCABULARY, 10) for check in (native, tree_fault)]
    assert bool(faults[0]) is bool(faults[1])
