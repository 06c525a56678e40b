"""A step verifies the session's tree, a head's chain, or both, by expected tokens per second."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rest_store.bench.head_plans import PlannedHead, with_chain
from rest_store.datastore.tree import TokenTree
from rest_store.errors import ArgumentError
from tests.shared.members import scored
from tests.shared.strategies import refused

COSTS = 10 + 0.1 * np.arange(40)  # of a step, by the draft tokens that it verifies
SURE = scored([1, 2, 3, 4], [-1, 0, 1, 2], [0.98, 0.96, 0.94, 0.92])
UNSURE = scored([1, 2, 3], [-1, 0, -1], [0.4, 0.2, 0.1])
NOTHING = scored([], [], [])


def head(seconds: float, max_tokens: int = 4) -> PlannedHead:
    return PlannedHead([0.0, *[seconds] * max_tokens])


@pytest.mark.parametrize(
    ("tree", "seconds", "nodes", "head_tokens"),
    [
        (SURE, 8.0, 4, 0),
        (NOTHING, 3.0, 0, 4),
        (UNSURE, 3.0, 3, 4),
        (UNSURE, 40.0, 3, 0),
        (NOTHING, 40.0, 0, 0),
    ],
    ids=["a sure tree", "no tree", "both", "a slow head", "neither"],
)
def test_what_pays_is_verified(
    tree: TokenTree, seconds: float, nodes: int, head_tokens: int
) -> None:
    plan = head(seconds).plan(tree, COSTS)
    assert (len(plan.tree), plan.head_tokens) == (nodes, head_tokens)
    assert plan.seconds == pytest.approx(COSTS[nodes + head_tokens] + seconds * (head_tokens > 0))


def test_no_more_is_verified_than_costs_are_known_of() -> None:
    plan = head(3.0).plan(SURE, COSTS[:4])
    assert len(plan.tree) + plan.head_tokens <= 3


def test_the_part_of_a_tree_has_its_best_nodes_and_their_parents() -> None:
    tree = scored([1, 2, 3, 4], [-1, 0, 0, -1], [0.6, 0.05, 0.5, 0.04], 0b101)
    plan = head(100.0).plan(tree, 10 + np.arange(5.0))
    assert plan.tree.tokens.tolist() == [1, 3]
    assert plan.tree.parents.tolist() == [-1, 0]
    assert plan.tree.origins is not None
    assert plan.tree.origins.tolist() == [0b101] * 2


def test_what_a_head_is_worth_is_learnt_by_text_and_kept_for_others() -> None:
    ours = head(3.0)
    for _ in range(40):
        plan = ours.plan(UNSURE, COSTS)
        ours.learn(plan, 0, 0)
    assert ours.plan(UNSURE, COSTS).head_tokens == 0
    assert ours.plan(NOTHING, COSTS).head_tokens > 0, (
        "where the session knows nothing, it was not run"
    )
    ours = ours.for_text()
    other = head(3.0)
    worth, hoped = (one.plan(NOTHING, COSTS).tokens for one in (ours, other))
    assert worth == hoped
    for _ in range(40):
        plan = other.plan(NOTHING, COSTS)
        other.learn(plan, 0, plan.head_tokens)
    assert other.plan(NOTHING, COSTS).tokens > hoped


def test_a_tree_without_scores_is_refused() -> None:
    refused(
        ArgumentError,
        lambda: head(3.0).plan(TokenTree([1], [-1], [1]), COSTS),
        "head: a tree has no scores",
    )


def test_promises_of_trees_are_believed_as_far_as_they_are_kept() -> None:
    ours = head(100.0)
    before = ours.plan(SURE, COSTS)
    for _ in range(20):
        ours.learn(ours.plan(SURE, COSTS), 1, 0)
    after = ours.plan(SURE, COSTS)
    assert 1 < after.tokens < 0.7 * before.tokens


def test_a_session_that_does_not_pay_for_its_drafting_is_asked_now_and_then() -> None:
    requests = []
    for tree in (UNSURE, SURE):
        ours = PlannedHead([0.0, 3.0, 3.0, 3.0, 3.0], drafting=2.0)
        trees: list[TokenTree | None] = []
        for _ in range(160):
            trees.append(tree if ours.wants_tree() else None)
            plan = ours.plan(trees[-1], COSTS)
            ours.learn(plan, len(plan.tree), plan.head_tokens)
        requests.append(sum(one is not None for one in trees))
    unsure, sure = requests
    assert 10 < unsure < 60
    assert sure > 150


Paths = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), max_size=5)


@given(paths=Paths, chain=st.lists(st.integers(0, 3), max_size=6))
def test_a_tree_and_a_chain_are_one_tree(paths: list[list[int]], chain: list[int]) -> None:
    tree = NOTHING
    for path in paths:
        tree = with_chain(tree, path)
    both = with_chain(tree, chain)
    assert both.tokens[: len(tree)].tolist() == tree.tokens.tolist()
    assert all(len(both.longest_path(path)) == len(path) for path in [*paths, chain])
    spelt = {tuple(path[:end]) for path in [*paths, chain] for end in range(1, len(path) + 1)}
    assert len(both) == len(spelt)


@pytest.mark.parametrize("cost", [0.02, 0.3, 1.0])
def test_no_text_is_slower_than_with_the_better_of_the_two(cost: float) -> None:
    """Texts change between passages that the session knows and others.

    The head accepts 0.7 of its tokens in any.
    """
    costs = 10 + cost * np.arange(40)
    known = [0.9**depth for depth in range(1, 7)]
    trees = {True: scored(range(6), range(-1, 5), known), False: scored([0], [-1], [0.2])}

    def speed(ours: PlannedHead, seconds: float) -> float:
        chance = np.random.default_rng(0)
        tokens = 0
        time = 0.0
        for step in range(1500):
            is_known = step // 50 % 2 == 0
            of_tree = int((np.cumprod(chance.random(6) < (0.9 if is_known else 0.2))).sum())
            of_head = int(np.cumprod(chance.random(6) < 0.7).sum())
            plan = ours.plan(trees[is_known], costs)
            of_tree = min(of_tree, len(plan.tree))
            of_head = min(of_head, plan.head_tokens)
            ours.learn(plan, of_tree, of_head)
            tokens += 1 + max(of_tree, of_head)
            time += costs[len(plan.tree) + plan.head_tokens] + seconds * (plan.head_tokens > 0)
        return tokens / time

    alone = speed(PlannedHead([0.0]), 0.0)
    fixed = []
    for count in range(1, 7):
        expected = sum(0.7**place for place in range(count + 1))
        fixed.append(expected / (costs[count] + 3.0))
    assert speed(head(3.0, 6), 3.0) > 0.99 * max(alone, *fixed)
