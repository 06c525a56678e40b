"""External sources that misbehave: invalid answers, errors and delays are counted, and no step waits for them."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rest_store.datastore.datastore import Datastore
from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.datastore.tree import SuffixMatch, TokenTree
from rest_store.drafting import external_sources, source_thread
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.session import Absence, DraftSession, SessionStatistics
from rest_store.drafting.sources import PromptLookup
from tests.shared.strategies import ONE_TO_NINE, identity, open_datastore

ONE_MATCH = SuffixMatch(1, 10)


@pytest.fixture
def store(tmp_path: Path) -> Datastore:
    return open_datastore(tmp_path, ONE_TO_NINE)


class Answering:
    """Answers every context with `answer(context)`; keeps the contexts."""

    def __init__(self, answer: Callable[[Any], TokenTree]) -> None:
        self.answer = answer
        self.asked: list[list[list[int]]] = []

    def draft_batch(self, contexts: Any, **limits: int) -> list[TokenTree]:
        self.asked.append([context.tolist() for context in contexts])
        return [self.answer(context) for context in contexts]


def chain(*tokens: int, match: SuffixMatch = ONE_MATCH) -> TokenTree:
    return TokenTree(tokens, range(-1, len(tokens) - 1), [10] * len(tokens), match=match)


def raising(error: BaseException) -> Answering:
    def answer(context: Any) -> TokenTree:
        raise error

    return Answering(answer)


@pytest.mark.parametrize(
    "tree",
    [
        chain(-5),
        chain(300),
        chain(7, 2**31 - 1),
        chain(*range(65)),
        chain(7, match=SuffixMatch(0, 0)),
        chain(7, match=SuffixMatch(17, 1)),
    ],
    ids=["negative", "outside", "greatest", "too many nodes", "no match", "longer than asked"],
)
@pytest.mark.parametrize("timeout", [None, 30.0])
def test_an_invalid_answer_is_left_out_and_counted(
    store: Datastore, calibration: Calibration, tree: TokenTree, timeout: float | None
) -> None:
    source = Answering(lambda context: tree)
    with (
        DraftSession([source, store], [1, 2], calibration=calibration, source_timeout=timeout) as session,
        DraftSession([store], [1, 2], calibration=calibration) as alone,
    ):
        for token in (3, 4):
            mine, expected = session.draft(), alone.draft()
            assert mine.tokens.tolist() == expected.tokens.tolist()
            assert mine.scores is not None
            assert expected.scores is not None
            assert mine.scores.tolist() == expected.scores.tolist()
            session.accept([token])
            alone.accept([token])
        assert session.statistics.dropped == {(0, "error"): 2}


def test_a_negative_token_is_refused_though_no_vocabulary_is_known(calibration: Calibration) -> None:
    with DraftSession([Answering(lambda context: chain(-5))], [1, 2], calibration=calibration) as session:
        assert len(session.draft()) == 0
        assert session.statistics.dropped == {(0, "error"): 1}


@pytest.mark.parametrize("timeout", [None, 30.0])
def test_a_timeout_that_the_source_raises_is_an_error(calibration: Calibration, timeout: float | None) -> None:
    source = raising(TimeoutError("socket"))
    with DraftSession([source], [1, 2], calibration=calibration, source_timeout=timeout) as session:
        session.draft()
        session.draft()
        assert session.statistics.dropped == {(0, "error"): 2}


@pytest.mark.parametrize("timeout", [None, 30.0])
def test_an_interrupt_leaves_the_session_as_it_was(
    store: Datastore, calibration: Calibration, timeout: float | None
) -> None:
    interrupts = [True]

    def answer(context: Any) -> TokenTree:
        if interrupts and interrupts.pop():
            raise KeyboardInterrupt
        return store.draft(context, max_nodes=64, max_suffix=16, max_depth=12)

    options: dict[str, Any] = {"calibration": calibration, "learn": False, "source_timeout": timeout}
    sources = [PromptLookup(), Answering(answer)]
    with (
        DraftSession(sources, [1, 2, 3, 1, 2], **options) as session,
        DraftSession([PromptLookup(), store_in_python(store)], [1, 2, 3, 1, 2], **options) as other,
    ):
        with pytest.raises(KeyboardInterrupt):
            session.draft()
        assert session.statistics.steps == 0
        for one in (session, other):
            one.accept([3])  # the other session has not drafted either, so neither learns from a tree
        assert session.statistics.accepted == 0
        assert session.draft() == other.draft()


@pytest.mark.parametrize("timeout", [None, 30.0])
def test_an_interrupted_step_counts_nothing(calibration: Calibration, timeout: float | None) -> None:
    interrupts = [True]

    def answer(context: Any) -> TokenTree:
        if interrupts and interrupts.pop():
            raise KeyboardInterrupt
        return chain(7)

    sources = [raising(OSError("gone")), Answering(answer)]
    with DraftSession(sources, [1, 2], calibration=calibration, source_timeout=timeout) as session:
        with pytest.raises(KeyboardInterrupt):
            session.draft()
        assert session.statistics == SessionStatistics()
        session.draft()
        assert session.statistics.dropped == {(0, "error"): 1}
        assert session.statistics.absent == {0: Absence(1, "source 0: OSError: gone")}


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise SystemExit("nothing can be said about this")


@pytest.mark.parametrize("timeout", [None, 30.0])
@pytest.mark.parametrize("error", [GeneratorExit(), asyncio.CancelledError(), UnspeakableError()], ids=repr)
def test_whatever_a_source_raises_is_counted(
    store: Datastore, calibration: Calibration, error: BaseException, timeout: float | None
) -> None:
    options: dict[str, Any] = {"calibration": calibration, "source_timeout": timeout}
    with DraftSession([raising(error), store], [1, 2], **options) as session:
        for _ in range(2):
            assert len(session.draft())
        assert session.statistics.dropped == {(0, "error"): 2}
        assert type(error).__name__ in session.statistics.errors[0]
        assert session.statistics.absent[0].steps == 2


def test_a_source_may_end_its_own_thread_but_not_the_program(store: Datastore, calibration: Calibration) -> None:
    """Without a thread of its own, `SystemExit` may be a handler's of SIGTERM, and passes through as interrupts do."""
    sources = [raising(SystemExit(3)), store]
    with DraftSession(sources, [1, 2], calibration=calibration, source_timeout=30.0) as session:
        assert len(session.draft())
        assert session.statistics.errors == ["source 0: SystemExit: 3"]
    with DraftSession(sources, [1, 2], calibration=calibration) as session:
        with pytest.raises(SystemExit):
            session.draft()
        assert session.statistics == SessionStatistics()


