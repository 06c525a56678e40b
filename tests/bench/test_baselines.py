"""Drafting rules of other projects, as sessions."""

from __future__ import annotations

from pathlib import Path

from rest_store.bench.baselines import PromptLookupRule, RestRule
from tests.shared.strategies import Corpus, open_datastore


def test_prompt_lookup_drafts_what_followed_before() -> None:
    rule = PromptLookupRule([7, 1, 2, 3, 4, 9, 1, 2, 3])
    assert rule.draft(16).tokens.tolist() == [4, 9, 1, 2, 3]
    assert rule.draft(2).tokens.tolist() == [4, 9]
    rule.accept([8])
    assert len(rule.draft(16)) == 0
    rule.accept([1])
    assert rule.draft(16).tokens.tolist() == [2, 3, 4, 9, 1, 2, 3, 8, 1]
    assert len(PromptLookupRule([]).draft(16)) == 0


def test_rest_drafts_from_the_longest_match_of_all_datastores(tmp_path: Path) -> None:
    stores = []
    for name, document in (("first", [3, 4, 5]), ("second", [1, 2, 3, 4, 6])):
        stores.append(open_datastore(tmp_path / name, Corpus(300, [[document]])))
    for max_suffix, token in ((16, 6), (2, 5)):
        assert RestRule(stores, [1, 2, 3, 4], max_suffix=max_suffix).draft(4).tokens.tolist() == [
            token
        ]
    rule = RestRule(stores[1:], [*range(40, 80), 1, 2])
    rule.accept([3])
    assert rule.draft(24) == stores[1].draft([1, 2, 3], max_nodes=24)


def test_rest_reads_the_context_after_what_is_not_in_the_vocabulary(tmp_path: Path) -> None:
    store = open_datastore(tmp_path, Corpus(300, [[[1, 2, 3, 4, 6]]]))
    rule = RestRule([store], [9, 300, 1, 2, 3])
    assert rule.draft(24) == store.draft([1, 2, 3], max_nodes=24)
    rule.accept([2**31 - 1])
    assert len(rule.draft(24)) == 0
