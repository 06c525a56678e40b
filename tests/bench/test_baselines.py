"""Drafting rules of other projects, as sessions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rest_store.bench.baselines import LongestMatch, PromptLookupRule, RestRule, tree_of
from tests.shared.strategies import Corpus, open_datastore


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


def test_the_longest_match_is_that_of_the_suffixes_that_are_tried(tmp_path: Path) -> None:
    stores = []
    for name, document in (("first", [3, 4, 5]), ("second", [1, 2, 3, 4, 6])):
        (tmp_path / name).mkdir()
        stores.append(open_datastore(tmp_path / name, Corpus(300, [[document]])))
    longest = LongestMatch(stores)
    for max_suffix, token in ((16, 6), (2, 5)):
        tree = longest.draft([1, 2, 3, 4], max_nodes=4, max_suffix=max_suffix, max_depth=2)
        assert tree.tokens.tolist() == [token]
    assert len(longest.draft([1, 300], max_nodes=4, max_suffix=16, max_depth=2)) == 0
