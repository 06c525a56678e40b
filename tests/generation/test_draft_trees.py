"""Draft trees that sessions return: what is wrong with them, and what is verified of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from rest_store.bench.baselines import tree_of
from rest_store.datastore.tree import TokenTree
from rest_store.errors import DraftingWarning
from rest_store.generation.draft_sessions import DraftCounts
from rest_store.generation.drafts import EMPTY, origins_of, promised, pruned
from tests.shared.tiny import VOCABULARY, drafted, prompts, right, tiny_model

FIXED = {"max_new_tokens": 24, "do_sample": False}


REFUSED: dict[str, Any] = {
    "nothing": None,
    "a list": [1, 2, 3],
    "too many nodes": tree_of([list(range(60))]),
    "a token beyond the vocabulary": tree_of([[VOCABULARY]]),
    "a negative token": tree_of([[-1]]),
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


@pytest.mark.parametrize("name", REFUSED)
def test_answers_that_cannot_be_verified_change_nothing_and_are_counted(name: str) -> None:
    with pytest.warns(DraftingWarning, match="went on without"):
        counts = drafted_with_second_tree(lambda: REFUSED[name])
    assert counts.failed == 1
    assert len(counts.errors) == 1


def test_a_draft_is_cut_to_the_depth_that_can_be_accepted() -> None:
    tree = tree_of([[1, 2, 3], [1, 4], [5, 6, 7]])
    assert pruned(tree, 5) is tree
    assert pruned(tree, 2) == tree_of([[1, 2], [1, 4], [5, 6]])
    assert pruned(tree, 0) == pruned(tree, -1) == EMPTY
    scored = pruned(TokenTree([1, 2, 3], [-1, 0, -1], [1] * 3, origins=[1, 2, 3], scores=[0.5, 0.25, 1.0]), 1)
    assert (origins_of(scored), promised(scored)) == ([1, 3], 1.5)
    assert (origins_of(tree), promised(tree)) == ([1] * 7, 7.0), "a session that does not say"
