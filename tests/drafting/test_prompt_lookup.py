"""Prompt lookup takes a bounded number of steps for each token, whatever stands in the text."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from rest_store.drafting.session import DraftSession
from rest_store.drafting.sources import PromptLookup

Tokens = npt.NDArray[np.int32]

LENGTH = 2_000  # tokens of a text, for which tables have 4,096 entries
MAX_READ = 256  # entries of a table, for one n-gram


def colliding_tokens() -> Tokens:
    """Tokens with the first place of a table (`tag_of` in native/session/prompt_lookup.hpp)."""
    tokens = np.arange(1 << 24, dtype=np.uint32)
    product = tokens * np.uint32(0x9E3779B1)
    return tokens[(product ^ (product >> np.uint32(15))) % 4_096 == 0][:LENGTH].astype(np.int32)


def colliding_pairs() -> Tokens:
    """Pairs of tokens of a small vocabulary whose place is the first one, one after the other."""
    first, second = np.meshgrid(
        np.arange(1 << 11, dtype=np.uint64), np.arange(1 << 11, dtype=np.uint64), indexing="ij"
    )
    tags = np.full(first.shape, 0x243F6A8885A308D3, np.uint64)
    for tokens in (first, second):
        tags = (tags ^ tokens) * np.uint64(0x9E3779B97F4A7C15)
        tags ^= tags >> np.uint64(29)
    chosen = (tags >> np.uint64(32)) % np.uint64(4_096) == 0
    return np.stack([first[chosen], second[chosen]], axis=1).reshape(-1)[:LENGTH].astype(np.int32)


@pytest.mark.parametrize("text_of", [colliding_tokens, colliding_pairs])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_text_whose_tokens_meet_in_one_place_costs_no_more_than_others(
    text_of: Callable[[], Tokens], at_once: bool
) -> None:
    text = text_of()
    assert text.size == LENGTH
    tail = np.arange(20, dtype=np.int32)  # which the flood has not displaced
    with DraftSession([PromptLookup()], text if at_once else text[:1]) as session:
        for token in text[1:] if not at_once else ():
            session.accept([int(token)])
        assert MAX_READ / 2 < session._sources.native.longest_probe() <= MAX_READ
        session.accept(np.concatenate([tail, tail[:4]]))
        assert session.draft(max_nodes=4).tokens[0] == tail[4]
        assert session._sources.native.longest_probe() <= MAX_READ


def test_a_usual_text_is_spread_over_its_tables() -> None:
    text = np.random.default_rng(3).integers(0, 50_000, 20_000).astype(np.int32)
    with DraftSession([PromptLookup()], np.tile(text, 2)) as session:
        assert session._sources.native.longest_probe() < 100
        tree = session.draft(max_nodes=8)
    assert tree.tokens[0] == text[0]
