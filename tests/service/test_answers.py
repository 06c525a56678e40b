"""Answers of a faulty service: refused by name, never a broken tree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rest_store.datastore.tree import SuffixMatch, TokenTree
from rest_store.datastore.validation import TreeLimits
from rest_store.errors import ProtocolError
from rest_store.service.client.descriptions import service_info
from rest_store.service.client.requests import parse
from rest_store.service.client.trees import read_session_tree, read_tree, sum_trees
from rest_store.v1 import datastore_pb2 as pb
from tests.shared.sessions import Nodes
from tests.shared.strategies import refused

VOCABULARY = 300


def read(message: pb.Tree) -> TokenTree:
    return read_tree(message, VOCABULARY, TreeLimits(16, 16, 10), "peer")


def packed(tokens: Any, parents: Any, depths: Any, counts: Any) -> bytes:
    columns = [
        np.array(counts, np.int64),
        *(np.array(column, np.int32) for column in (tokens, parents, depths)),
    ]
    return b"".join(column.tobytes() for column in columns)


@pytest.mark.parametrize(
    ("what", "tree"),
    [
        ("nodes", pb.Tree(nodes=b"x" * 19, match_length=1, match_count=1)),
        ("nodes", pb.Tree(nodes=bytes(20 * 17), match_length=1, match_count=1)),
        ("match", pb.Tree(match_length=17, match_count=1)),
        ("match", pb.Tree(nodes=packed([1], [-1], [1], [1]))),
        (
            "token ids",
            pb.Tree(nodes=packed([VOCABULARY], [-1], [1], [1]), match_length=1, match_count=1),
        ),
        (
            "parents",
            pb.Tree(nodes=packed([1, 2], [-1, -2], [1, 1], [1, 1]), match_length=1, match_count=1),
        ),
        ("depths", pb.Tree(nodes=packed([1], [-1], [2], [1]), match_length=1, match_count=1)),
        (
            "depths",
            pb.Tree(
                nodes=packed([1] * 11, range(-1, 10), range(1, 12), [1] * 11),
                match_length=1,
                match_count=1,
            ),
        ),
        ("counts", pb.Tree(nodes=packed([1], [-1], [1], [0]), match_length=1, match_count=1)),
    ],
)
def test_each_fault_of_a_tree_is_named(what: str, tree: pb.Tree) -> None:
    refused(ProtocolError, lambda: read(tree), "peer", f"{what} of a draft tree")


NODES = {
    "tokens": [1, 2, 3],
    "scores": [0.9, 0.5, 0.25],
    "parents": [-1, 0, -1],
    "origins": [1, 2, 4],
    "depths": [1, 2, 1],
}
SWAPPED = bytes(range(256)).translate(bytes.maketrans(b"\1\2", b"\2\1"))


def session_tree(**columns: Any) -> pb.Tree:
    return Nodes(**(NODES | columns)).message()


@pytest.mark.parametrize(
    ("what", "tree", "max_nodes"),
    [
        ("nodes", pb.Tree(nodes=session_tree().nodes[:-1]), 3),
        ("nodes", session_tree(), 2),
        ("token ids", session_tree(tokens=[1, VOCABULARY, 3]), 3),
        ("token ids", session_tree(tokens=[1, -1, 3]), 3),
        ("parents", session_tree(parents=[0, 0, 0]), 3),
        ("parents", session_tree(parents=[-1, 2, -1]), 3),
        ("parents", session_tree(parents=[-2, 0, 0]), 3),
        ("depths", session_tree(depths=[1, 1, 1]), 3),
        ("scores", session_tree(scores=[0.9, 0.5]), 3),
        ("scores", session_tree(scores=[]), 3),
        ("origins", session_tree(origins=[1, 2, 4, 4]), 3),
    ],
)
def test_each_fault_of_a_tree_of_a_session_is_named(
    what: str, tree: pb.Tree, max_nodes: int
) -> None:
    refused(
        ProtocolError,
        lambda: read_session_tree(tree, VOCABULARY, max_nodes, SWAPPED, "peer"),
        f"peer: {what} of a draft tree",
    )


def test_a_tree_of_a_session_is_read_with_the_origins_of_the_client() -> None:
    tree = read_session_tree(session_tree(), VOCABULARY, 3, SWAPPED, "peer")
    assert tree == TokenTree(
        [1, 2, 3], [-1, 0, -1], [0, 0, 0], scores=[0.9, 0.5, 0.25], origins=[2, 1, 4]
    )


def test_a_peer_that_says_ok_and_nothing_else_is_refused() -> None:
    refused(
        ProtocolError,
        lambda: parse(pb.DraftResponse, None, "peer"),
        "peer: DraftResponse is no message",
    )  # type: ignore[arg-type]


def description(**changes: Any) -> pb.DatastoreDescription:
    tokenizer = pb.TokenizerDescription(
        name="t", fingerprint="sha256:" + "0" * 64, vocabulary_size=9
    )
    return pb.DatastoreDescription(**({"name": "a", "tokenizer": tokenizer} | changes))


@pytest.mark.parametrize(
    "datastores",
    [
        [],
        [description(), description()],
        [
            description(
                tokenizer=pb.TokenizerDescription(name="t", fingerprint="md5", vocabulary_size=9)
            )
        ],
        [
            description(
                tokenizer=pb.TokenizerDescription(name="t", fingerprint="sha256:" + "0" * 64)
            )
        ],
        [description(built=2**62)],
    ],
)
def test_invalid_descriptions_are_refused(datastores: list[pb.DatastoreDescription]) -> None:
    refused(
        ProtocolError,
        lambda: service_info(pb.DescribeResponse(datastores=datastores), (), None, "peer"),
    )


def test_trees_of_partitions_are_summed_by_path() -> None:
    one = TokenTree([1, 2, 3], [-1, 0, -1], [5, 4, 3], match=SuffixMatch(2, 8))
    other = TokenTree([3, 1, 4], [-1, -1, 0], [4, 2, 4], match=SuffixMatch(2, 6))
    shorter = TokenTree([9], [-1], [99], match=SuffixMatch(1, 99))
    whole = sum_trees([one, shorter, other], 4)
    assert whole == TokenTree([1, 3, 2, 4], [-1, -1, 0, 1], [7, 7, 4, 4], match=SuffixMatch(2, 14))
    assert sum_trees([one, other], 3) == TokenTree(
        [1, 3, 2], [-1, -1, 0], [7, 7, 4], match=SuffixMatch(2, 14)
    )
    assert sum_trees([shorter, one], 2) is one