def test_a_thread_that_cannot_start_is_an_error_of_its_source(
    store: Datastore, calibration: Calibration, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    options: dict[str, Any] = {"calibration": calibration, "source_timeout": 30.0}
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        session = DraftSession([Answering(lambda context: chain(7)), store], [1, 2], **options)
        assert len(session.draft())
        assert session.statistics.errors == ["source 0: RuntimeError: can't start new thread"]
    with session:  # the next step tries again
        session.draft()
        assert session.statistics.dropped == {(0, "error"): 1}
        assert session.statistics.absent == {}


def test_no_step_waits_for_a_source_that_was_late_until_it_has_answered_in_time(
    store: Datastore, calibration: Calibration, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answers = threading.Semaphore(0), threading.Semaphore(0)
    awaited: list[int] = []
    now, hanging = 0.0, False

    def waiting(calls: Any, timeout: float) -> Any:
        nonlocal now
        awaited.append(len(calls))
        if hanging:
            asked.acquire()
            now += 2 * timeout
        return wait(calls, 0 if hanging else None)

    class Slow:
        def draft_batch(self, contexts: Any, *, max_nodes: int, max_suffix: int, max_depth: int) -> list[TokenTree]:
            asked.release()
            answers.acquire()
            return [chain(7)] * len(contexts)

    monkeypatch.setattr(external_sources, "wait", waiting)
    for module in (external_sources, source_thread):
        monkeypatch.setattr(module, "monotonic", lambda: now)
    with DraftSession([Slow(), store], [1, 2], calibration=calibration, source_timeout=30.0) as session:
        awaited.clear()
        hanging = True
        session.draft()
        hanging = False
        session.draft()  # the call still runs
        for _ in range(2):  # it ends late; the next one is in time
            answers.release()
            session.sources.external._sources[0].thread.pending.result()  # type: ignore[union-attr]
            answers.release()
            session.draft()
        assert awaited == [1, 0, 0, 1]
        assert session.statistics.dropped[0, "late"] >= 2
        assert session.statistics.absent == {}


def test_a_source_that_reports_another_tokenizer_late_is_never_asked_again(
    store: Datastore, calibration: Calibration
) -> None:
    class Late(Answering):
        tokenizer: TokenizerIdentity | None = None

        def draft_batch(self, contexts: Any, **limits: int) -> list[TokenTree]:
            self.tokenizer = identity(400)
            return super().draft_batch(contexts, **limits)

    source = Late(lambda context: chain(7))
    with (
        DraftSession([source, store], [1, 2], calibration=calibration, source_timeout=30.0) as session,
        DraftSession([store], [1, 2], calibration=calibration) as alone,
    ):
        for _ in range(3):
            assert session.draft().tokens.tolist() == alone.draft().tokens.tolist()
        assert len(source.asked) == 1
        assert session.statistics.dropped == {(0, "tokenizer"): 3}
        assert session.statistics.absent[0].steps == 3


def store_in_python(store: Datastore) -> Answering:
    return Answering(lambda context: store.draft(context, max_nodes=64, max_suffix=16, max_depth=12))


def test_without_text_no_source_is_asked(store: Datastore, calibration: Calibration) -> None:
    source = store_in_python(store)
    for timeout in (None, 30.0):
        with DraftSession([source], calibration=calibration, source_timeout=timeout) as session:
            assert len(session.draft()) == 0
            assert source.asked == []
            assert session.statistics.dropped == {}


def test_contexts_end_before_tokens_outside_the_vocabulary(store: Datastore, calibration: Calibration) -> None:
    source = store_in_python(store)
    text = [9, 300, 1, 2, 3, 70_000, 1, 2, 3, 1]
    options: dict[str, Any] = {"calibration": calibration, "tokenizer": identity(300)}
    with DraftSession([PromptLookup(), source], text, **options) as session:
        tree = session.draft()
        assert session.statistics.dropped == {}
        assert source.asked[0][0] == [1, 2, 3, 1]
        assert all(token < 300 for context in source.asked[0] for token in context)
        assert all(source.asked[0])
        assert tree.origins is not None
        assert any(int(origins) & 2 for origins in tree.origins)
        session.accept([500])  # what follows is known to the text alone
        session.draft()
        assert session.statistics.dropped == {}


@pytest.mark.parametrize(("longest", "most"), [(1, 1), (3, 3), (16, 16), (40, 40)])
def test_the_longest_suffix_limits_external_sources(
    store: Datastore, calibration: Calibration, longest: int, most: int
) -> None:
    source = store_in_python(store)
    text = [1, 2, 3, 4, 5, 6, 7, 8] * 8
    with DraftSession([source], text, calibration=calibration, max_suffix=longest) as session:
        session.draft()
    assert max(len(context) for context in source.asked[0]) == most


def test_paths_are_added_to_the_longest_suffix(store: Datastore, calibration: Calibration) -> None:
    source = store_in_python(store)
    text = [1, 2, 3, 4, 5, 6, 7, 8] * 8
    with DraftSession([PromptLookup(), source], text, calibration=calibration, max_suffix=1) as session:
        session.draft()
    sizes = {len(context) for context in source.asked[0]}
    assert {1, 2, 3} <= sizes
    assert max(sizes) <= 1 + 8


def test_a_source_that_never_answers_does_not_keep_the_process(tmp_path: Path) -> None:
    program = """
        import threading
        from rest_store.drafting.session import DraftSession

        class Silent:
            def draft_batch(self, contexts, **limits):
                threading.Event().wait()

        session = DraftSession([Silent()], [1, 2], source_timeout=0.01)
        session.draft()
        session.close()
        print(session.statistics.dropped)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "{(0, 'late'): 1}\n"


def test_a_session_does_not_wait_longer_for_a_tokenizer(store: Datastore, calibration: Calibration) -> None:
    asked, go = threading.Event(), threading.Event()

    class Slow(Answering):
        @property
        def tokenizer(self) -> TokenizerIdentity:
            asked.set()
            go.wait()
            return identity(300)

    sources = [Slow(lambda context: chain(7)), store]
    with DraftSession(sources, [1, 2], calibration=calibration, source_timeout=0.01) as session:
        asked.wait()
        assert len(session.draft()) > 0
        assert session.statistics.dropped == {(0, "late"): 1}
    go.set()


def test_the_first_few_errors_of_each_source_are_kept(store: Datastore, calibration: Calibration) -> None:
    numbers = itertools.count()

    def answer(context: Any) -> TokenTree:
        raise ConnectionError(f"{next(numbers)} " + "x" * 1000)

    with DraftSession([Answering(answer), raising(OSError("gone"))], [1, 2], calibration=calibration) as session:
        for _ in range(9):
            session.draft()
        errors = session.statistics.errors
    assert [error[:27] for error in errors if "source 0" in error] == [
        f"source 0: ConnectionError: {number}"[:27] for number in range(4)
    ]
    assert max(map(len, errors)) < 400
    assert [error for error in errors if "source 1" in error] == ["source 1: OSError: gone"]
    assert session.statistics.dropped == {(0, "error"): 9, (1, "error"): 9}


@pytest.mark.parametrize("closed", [True, False])
def test_threads_end_with_their_session(store: Datastore, calibration: Calibration, closed: bool) -> None:
    threads: list[threading.Thread] = []

    def answer(context: Any) -> TokenTree:
        threads.append(threading.current_thread())
        return store.draft(context)

    session = DraftSession([Answering(answer)], [1, 2], calibration=calibration, source_timeout=30.0)
    session.draft()
    assert threads[0].daemon
    assert threads[0] is not threading.current_thread()
    if closed:
        session.close()
    else:
        del session
    threads[0].join(60)
    assert not threads[0].is_alive()


def test_no_source_is_ignored_because_others_propose_many_tokens(calibration: Calibration) -> None:
    """Six sources with 75 tokens each: more than are weighed, yet the last one's certain token is in the tree."""

    def wide(first: int, sure: int | None = None) -> Answering:
        def answer(context: Any) -> TokenTree:
            tokens = np.arange(first + 15 * len(context), first + 15 * len(context) + 15)
            counts = np.full(15, 10)
            if sure is not None:
                tokens, counts = np.array([sure]), np.array([150])
            return TokenTree(tokens, np.full(len(tokens), -1), counts, match=SuffixMatch(len(context), 150))

        return Answering(answer)

    text = np.arange(20)
    sources = [wide(1000 * place) for place in range(1, 6)]
    with DraftSession([*sources, wide(0, sure=9_999)], text, calibration=calibration) as session:
        tree = session.draft(64)
    assert 9_999 in tree.tokens.tolist()
    assert tree.origins is not None
    assert int(tree.origins[tree.tokens.tolist().index(9_999)]) == 1 << 5
