"""`TokenTree`: its columns, mask, children, paths, equality and errors."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rest_store.datastore.tree import SuffixMatch, TokenTree
from rest_store.errors import ArgumentError
from tests.shared.strategies import refused

Lists = tuple[list[int], list[int], list[int]]  # tokens, parents, counts


@st.composite
def trees(draw: st.DrawFn) -> Lists:
    """Any tree: siblings may have equal tokens, parents are anywhere before their children."""
    parents = [draw(st.integers(-1, node - 1)) for node in range(draw(st.integers(0, 40)))]
    size = len(parents)
    tokens = draw(
        st.lists(st.integers(0, 4) | st.integers(0, 2**31 - 1), min_size=size, max_size=size)
    )
    counts = draw(st.lists(st.integers(1, 2**63 - 1), min_size=size, max_size=size))
    return tokens, parents, counts


def path_to(node: int, parents: list[int]) -> list[int]:
    return [] if node < 0 else [*path_to(parents[node], parents), node]


@given(trees())
def test_columns(lists: Lists) -> None:
    tokens, parents, counts = lists
    tree = TokenTree(tokens, parents, counts, match=SuffixMatch(3, 17))
    assert len(tree) == len(tokens)
    assert (tree.tokens.tolist(), tree.parents.tolist(), tree.counts.tolist()) == lists
    assert tree.depths.tolist() == [len(path_to(node, parents)) for node in range(len(tokens))]
    assert [tree.tokens.dtype, tree.parents.dtype, tree.depths.dtype] == [np.int32] * 3
    assert tree.counts.dtype == np.int64
    assert tree.match == SuffixMatch(length=3, count=17)


@given(trees())
def test_the_mask_shows_each_node_itself_and_its_ancestors(lists: Lists) -> None:
    parents = lists[1]
    mask = TokenTree(*lists).mask()
    assert mask.dtype == np.bool_
    assert mask.shape == (len(parents), len(parents))
    for node in range(len(parents)):
        assert np.flatnonzero(mask[node]).tolist() == path_to(node, parents)


@given(trees())
def test_children(lists: Lists) -> None:
    tree = TokenTree(*lists)
    for node in range(-1, len(tree)):
        assert tree.children(node).tolist() == [
            child for child, parent in enumerate(lists[1]) if parent == node
        ]


@given(trees(), st.data())
def test_the_longest_path_follows_the_tokens_as_far_as_the_tree_goes(
    lists: Lists, data: st.DataObject
) -> None:
    tokens, parents, _ = lists
    node = data.draw(st.integers(-1, len(tokens) - 1))
    query = [tokens[place] for place in path_to(node, parents)] + data.draw(
        st.lists(st.integers(0, 4), max_size=3)
    )
    walked: list[int] = []
    for token in query:  # of equal siblings, the first
        above = walked[-1] if walked else -1
        same_token = [
            child
            for child in range(len(tokens))
            if (parents[child], tokens[child]) == (above, token)
        ]
        if not same_token:
            break
        walked.append(same_token[0])
    path = TokenTree(*lists).longest_path(np.array(query, dtype=np.int64))
    assert path.tolist() == walked
    assert path.dtype == np.int64


@given(trees(), trees(), st.integers(0, 2), st.integers(0, 2))
def test_equal_trees_are_those_of_equal_content(
    one: Lists, other: Lists, length: int, another_length: int
) -> None:
    tree = TokenTree(*one, match=SuffixMatch(length, 1))
    same = TokenTree(
        *(np.array(values, dtype=np.int64) for values in one), match=SuffixMatch(length, 1)
    )
    assert tree == same
    assert hash(tree) == hash(same)
    different = TokenTree(*other, match=SuffixMatch(another_length, 1))
    assert (tree == different) == (one == other and length == another_length)
    assert tree != one


def test_arrays_are_read_only() -> None:
    tree = TokenTree([1, 2], [-1, 0], [3, 2])
    for column in (tree.tokens, tree.parents, tree.depths, tree.counts):
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 0


def test_a_tree_does_not_change_with_what_it_was_made_of() -> None:
    tokens = np.array([1, 2], dtype=np.int32)
    tree = TokenTree(tokens, [-1, 0], [3, 2])
    tokens[0] = 9
    assert tree.tokens.tolist() == [1, 2]


def test_the_empty_tree() -> None:
    tree = TokenTree([], [], [])
    assert tree.match == SuffixMatch(0, 0)
    assert tree == TokenTree.from_packed(b"", (0, 0))
    assert repr(tree) == "TokenTree(0 nodes, depth 0, match=(0, 0))"


def test_a_tree_is_pickled_with_its_scores_and_origins() -> None:
    tree = TokenTree([1], [-1], [1], match=SuffixMatch(2, 3), scores=[0.5], origins=[1])
    assert pickle.loads(pickle.dumps(tree)) == tree


@pytest.mark.parametrize(
    ("tokens", "parents", "counts", "message"),
    [
        ([1], [0], [1], "parent of node 0 is 0, expected -1..-1"),
        ([1, 2], [-1, 1], [1, 1], "parent of node 1 is 1, expected -1..0"),
        (
            [1, 2],
            [-1],
            [1, 1],
            "length of tokens, parents and counts is (2, 1, 2), expected one and the same",
        ),
        ([1.5], [-1], [1], "tokens is 1-D float64, expected 1-D integers"),
        ([1], [-1], [None], "counts is 1-D object, expected 1-D integers"),
        ([[1]], [-1], [1], "tokens is 2-D int64, expected 1-D integers"),
        ([1, [2]], [-1, 0], [1, 1], "tokens is 0-D object, expected 1-D integers"),
        ([2**31], [-1], [1], f"one of tokens is {2**31}, expected {-(2**31)}..{2**31 - 1}"),
        (
            [1],
            [-(2**31) - 1],
            [1],
            f"one of parents is {-(2**31) - 1}, expected {-(2**31)}..{2**31 - 1}",
        ),
        ([1], [-1], [2**63], f"one of counts is {2**63}, expected {-(2**63)}..{2**63 - 1}"),
    ],
)
def test_arrays_that_are_not_a_tree(
    tokens: list[int], parents: list[int], counts: list[int], message: str
) -> None:
    assert (
        refused(ArgumentError, lambda: TokenTree(tokens, parents, counts))
        == f"draft tree: {message}"
    )


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"scores": ["high"]}, "scores is 1-D <U4, expected 1-D numbers"),
        ({"scores": [[0.5]]}, "scores is 2-D float64, expected 1-D numbers"),
        ({"scores": [None]}, "scores is 1-D object, expected 1-D numbers"),
        ({"scores": [0.5, 0.5]}, "length of scores is 2, expected 1"),
        ({"origins": [0.5]}, "origins is 1-D float64, expected 1-D integers"),
        ({"origins": [256]}, "one of origins is 256, expected 0..255"),
        ({"origins": [-1]}, "one of origins is -1, expected 0..255"),
        ({"origins": []}, "length of origins is 0, expected 1"),
    ],
)
def test_scores_and_origins_that_are_not_those_of_the_nodes(
    columns: dict[str, Any], message: str
) -> None:
    assert (
        refused(ArgumentError, lambda: TokenTree([1], [-1], [1], **columns))
        == f"draft tree: {message}"
    )
