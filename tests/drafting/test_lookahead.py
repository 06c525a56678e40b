"""Lookaheads: the drafts after all outcomes of a draft whose outcome is not known yet."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from rest_store.datastore.datastore import Datastore
from rest_store.datastore.tree import TokenTree
from rest_store.drafting.batch import look_ahead_all
from rest_store.drafting.session import DraftSession
from rest_store.drafting.sources import PromptLookup, RecycledLogits
from rest_store.errors import (
    ArgumentError,
    ContextTypeError,
    DatastoreUnavailableError,
    SessionClosedError,
)
from tests.shared.members import ScriptedSource, scored
from tests.shared.strategies import ONE_TO_NINE, Corpus, open_datastore

LENGTH = 5


@pytest.fixture
def store(tmp_path: Path) -> Datastore:
    return open_datastore(tmp_path, ONE_TO_NINE)


def look_ahead(session: DraftSession, verified: list[int], max_nodes: int = 1024) -> TokenTree:
    [tree] = look_ahead_all([session], [verified], max_nodes, length=LENGTH)
    return tree


def chain_after(tree: TokenTree, node: int) -> list[int]:
    """Return the tokens of the chain that begins after a node, which is contiguous."""
    tokens = []
    parents = tree.parents.tolist()
    for child in range(node + 1, len(tree)):
        if parents[child] != child - 1 or len(tokens) == LENGTH:
            break
        tokens.append(int(tree.tokens[child]))
    return tokens


def test_after_each_outcome_comes_the_chain_that_a_session_drafts_there(tmp_path: Path) -> None:
    """Chains are nearly always equal: the lookahead lacks text that is written meanwhile."""
    chance = random.Random(0)
    texts = [[chance.randrange(30) for _ in range(6)] for _ in range(40)]
    documents = [
        [token for text in chance.choices(texts, k=10) for token in text] for _ in range(20)
    ]
    store = open_datastore(tmp_path, Corpus(30, [documents]))
    compared = equal = tokens = 0
    for document in documents:
        text = document[: chance.randrange(20, 50)]

        def opened(text: list[int] = text) -> DraftSession:
            return DraftSession([PromptLookup(), RecycledLogits(), store], text, learn=False)

        verified = [*opened().draft(3, shape="chain").tokens.tolist(), chance.randrange(30)]
        tree = look_ahead(opened(), verified)
        path = tree.longest_path(verified).tolist()
        assert len(path) == len(verified), "also a token that nothing here proposed"
        for accepted, node in enumerate([-1, *path]):
            for bonus in tree.children(node).tolist():
                if bonus in path:
                    continue
                later = opened()
                later.accept([*verified[:accepted], int(tree.tokens[bonus])])
                chain = later.draft(LENGTH, shape="chain").tokens.tolist()
                ahead = chain_after(tree, bonus)
                compared += 1
                equal += ahead[: len(chain)] == chain
                tokens += len(ahead)
    assert compared > 500
    assert equal > 0.8 * compared
    assert tokens > 3 * compared


def test_the_likeliest_outcomes_have_the_longest_chains(store: Datastore) -> None:
    text = [1, 2, 3, 4]
    whole = look_ahead(DraftSession([PromptLookup(), store], text), [5, 6])
    for max_nodes in range(len(whole)):
        tree = look_ahead(DraftSession([PromptLookup(), store], text), [5, 6], max_nodes)
        assert len(tree) <= max_nodes
        assert np.all(tree.parents < np.arange(len(tree)))
        paths = {tuple(path_to(tree, node)) for node in range(len(tree))}
        assert paths <= {tuple(path_to(whole, node)) for node in range(len(whole))}
    first = look_ahead(DraftSession([PromptLookup(), store], text), [5, 6], 8)
    assert first.tokens.tolist()[:2] == [5, 6]
    assert chain_after(first, first.longest_path([5, 6, 7])[-1])[:2] == [8, 9]


def path_to(tree: TokenTree, node: int) -> list[int]:
    tokens = []
    while node >= 0:
        tokens.append(int(tree.tokens[node]))
        node = int(tree.parents[node])
    return tokens[::-1]


def test_a_batch_looks_ahead_as_each_session_alone(store: Datastore) -> None:
    texts = [[1, 2, 3], [4, 5], [], [7, 8, 9, 1]]
    drafts = [[4, 5], [], [1], [9, 9, 9]]

    def opened() -> list[DraftSession]:
        return [DraftSession([PromptLookup(), store], text) for text in texts]

    together = look_ahead_all(opened(), drafts, 40, length=LENGTH)
    alone = [look_ahead(one, draft, 40) for one, draft in zip(opened(), drafts, strict=True)]
    assert together == alone
    assert all(len(tree) for tree in together[:2])


def test_chains_of_members_are_merged(store: Datastore) -> None:
    away = ScriptedSource(scored([5, 6, 7, 8], [-1, 0, 1, 2], [0.9, 0.8, 0.7, 0.6]))
    session = DraftSession([PromptLookup(), store, away], [1, 2, 3, 4])
    tree = look_ahead(session, [5])
    [(options,)] = away.calls("send")
    assert options.is_chain
    assert options.max_nodes == 1 + 1 + LENGTH
    assert not options.length
    outcome = int(tree.longest_path([5, 6])[-1])
    assert chain_after(tree, outcome)[:2] == [7, 8]
    alone = ScriptedSource(DatastoreUnavailableError("away"))
    session = DraftSession([PromptLookup(), store, alone], [1, 2, 3, 4])
    assert len(look_ahead(session, [5])), "a member that is away costs its chain alone"


def test_what_is_wrong_is_refused(store: Datastore) -> None:
    session = DraftSession([store], [1, 2, 3])
    with pytest.raises(ArgumentError, match=r"length is 0, expected 1\.\.48"):
        look_ahead_all([session], [[4]], length=0)
    with pytest.raises(ArgumentError, match=r"max_nodes is 1025, expected 0\.\.1024"):
        look_ahead_all([session], [[4]], 1025, length=4)
    with pytest.raises(ArgumentError, match="number of verified drafts is 2, expected 1"):
        look_ahead_all([session], [[4], []], length=4)
    with pytest.raises(ContextTypeError, match="a verified draft"):
        look_ahead_all([session], [np.array([0.5])], length=4)
    session.close()
    with pytest.raises(SessionClosedError):
        look_ahead_all([session], [[4]], length=4)
