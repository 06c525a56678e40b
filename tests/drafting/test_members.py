"""Sessions with members elsewhere send steps, merge trees, and go on when a member fails."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rest_store import accept_all, draft_all
from rest_store.datastore.datastore import Datastore
from rest_store.datastore.tree import TokenTree
from rest_store.drafting.draft_options import DraftOptions
from rest_store.drafting.merge import merge_trees
from rest_store.drafting.session import DraftSession
from rest_store.drafting.sources import PromptLookup, RecycledLogits
from rest_store.errors import (
    ContextTypeError,
    DeadlineError,
    ServiceUnavailableError,
    TokenizerMismatchError,
)
from tests.shared.members import Elsewhere, LocalMember, ScriptedSource, scored
from tests.shared.strategies import (
    ONE_TO_NINE,
    Corpus,
    contexts,
    corpora,
    identity,
    open_datastore,
    refused,
)

TEXT = [3, 7, 5, 3, 7]
TREE = scored([5, 6, 4], [-1, 0, -1], [0.5, 0.25, 0.125])


@pytest.fixture
def store(tmp_path: Path) -> Datastore:
    return open_datastore(tmp_path, ONE_TO_NINE)


@settings(max_examples=20)
@given(data=st.data())
def test_the_only_source_with_counts_drafts_elsewhere_what_it_would_draft_here(
    data: st.DataObject,
) -> None:
    corpus = data.draw(corpora())
    text = [token for _ in range(2) for token in data.draw(contexts(corpus))][-60:]
    start = data.draw(st.integers(1, len(text)))
    shape = data.draw(st.sampled_from(["tree", "chain"]))
    costs = data.draw(st.sampled_from([None, [1, 1.1, 1.2, 1.5]]))
    with tempfile.TemporaryDirectory() as directory:
        store = open_datastore(Path(directory), corpus)
        here = DraftSession([store, PromptLookup(), RecycledLogits()], text[:start])
        away = DraftSession([Elsewhere([store]), PromptLookup(), RecycledLogits()], text[:start])
        drafted = 0
        for token in [*text[start:], 0]:
            tree = here.draft(8, costs, shape=shape)
            drafted += len(tree)
            assert away.draft(8, costs, shape=shape) == tree
            rows = [[token % 5, 1]] * (1 + len(tree))
            for session in (here, away):
                session.accept([token], [[-1, -1]], node_top_k=rows)
        assert here.statistics == away.statistics
    assert here.calibration.weights != away.calibration.weights == [0] * 5 or not drafted


@settings(max_examples=20)
@given(data=st.data())
def test_trees_of_several_members_and_of_here_are_merged(data: st.DataObject) -> None:
    corpus = data.draw(corpora())
    other = Corpus(corpus.vocabulary_size, [corpus.shards[0][:1]])
    text = data.draw(contexts(corpus))
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        first = open_datastore(Path(one), corpus)
        second = open_datastore(Path(two), other)
        with DraftSession([PromptLookup(), Elsewhere([second]), first], text) as session:
            tree = session.draft(8)
            alone = [
                DraftSession([PromptLookup(), store], text).draft(8) for store in (second, first)
            ]
            expected = merge_trees(alone, DraftOptions(8))[0]
            assert tree.tokens.tolist() == expected.tokens.tolist()
            assert tree.scores is not None
            assert expected.scores is not None
            assert tree.scores.tolist() == expected.scores.tolist()


MALFORMED: dict[str, Any] = {
    "number of nodes is 4, expected at most 3": scored(
        [5, 6, 4, 3], [-1, 0, -1, 2], [0.5, 0.25, 0.1, 0.1]
    ),
    "a tree has no scores or no origins": TokenTree([5], [-1], [0]),
    "a token is -5": scored([-5], [-1], [0.5]),
    "the score of node 1 is 0.75, expected 0 to its parent's": scored([5, 6], [-1, 0], [0.5, 0.75]),
    "the score of node 0 is nan": scored([5], [-1], [float("nan")]),
    "the score of node 0 is 1.5": scored([5], [-1], [1.5]),
    "tree is a list": [5, 6],
}


@pytest.mark.parametrize("actual", MALFORMED)
@pytest.mark.parametrize("others", [0, 1])
def test_a_malformed_tree_costs_its_member_the_step(actual: str, others: int) -> None:
    wrong = ScriptedSource(TREE, MALFORMED[actual], TREE)
    right = ScriptedSource(TREE)
    with DraftSession([wrong, *[right] * others], TEXT) as session:
        whole = session.draft(3)
        session.accept([5])
        alone = session.draft(3)
        assert len(alone) == 3 * others, "the other one's"
        assert [actual in omission.text for omission in session._sources.omissions] == [True]
        session.accept([5])
        assert session.draft(3).tokens.tolist() == whole.tokens.tolist(), "it is asked again"
        assert session.statistics.omissions == {("scripted", "error"): 1}


def test_a_tree_with_branches_in_the_place_of_a_chain_costs_its_member_the_step() -> None:
    branches = scored([5, 6], [-1, -1], [0.5, 0.25])
    with DraftSession([ScriptedSource(branches)], TEXT) as session:
        assert len(session.draft(3, shape="chain")) == 0
        assert "a tree has branches" in session.statistics.absent["scripted"].reason
        assert len(session.draft(3)) == 2


@pytest.mark.parametrize("has_references", [True, False])
def test_members_search_references_or_these_are_drafted_from_here(
    store: Datastore, monkeypatch: pytest.MonkeyPatch, has_references: bool
) -> None:
    monkeypatch.setattr(LocalMember, "has_references", has_references)
    options: Any = {"prompt": [1, 2], "references": [[1, 2, 77, 78]]}
    with DraftSession([Elsewhere([store]), PromptLookup()], **options) as session:
        tree = session.draft(16)
        assert len(tree.longest_path([77, 78])) == 2
        assert len(tree.longest_path([3])) == 1
    with DraftSession([store, PromptLookup()], **options) as here:
        assert (tree == here.draft(16)) == has_references


def test_origins_are_those_of_the_session(store: Datastore) -> None:
    away = Elsewhere([store])
    with DraftSession([RecycledLogits(), away, PromptLookup()], [1, 2, 3, 1, 2]) as session:
        tree = session.draft(16)
    assert tree.origins is not None
    assert set(tree.origins.tolist()) == {0b010, 0b100, 0b110}


def test_a_member_gets_the_settings_the_text_and_what_is_accepted() -> None:
    away = ScriptedSource(TREE)
    recycled = RecycledLogits()
    session = DraftSession([away, recycled], TEXT, learn=False, tokenizer=identity(300))
    settings = away.settings
    assert settings is not None
    assert (settings.learn, settings.tokenizer) == (False, identity(300))
    assert (settings.prompt_lookup, settings.recycled_logits) == (False, recycled.key)
    assert len(session.draft(3)) == 3
    refused(
        ContextTypeError,
        lambda: session.accept([5], node_top_k=[[1]] * 3),
        "node_top_k",
        "[3, 1]",
        "[4, k]",
    )
    session.accept([5, 6, 9], [[1], [2], [-1]], node_top_k=[[1], [2], [3], [4]])
    session.accept([8], node_top_k=[[7]])
    assert away.text().tolist() == [*TEXT, 5, 6, 9, 8]
    assert away.calls("accept") == [
        ([5, 6, 9], [[1], [2], [-1]], [[1], [2], [3], [4]]),
        ([8], None, [[7]]),
    ]
    assert away.calls("send") == [(DraftOptions(3),)]
    assert away.calls("receive") == [(None,)]
    session.close()
    session.close()
    assert away.calls("close")


def test_each_member_gets_the_rows_of_its_own_tree(store: Datastore) -> None:
    """Nothing is known of nodes that are cut."""
    one = ScriptedSource(scored([5, 6], [-1, 0], [0.5, 0.1]))
    other = ScriptedSource(
        scored([4, 5, 6], [-1, -1, 1], [0.9, 0.5, 0.3]),
        scored([4, 5], [-1, -1], [0.9, 0.5]),
    )
    with DraftSession([one, other], TEXT) as session:
        tree = session.draft(3)
        assert tree.tokens.tolist() == [5, 6, 4]
        session.accept([5, 6, 1], node_top_k=[[10], [15], [16], [14]])
        assert one.calls("accept")[0][2] == [[10], [15], [16]]
        assert other.calls("accept")[0][2] == [[10], [14], [15], [16]]
        assert session.draft(2).tokens.tolist() == [5, 4]
        session.accept([5], node_top_k=[[10], [15], [14]])
        assert one.calls("accept")[1][2] == [[10], [15], [-1]]


FAILURES: dict[str, tuple[Any, str]] = {
    "late": (DeadlineError("no answer within 0.1 s"), "late"),
    "late before": (DeadlineError, "late"),
    "away": (ServiceUnavailableError("away"), "error"),
    "cannot be sent": (ServiceUnavailableError, "error"),
    "anything": (KeyError("x"), "error"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_member_that_fails_is_left_out_of_the_step_and_counted(
    store: Datastore, name: str
) -> None:
    failure, why = FAILURES[name]
    away = ScriptedSource(failure, TREE)
    with DraftSession([store, away], [1, 2], source_timeout=30) as session:
        tree = session.draft()
        assert tree == DraftSession([store], [1, 2]).draft()
        assert session.statistics.omissions == {("scripted", why): 1}
        assert session.statistics.absent["scripted"].steps == 1
        session.accept([3], node_top_k=[[1]] * (1 + len(tree)))
        tree = session.draft()
        assert {4, 5} <= set(tree.tokens.tolist())
        assert session.statistics.omissions == {("scripted", why): 1}
        assert session.statistics.absent == {}
    assert all(0 < timeout <= 30 for (timeout,) in away.calls("receive"))


def test_where_no_member_answers_the_sources_in_this_process_draft() -> None:
    away = ScriptedSource(ServiceUnavailableError("away"))
    with DraftSession([away, PromptLookup()], TEXT) as session:
        tree = session.draft(8)
        assert tree.tokens.tolist() == DraftSession([PromptLookup()], TEXT).draft(8).tokens.tolist()
        session.accept(tree.tokens[:1], node_top_k=[[1]] * (1 + len(tree)))
    assert away.calls("accept")[0][2] is None


def test_parts_of_a_source_are_members_and_count_once(store: Datastore) -> None:
    away = Elsewhere([store], [store])
    with DraftSession([away], [1, 2]) as session:
        assert session.draft(8) == DraftSession([store], [1, 2]).draft(8)
        for member in away.opened:
            member.session.close()  # it raises from now on
        assert len(session.draft(8)) == 0
        assert session.statistics.omissions == {("elsewhere", "error"): 1}


@pytest.mark.parametrize("answer", [TokenizerMismatchError("another"), TokenizerMismatchError])
def test_a_member_of_another_tokenizer_is_left_out_for_good(store: Datastore, answer: Any) -> None:
    away = ScriptedSource(answer)
    with DraftSession([away, store], [1, 2]) as session:
        for _ in range(3):
            assert len(session.draft()) > 0
        assert session.statistics.omissions == {("scripted", "tokenizer"): 3}
    assert len(away.calls("send")) == 1
    assert len(away.calls("close")) == 1


def test_a_source_that_cannot_open_a_session_is_left_out_for_good(store: Datastore) -> None:
    class Closed:
        def __str__(self) -> str:
            return "closed"

        def members(self, *_: object) -> Any:
            raise ServiceUnavailableError("the client is closed")

    with DraftSession([Closed(), store], [1, 2]) as session:
        assert len(session.draft()) == len(session.draft()) > 0
        assert session.statistics.omissions == {("closed", "error"): 2}


def test_a_member_that_loses_the_text_or_does_not_close_costs_the_others_nothing(
    store: Datastore,
) -> None:
    class Faulty(ScriptedSource):
        def accept(self, *_: Any) -> None:
            if len(self.calls("send")) == 2:
                raise ConnectionError("the text is lost")

        def close(self) -> None:
            super().close()
            raise ConnectionError("the service went away")

    sources = [
        Faulty(TREE),
        ScriptedSource(TREE),
        Faulty(DeadlineError("late")),
        ScriptedSource(TREE),
    ]
    with DraftSession([*sources, store], [1, 2]) as session:
        session.draft()
        session.accept([3])
        session.draft()
        session.accept([4])
        assert len(session.draft()) > 0
        assert sorted(session.statistics.absent) == ["scripted", "scripted (3)"]
    assert [len(source.calls("send")) for source in sources] == [2, 3, 2, 3]
    assert [len(source.calls("close")) for source in sources] == [1, 1, 1, 1]


def test_no_step_waits_for_a_member_that_is_left_out(store: Datastore) -> None:
    with DraftSession(
        [ScriptedSource(TokenizerMismatchError("another")), store], [1, 2]
    ) as session:
        session.draft()
        assert session.statistics.waited > 0
        session.draft()
        assert session.statistics.waited == 0


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), SystemExit(), KeyboardInterrupt])
def test_an_interrupt_passes_through_and_the_session_is_as_before(
    store: Datastore, interrupt: Any
) -> None:
    before = ScriptedSource(TREE)
    away = ScriptedSource(TREE, interrupt, TREE)
    with DraftSession([before, away, store], [1, 2]) as session:
        session.draft(8)
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            session.draft(8)
        assert session.statistics.steps == 1
        session.accept([3], node_top_k=[[9]])  # there is no tree
        assert before.calls("accept")[0][2] is None
        assert len(session.draft(8)) == 8


def test_batches_ask_all_members_before_they_wait_for_any(store: Datastore) -> None:
    log: list[tuple[str, int]] = []

    class Logged(ScriptedSource):
        def __init__(self, number: int, *answers: Any) -> None:
            super().__init__(*answers)
            self.number = number

        def send(self, limits: DraftOptions) -> None:
            log.append(("send", self.number))
            super().send(limits)

        def receive(self, timeout: float | None) -> TokenTree:
            log.append(("receive", self.number))
            return super().receive(timeout)

    answers: list[Any] = [TREE, ServiceUnavailableError("away"), TREE]
    sources = [Logged(number, answer) for number, answer in enumerate(answers)]
    sessions = [DraftSession([source, PromptLookup()], TEXT) for source in sources]
    sessions.insert(1, DraftSession([store], [1, 2]))
    trees = draft_all(sessions, [8, 4, 8, 8])
    assert log == [
        ("send", 0),
        ("send", 1),
        ("send", 2),
        ("receive", 0),
        ("receive", 1),
        ("receive", 2),
    ]
    assert trees[0] == trees[3] != trees[2]
    assert trees[1] == DraftSession([store], [1, 2]).draft(4)
    assert trees[2].tokens.tolist() == DraftSession([PromptLookup()], TEXT).draft(8).tokens.tolist()
    assert [session.statistics.omissions for session in sessions] == [
        {},
        {},
        {("scripted", "error"): 1},
        {},
    ]
    accept_all(sessions, [[5]] * 4, node_top_k=[[[1]] * (1 + len(tree)) for tree in trees])
    assert [source.calls("accept")[0][2] for source in sources] == [[[1]] * 4, None, [[1]] * 4]


def test_recycled_logits_here_learn_what_the_session_is_told(store: Datastore) -> None:
    """Recycled logits here draft where the member that has the tree is away."""
    recycled = RecycledLogits()
    with DraftSession([ScriptedSource(TREE), recycled], TEXT) as session:
        session.draft(8)
        session.accept([5, 8], [[7], [-1]], node_top_k=[[1], [7], [2], [3]])
    for token, likely in ((7, 1), (5, 7)):
        assert DraftSession([recycled], [9, token]).draft(4).tokens[0] == likely
