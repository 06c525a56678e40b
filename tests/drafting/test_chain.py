"""A chain is one path along the likeliest tokens, as long as its cost is worth."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rest_store.datastore.datastore import Datastore
from rest_store.datastore.tree import TokenTree
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.session import DraftSession
from rest_store.drafting.sources import PromptLookup, RecycledLogits
from tests.shared.strategies import ONE_TO_NINE, contexts, corpora, open_datastore


@pytest.fixture
def store(tmp_path: Path) -> Datastore:
    return open_datastore(tmp_path, ONE_TO_NINE)


def require_chain(chain: TokenTree, max_nodes: int) -> None:
    assert len(chain) <= max_nodes
    assert chain.parents.tolist() == list(range(-1, len(chain) - 1))
    assert chain.depths.tolist() == list(range(1, len(chain) + 1))
    assert chain.scores is not None
    assert chain.origins is not None
    assert (np.diff(chain.scores) <= 0).all()
    assert ((chain.scores > 0) & (chain.scores <= 1)).all()
    assert (chain.origins > 0).all()


@settings(max_examples=25)
@given(data=st.data())
def test_a_chain_is_a_path_of_the_tree_with_the_same_scores(data: st.DataObject) -> None:
    corpus = data.draw(corpora())
    context = data.draw(contexts(corpus))
    nodes = data.draw(st.sampled_from([0, 1, 3, 8]))
    with tempfile.TemporaryDirectory() as directory:
        store = open_datastore(Path(directory), corpus)
        with DraftSession([PromptLookup(), store], context) as session:
            chain = session.draft(nodes, shape="chain")
            tree = session.draft(16)
            assert session.draft(nodes, shape="chain") == chain
            assert session.draft(16) == tree
    require_chain(chain, nodes)
    assert tree.scores is not None
    assert chain.scores is not None
    # The most probable path of a tree comes first.
    shared = min(len(tree.longest_path(tree.tokens)), len(chain))
    assert chain.tokens[:shared].tolist() == tree.tokens[:shared].tolist()
    assert chain.scores[:shared].tolist() == tree.scores[:shared].tolist()
    # Nothing is known to follow.
    is_leaf = shared == len(chain) and len(chain) - 1 not in tree.parents.tolist()
    assert len(chain) == nodes or is_leaf or chain.scores[-1] < 0.01


def test_a_chain_may_be_as_long_as_a_text_repeats(calibration: Calibration) -> None:
    with DraftSession([PromptLookup()], list(range(100)) * 3, calibration=calibration) as session:
        chain = session.draft(1024, shape="chain")
        require_chain(chain, 48)
        assert chain.tokens.tolist() == list(range(len(chain)))
        assert len(chain) > 16


def test_what_is_accepted_of_a_chain_is_learnt(store: Datastore) -> None:
    calibration = Calibration.default()
    recycled = RecycledLogits()
    with DraftSession([store, recycled], [1, 2], calibration=calibration) as session:
        chain = session.draft(4, shape="chain")
        assert chain.tokens.tolist() == [3, 4, 5, 6]
        rows = [[100 + i, 200 + i] for i in range(len(chain) + 1)]
        session.accept([3, 4, 250], node_top_k=rows)
        assert calibration.weights != [0] * 5
        session.accept([3])  # after which the row of the first node stands
        assert {101, 201} <= set(session.draft(16).tokens.tolist())
