"""Draft trees that sessions return: what is wrong with them, and what is verified of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from rest_store.bench.baselines import tree_of
from rest_store.datastore.tree import SuffixMatch, TokenTree
from rest_store.errors import DraftingWarning
from rest_store.generation.draft_sessions import DraftCounts
from rest_store.generation.drafts import EMPTY, Draft
from tests.shared.tiny import VOCABULARY, drafted, prompts, right, tiny_model

FIXED = {"max_new_tokens": 24, "do_sample": False}


def packed(tokens: list[int], parents: list[int], depths: list[int]) -> TokenTree:
    """A tree that nobody has checked, as a kernel or the network may give it."""
    columns = (np.array([1] * len(tokens), np.int64), *(np.array(c, np.int32) for c in (tokens, parents, depths)))
    return TokenTree.from_packed(b"".join(column.tobytes() for column in columns), SuffixMatch(0, 0))


MALFORMED: dict[str, Any] = {
    "nothing": None,
    "a list": [1, 2, 3],
    "too many nodes": tree_of([list(range(60))]),
    "a token beyond the vocabulary": tree_of([[VOCABULARY]]),
    "a negative token": packed([-1], [-1], [1]),
    "a parent after its child": packed([5, 6], [1, -1], [2, 1]),
    "its own parent": packed([5], [0], [1]),
    "a parent before the context": packed([5], [-2], [1]),
    "depths of their own": packed([5, 6], [-1, 0], [1, 1]),
    "columns cut off": TokenTree.from_packed(b"\1" * 47, SuffixMatch(0, 0)),
}


def drafted_with_second_tree(make: Callable[[], Any]) -> DraftCounts:
    """Draft rightly but for the second tree, which is what `make` returns; the text is that of plain generation."""
    model = tiny_model("llama")
    inputs = prompts(1)
    plain = model.generate(**inputs, **FIXED)
    calls = []

    def script(future: list[int], random: Any, max_nodes: int) -> Any:
        calls.append(1)
        return make() if len(calls) == 2 else right(future, random, max_nodes)

    output = drafted(model, inputs, plain, script, **FIXED)
    assert torch.equal(output.sequences, plain)
    counts: DraftCounts = output.statistics.drafts
    return counts


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_answers_change_nothing_and_are_counted(name: str) -> None:
    with pytest.warns(DraftingWarning, match="went on without"):
        counts = drafted_with_second_tree(lambda: MALFORMED[name])
    assert counts.failed == 1
    assert len(counts.errors) == 1


def test_a_draft_is_cut_to_the_depth_that_can_be_accepted() -> None:
    tree = tree_of([[1, 2, 3], [1, 4], [5, 6, 7]])
    assert Draft(tree, 5).tree is tree
    unmatched = TokenTree.from_packed(tree.packed, (None, 1.5))  # type: ignore[arg-type]
    assert Draft(unmatched, 2).tree == Draft(tree, 2).tree, "what a tree continues is not read"
    shallow = Draft(tree, 2)
    assert shallow.tree == tree_of([[1, 2], [1, 4], [5, 6]])
    assert (Draft(tree, 5).whole, shallow.whole) == (True, False)
    assert Draft(tree, 0).tree == Draft(tree, -1).tree == EMPTY
    origins = TokenTree([1, 2, 3], [-1, 0, -1], [1] * 3, origins=[1, 2, 3])
    assert (Draft(origins, 1).origins, shallow.origins) == ([1, 3], [1] * 5)


def test_a_draft_promises_the_sum_of_the_scores_that_are_verified() -> None:
    def promised(scores: list[float] | None, depth: int = 5) -> float:
        return Draft(TokenTree([1, 2, 3], [-1, 0, -1], [1] * 3, scores=scores), depth).promised

    assert promised([0.5, 0.25, 1.0]) == 1.75
    assert promised([0.5, 0.25, 1.0], depth=1) == 1.5
    assert promised([0.5, 0.25, 1.0], depth=0) == 0.0
    assert promised(None) == 3.0, "all of them"
    assert promised([0.5, float("nan"), 0.5]) == promised([0.5, 1.5, 0.5]) == 3.0, "no probabilities"
