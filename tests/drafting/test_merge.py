"""The score of a merged path is the mean of its scores, as a plain rule in Python says."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rest_store.datastore.tree import TokenTree
from rest_store.drafting.draft_options import DraftOptions
from rest_store.drafting.merge import merge_trees
from rest_store.errors import ArgumentError
from tests.shared.members import scored

Path = tuple[int, ...]
Paths = dict[Path, tuple[float, int]]  # score and origins


@st.composite
def paths(draw: st.DrawFn) -> Paths:
    """A tree as its paths: scores are multiples of 1/64, which add up exactly."""
    out: Paths = {}
    for _ in range(draw(st.integers(0, 12))):
        parent = draw(st.sampled_from([(), *out]))
        path = (*parent, draw(st.integers(0, 4)))
        most = round(64 * out[parent][0]) if parent else 64
        if path not in out:
            out[path] = (draw(st.integers(0, most)) / 64, draw(st.integers(1, 7)))
    return out


def tree_of(tree: Paths) -> TokenTree:
    places = {path: place for place, path in enumerate(tree)}
    return TokenTree(
        [path[-1] for path in tree],
        [places.get(path[:-1], -1) for path in tree],
        [0] * len(tree),
        scores=[score for score, _ in tree.values()],
        origins=[origins for _, origins in tree.values()],
    )


def paths_of(tree: TokenTree) -> list[Path]:
    out: list[Path] = []
    for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
        out.append((*(out[parent] if parent >= 0 else ()), token))
    return out


def scores_of(tree: TokenTree) -> list[float]:
    assert tree.scores is not None
    return [float(score) for score in tree.scores]


def origins_of(tree: TokenTree) -> list[int]:
    assert tree.origins is not None
    return [int(origins) for origins in tree.origins]


def merged_plainly(trees: Sequence[Paths]) -> Paths:
    """The whole merged tree, best first; of equals the first path of the first tree."""
    out: Paths = {}
    for tree in trees:
        for path, (score, origins) in tree.items():
            before, of_before = out.get(path, (0.0, 0))
            out[path] = (before + score / len(trees), of_before | origins)
    return dict(sorted(out.items(), key=lambda item: -np.float32(item[1][0])))


def cut_plainly(merged: Paths, limits: DraftOptions) -> list[Path]:
    """The paths that are kept, in the order in which they were taken."""
    taken: list[Path] = []
    for path in merged:
        follows = not limits.is_chain or path[:-1] == (taken[-1] if taken else ())
        if follows and len(taken) < limits.max_nodes:
            taken.append(path)
    if limits.costs.size:
        sums = np.cumsum([1.0, *(np.float32(merged[path][0]) for path in taken)])
        taken = taken[: int(np.argmax(sums[: limits.costs.size] / limits.costs[: sums.size]))]
    return taken


@given(trees=st.lists(paths(), min_size=1, max_size=4), data=st.data())
def test_trees_are_merged_by_the_plain_rule(trees: list[Paths], data: st.DataObject) -> None:
    limits = DraftOptions(
        data.draw(st.sampled_from([0, 1, 3, 8, 64])),
        np.array(data.draw(st.sampled_from([[], 1 + 0.1 * np.arange(65), 1 + 0.4 * np.arange(5)]))),
        data.draw(st.booleans()),
    )
    whole = merged_plainly(trees)
    expected = cut_plainly(whole, limits)
    tree, nodes = merge_trees([tree_of(one) for one in trees], limits)
    merged_paths = paths_of(tree)
    assert sorted(merged_paths) == sorted(expected)
    assert scores_of(tree) == [np.float32(whole[path][0]) for path in merged_paths]
    assert origins_of(tree) == [whole[path][1] for path in merged_paths]
    assert tree == TokenTree(
        tree.tokens, tree.parents, tree.counts, scores=tree.scores, origins=tree.origins
    )
    places = {path: place for place, path in enumerate(merged_paths)}
    assert [of_tree.tolist() for of_tree in nodes] == [
        [places.get(path, -1) for path in one] for one in trees
    ]
    # The most probable path comes first, the others by score.
    length = 0
    while (children := tree.children(length - 1)).size:
        assert children[np.argmax(np.array(scores_of(tree))[children])] == length
        length += 1
    assert all(one >= other for one, other in pairwise(scores_of(tree)[length:]))


@pytest.mark.parametrize(
    "tree",
    [
        TokenTree([1], [-1], [0]),
        TokenTree([1], [-1], [0], scores=[0.5]),
        scored([1, 2], [-1, 0], [0.5, 0.6]),
        scored([1], [-1], [-0.1]),
        scored([1], [-1], [1.1]),
        scored([1], [-1], [float("nan")]),
        TokenTree.from_packed(
            bytes(8) + np.array([1, 5, 1], np.int32).tobytes(),
            (0, 0),
            np.float32(0.5).tobytes(),
            bytes([1]),
        ),
    ],
)
def test_what_is_no_scored_tree_is_refused(tree: TokenTree) -> None:
    with pytest.raises(ArgumentError, match=r"^merge_trees: a (tree|score|parent)"):
        merge_trees([scored([1], [-1], [0.5]), tree], DraftOptions(8))
