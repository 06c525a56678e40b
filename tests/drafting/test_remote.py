"""Draft sessions that run elsewhere: whatever comes back is verified, and what is here takes over without it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.datastore.tree import TokenTree
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.kernel_session import DraftLimits
from rest_store.drafting.remote import RemoteTree, SessionSettings
from rest_store.drafting.session import DraftSession, SessionStatistics
from rest_store.drafting.sources import PromptLookup, RecycledLogits
from rest_store.errors import ServiceUnavailableError, TokenizerMismatchError
from tests.shared.sessions import Nodes
from tests.shared.strategies import ONE_TO_NINE, identity, open_datastore

TEXT = [1, 2, 3, 50, 60, 1, 2]
VOCABULARY = 300
GOOD = Nodes([3, 4, 9], [0.9, 0.5, 0.1], [-1, 0, -1], [1, 1, 2])

Text = Callable[[], tuple[Any, int]]


class Elsewhere:
    """A source that runs sessions, and keeps what they are told.

    Args:
        answer: what a session returns for a step, or None, or an error that it raises.
        runs: whether it runs any.
    """

    tokenizer: TokenizerIdentity | None = None

    def __init__(self, answer: Any = GOOD, *, runs: bool = True) -> None:
        self.answer, self.runs = answer, runs
        self.weights: list[float] = []
        self.datastores = 1
        self.settings: list[SessionSettings] = []
        self.opened: list[tuple[list[int], int]] = []
        self.drafted: list[tuple[list[int], int, DraftLimits, float | None]] = []
        self.accepted: list[tuple[list[int], Any, Any]] = []
        self.batches = self.closed = 0

    def session(self, settings: SessionSettings) -> Any:
        self.settings.append(settings)
        return self if self.runs else None

    def open(self, text: Text) -> None:
        tokens, written = text()
        self.opened.append((tokens.tolist(), written))
        if isinstance(self.answer, Exception):
            raise self.answer

    def draft(self, text: Text, limits: DraftLimits, *, timeout: float | None) -> RemoteTree | None:
        tokens, written = text()
        self.drafted.append((tokens.tolist(), written, limits, timeout))
        if isinstance(self.answer, BaseException):
            raise self.answer
        if self.answer is None:
            return None
        nodes = self.answer if isinstance(self.answer, bytes) else self.answer.packed()
        return RemoteTree(nodes, VOCABULARY, self.datastores, self.weights)

    def send(self, text: Text, limits: DraftLimits, *, timeout: float | None) -> bool:
        return False

    def accept(self, tokens: Any, top_k: Any, node_top_k: Any) -> None:
        rows = [None if array is None else array.tolist() for array in (top_k, node_top_k)]
        self.accepted.append((tokens.tolist(), rows[0], rows[1]))

    def close(self, text: Text) -> None:
        tokens, written = text()
        assert 0 <= written <= len(tokens)
        self.closed += 1

    def draft_batch(self, contexts: Any, **limits: int) -> list[TokenTree]:
        self.batches += 1
        return [TokenTree([], [], [])] * len(contexts)


@st.composite
def trees(draw: st.DrawFn) -> Nodes:
    size = draw(st.integers(0, 12))
    column = st.lists(st.floats(0, 1, width=32), min_size=size, max_size=size)
    return Nodes(
        [draw(st.integers(0, VOCABULARY - 1)) for _ in range(size)],
        draw(column),
        [draw(st.integers(-1, node - 1)) for node in range(size)],
        [draw(st.integers(0, 255)) for _ in range(size)],
    )


@given(nodes=trees(), path=st.lists(st.integers(0, 3), max_size=4))
def test_any_tree_is_returned_as_it_came(nodes: Nodes, path: list[int]) -> None:
    with DraftSession([Elsewhere(nodes)], TEXT) as session:
        tree = session.draft(12)
        assert tree.scores is not None
        assert tree.origins is not None
        assert (tree.tokens.tolist(), tree.scores.tolist(), tree.parents.tolist()) == nodes[:3]
        assert tree == TokenTree(tree.tokens, tree.parents, tree.counts, scores=tree.scores, origins=tree.origins)
        assert set(tree.origins.tolist()) <= {0, 1}
        followed: list[int] = []
        for choice in path:  # along the tree
            children = tree.children(followed[-1] if followed else -1).tolist()
            if not children:
                break
            followed.append(children[choice % len(children)])
        tokens = [*tree.tokens[followed].tolist(), 299]
        session.accept(tokens)
        assert session.statistics.accepted == len(tree.longest_path(tokens))
        assert session.statistics.dropped == {}


@pytest.mark.parametrize("datastores", [1, 3, 6])
def test_origins_are_the_places_of_the_sources_here(datastores: int) -> None:
    bits = [1 << bit for bit in range(datastores)]
    lookup, recycled = 1 << datastores, 2 << datastores
    origins = [*bits, lookup, recycled, bits[-1] | lookup, 255]
    size = len(origins)
    away = Elsewhere(Nodes([3] * size, [0.5] * size, list(range(-1, size - 1)), origins))
    away.datastores = datastores
    with DraftSession([RecycledLogits(), PromptLookup(), away], TEXT) as session:
        found = session.draft(16).origins
    assert found is not None
    assert found.tolist() == [0b100] * datastores + [0b010, 0b001, 0b110, 0b111]


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (b"x", "of a wrong size"),
        (GOOD.packed()[:-1], "of a wrong size"),
        (Nodes([3] * 9, [0.5] * 9, [-1] * 9, [1] * 9), "larger than asked for"),
        (GOOD._replace(tokens=[3, VOCABULARY, 9]), "a token outside the vocabulary"),
        (GOOD._replace(tokens=[-1, 4, 9]), "a token outside the vocabulary"),
        (GOOD._replace(parents=[0, 0, -1]), "a parent after its child"),
        (GOOD._replace(parents=[-1, 2, -1]), "a parent after its child"),
        (GOOD._replace(parents=[-1, -2, -1]), "a parent after its child"),
        (GOOD._replace(scores=[0.9, float("nan"), 0.1]), "a score outside 0..1"),
        (GOOD._replace(scores=[1.1, 0.5, 0.1]), "a score outside 0..1"),
        (GOOD._replace(scores=[0.9, 0.5, -0.1]), "a score outside 0..1"),
    ],
)
def test_what_is_no_tree_is_an_error_of_its_source(answer: Any, what: str) -> None:
    with DraftSession([Elsewhere(answer), PromptLookup()], TEXT) as session:
        tree = session.draft(8)
        assert tree.origins is not None
        assert set(tree.origins.tolist()) == {2}
        assert session.statistics.dropped == {(0, "error"): 1}
        assert what in session.statistics.errors[0]
        assert session.statistics.accepted == 0


@pytest.mark.parametrize(
    "error", [ServiceUnavailableError("gone"), ValueError("no"), GeneratorExit(), asyncio.CancelledError()], ids=repr
)
def test_what_it_raises_is_counted_and_the_text_is_kept(error: BaseException) -> None:
    away = Elsewhere(error)
    with DraftSession([away, PromptLookup()], TEXT) as session:
        for token in (3, 1):
            assert len(session.draft(8)) > 0
            session.accept([token])
        assert session.statistics.dropped == {(0, "error"): 2}
        assert session.statistics.absent[0].steps == 2
        away.answer = GOOD
        assert session.draft(8).tokens.tolist() == GOOD.tokens
        assert session.statistics.absent == {}
    assert away.opened == [(TEXT, 0)]
    assert [step[:2] for step in away.drafted] == [(TEXT, 0), ([*TEXT, 3], 1), ([*TEXT, 3, 1], 2)]
    assert away.batches == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_an_interrupt_passes_through_and_counts_nothing(error: BaseException) -> None:
    away = Elsewhere(error)
    with DraftSession([away, PromptLookup()], TEXT) as session:
        with pytest.raises(type(error)):
            session.draft(8)
        assert session.statistics == SessionStatistics()
        session.accept([3], node_top_k=[[1, 2]])
        assert session.statistics.accepted == 0
        assert away.accepted == [([3], None, None)]


def test_one_that_cannot_run_the_session_is_asked_for_trees() -> None:
    away = Elsewhere()
    with DraftSession([away, PromptLookup()], TEXT) as session:
        session.draft(8)
        away.answer = None
        for _ in range(2):
            assert len(session.draft(8)) > 0
        assert (len(away.drafted), away.batches, away.closed) == (2, 2, 0)
        assert session.statistics.dropped == {}
    assert away.closed == 1, "with all of the text"


def test_one_with_another_tokenizer_is_left_out() -> None:
    away = Elsewhere(TokenizerMismatchError("tokenizer is 'a', expected 'b'"))
    with DraftSession([away, PromptLookup()], TEXT) as session:
        for _ in range(2):
            assert len(session.draft(8)) > 0
        assert session.statistics.dropped == {(0, "tokenizer"): 2}
        assert (len(away.drafted), away.batches, away.closed) == (1, 0, 1)


def test_only_a_source_alone_runs_the_session(tmp_path: Path) -> None:
    store = open_datastore(tmp_path, ONE_TO_NINE)
    for others in ([store], [Elsewhere()], [Elsewhere(runs=False)]):
        away = Elsewhere()
        with DraftSession([away, *others], TEXT) as session:
            session.draft(8)
        assert (away.settings, away.drafted) == ([], [])
        assert away.batches == 1
    away = Elsewhere(runs=False)
    with DraftSession([away], TEXT) as session:
        session.draft(8)
    assert (len(away.settings), away.drafted, away.batches) == (1, [], 1)
    known, other = Elsewhere(), Elsewhere()
    known.tokenizer, other.tokenizer = identity(300), identity(301)
    with DraftSession([known, other], TEXT) as session:  # one of which is left out from the beginning
        session.draft(8)
        assert session.statistics.dropped == {(1, "tokenizer"): 1}
    assert other.drafted == []


def test_its_settings_are_those_of_the_session() -> None:
    away, recycled, calibration = Elsewhere(), RecycledLogits(), Calibration.default()
    options: dict[str, Any] = {"calibration": calibration, "max_suffix": 5, "learn": False, "tokenizer": identity(300)}
    rows = [[4, 5], [6, -1]]
    with DraftSession([PromptLookup(), away, recycled], TEXT, prompt_top_k=rows, source_timeout=2.5, **options) as one:
        costs = 1 + 0.01 * np.arange(100)
        one.draft(8, costs)
        one.draft(3)
    (settings,) = away.settings
    assert settings.calibration is calibration
    assert (settings.learn, settings.max_suffix, settings.tokenizer) == (False, 5, identity(300))
    assert (settings.prompt_lookup, settings.recycled_logits) == (True, recycled.key)
    assert settings.prompt_top_k is not None
    assert settings.prompt_top_k.tolist() == rows
    (_, _, (nodes, sent, _, _), timeout), (_, _, (fewer, none, _, _), _) = away.drafted
    assert (nodes, fewer, none.size) == (8, 3, 0)
    assert timeout is not None
    assert 0 < timeout <= 2.5
    assert sent.tolist() == costs[:9].tolist(), "no more than the tree may have nodes"
    with DraftSession([away], TEXT):
        assert away.settings[-1].prompt_lookup is False
        assert away.settings[-1].recycled_logits is away.settings[-1].prompt_top_k is None


@pytest.mark.parametrize("learn", [True, False])
def test_what_is_learnt_there_is_known_here(learn: bool) -> None:
    away = Elsewhere()
    with DraftSession([away], TEXT, learn=learn) as session:
        away.weights = [0.25, 0, -0.5, 7, -1e30]
        session.draft(8)
        assert session.calibration.weights == ([0.25, 0, -0.5, 1, -1] if learn else [0] * 5)
        away.weights = []
        session.draft(8)
        assert session.calibration.weights == ([0.25, 0, -0.5, 1, -1] if learn else [0] * 5)


def test_rows_for_nodes_are_passed_on_for_its_own_tree_alone() -> None:
    """Those of a tree that was drafted here mean nothing there; without a tree, the row is that of the text."""
    away = Elsewhere()
    rows = [[7, 8]] * 4
    with DraftSession([away, PromptLookup(), RecycledLogits()], TEXT) as session:
        session.accept([3], node_top_k=rows[:1])  # before any tree
        session.draft(8)
        session.accept([3], [[1, 2]], node_top_k=rows)
        session.accept([4], node_top_k=rows[:1])  # the tree has been answered
        away.answer = Nodes([], [], [], [])
        session.draft(8)
        session.draft(0)
        session.accept([5], node_top_k=rows[:1])  # of the tree without nodes
        away.answer = ValueError("gone")
        tree = session.draft(8)
        session.accept([6], node_top_k=[[7, 8]] * (1 + len(tree)))
        assert len(session.draft(0)) == 0
        session.accept([7], node_top_k=rows[:1])  # an answer may still come there
    assert away.accepted == [
        ([3], None, rows[:1]),
        ([3], [[1, 2]], rows),
        ([4], None, rows[:1]),
        ([5], None, rows[:1]),
        ([6], None, None),
        ([7], None, None),
    ]
    assert [limits.max_nodes for _, _, limits, _ in away.drafted] == [8, 8, 0, 8, 0]
