"""Drafting rules of other projects, as sessions."""

from __future__ import annotations

from typing import Any

from rest_store.bench.baselines import PromptLookupRule, RestRule, tree_of


class FromList:
    """Answers as a datastore whose only continuations are given."""

    def __init__(self, paths: list[list[int]]) -> None:
        self.paths, self.asked = paths, []  # type: ignore[var-annotated]

    def draft(self, context: list[int], *, max_nodes: int, max_suffix: int, max_depth: int) -> Any:
        self.asked.append(context)
        return tree_of([path[:max_nodes] for path in self.paths])


def test_prompt_lookup_drafts_what_followed_before() -> None:
    rule = PromptLookupRule([1, 2, 3, 4, 5, 9, 2, 3], tokens=3)
    assert rule.draft(max_nodes=16, costs=None).tokens.tolist() == [4, 5, 9]
    assert rule.draft(max_nodes=2, costs=None).tokens.tolist() == [4, 5]
    rule.accept([4, 7])
    assert len(rule.draft(max_nodes=16, costs=None)) == 0
    rule.accept([1])
    assert rule.draft(max_nodes=16, costs=None).tokens.tolist() == [2, 3, 4]


def test_rests_rule_keeps_the_end_of_the_context() -> None:
    store = FromList([[5, 6]])
    rule = RestRule(store, range(40))  # type: ignore[arg-type]
    rule.accept([7, 8])
    assert rule.draft(max_nodes=16, costs=None).tokens.tolist() == [5, 6]
    assert store.asked == [[*range(26, 40), 7, 8]]
