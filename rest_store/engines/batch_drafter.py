"""Drafts for the batch of a serving engine: whatever happens, the engine gets lists of tokens."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from rest_store.datastore.kernel import MAX_SUFFIX
from rest_store.datastore.store import Store
from rest_store.datastore.tree import TokenTree
from rest_store.drafting.batch import accept_all, draft_all
from rest_store.drafting.output_document import OutputDocument
from rest_store.drafting.remembering import RememberCounts, remember
from rest_store.drafting.session import DraftSession
from rest_store.engines.counters import Counters, Figures
from rest_store.engines.goodput import Goodput
from rest_store.engines.likely_tokens import LikelyTokens, Rows
from rest_store.engines.preloading import preload
from rest_store.engines.row_draft import RowDraft
from rest_store.engines.row_sessions import Answer, RowSession, RowSessions, Tokens
from rest_store.engines.sources import EngineSources
from rest_store.errors import TokenRangeError, describe

_TEND_SECONDS = 0.5  # between looks at what has ended
_EMPTY = TokenTree([], [], [], scores=[], origins=[])


class BatchDrafter:
    """Draft tokens for each row of a batch, as many as pay, from sessions that follow the rows.

    Args:
        sources: what sessions draft from; closed with this.
        most: the most draft tokens of a row.
        longest: the most tokens of a row that the engine allows.
        vocabulary_size: token ids of the model.
        log: gets one warning for each kind of error.
        ends: tokens that usually end an output, which is then remembered at once.
        clock: returns the time in seconds.

    Thread-safe. A thread of its own calls `tend` until `close`.
    """

    def __init__(
        self,
        sources: EngineSources,
        *,
        most: int,
        longest: int,
        vocabulary_size: int,
        log: logging.Logger,
        ends: Set[int] = frozenset(),
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._sources = sources
        self._most = most
        self._longest = longest
        self._vocabulary_size = vocabulary_size
        self._log = log
        self._clock = clock
        self._counters = Counters(sources.labels, most)
        self._rows = RowSessions(self._open_session, ends)
        self._goodput = Goodput()
        # For each row that drafted in the latest step: the origins of its draft tokens, and the sum of their scores.
        self._drafted: list[tuple[RowSession, list[int], float]] = []
        self._returned: float | None = None  # when the latest call of `propose` returned; None: there was none
        self._lock = threading.RLock()
        self._listeners: list[Callable[[Figures], None]] = []
        self._closed = threading.Event()
        keeper = threading.Thread(target=_keep, args=(weakref.ref(self), self._closed), name="rest-store", daemon=True)
        keeper.start()

    @property
    def wants_logits(self) -> bool:
        """Whether the model's most likely tokens in the next step will be used."""
        return not self._goodput.is_paused

    def warm_up(self) -> None:
        """Read the datastores, so that the first requests do not wait for disks; bounded in time and memory."""
        try:
            began = time.monotonic()
            touched, total = preload(self._sources.stores)
            seconds = time.monotonic() - began
            self._log.info("rest-store: read %.0f of %.0f MB in %.1f s", touched / 1e6, total / 1e6, seconds)
        except Exception as error:
            self.say("preload", error)

    def propose(
        self,
        sampled: Sequence[Sequence[int]],
        lengths: npt.NDArray[np.integer[Any]],
        tokens: Tokens,
        computed: Sequence[Rows] = (),
        seconds: float = 0.0,
    ) -> list[list[int]]:
        """Return the draft tokens of each row for the next step. Raises nothing but interrupts.

        Args:
            sampled: for each row what the model has just produced; empty while its prompt is being read.
            lengths: int[B], tokens that each row holds, with those in `sampled`.
            tokens: int32[B, n], the rows.
            computed: one array for each time that the model computed logits since the last call: its most likely tokens
                after each position, int32[n, k]. They are used only if there is exactly one, as after a step.
            seconds: spent on reading `computed`.

        Returns:
            A list for each of `sampled`, of at most `most` tokens, within the vocabulary and the longest length.
        """
        began = self._clock()
        drafts: list[list[int]] = [[] for _ in sampled]
        try:
            with self._lock:
                self._propose(sampled, lengths, tokens, computed, began, drafts)
        except Exception as error:
            self._start_over(error)
            drafts = [[] for _ in sampled]
        self._returned = self._clock()
        self._counters.calls += 1
        self._counters.seconds += self._returned - began + seconds
        return drafts

    def _propose(
        self,
        sampled: Sequence[Sequence[int]],
        lengths: npt.NDArray[np.integer[Any]],
        tokens: Tokens,
        computed: Sequence[Rows],
        began: float,
        drafts: list[list[int]],
    ) -> None:
        rows = [row for row, new in enumerate(sampled) if new]
        sizes = lengths[: len(sampled)].tolist()
        texts = [tokens[row, : sizes[row]] for row in rows]
        step = self._rows.follow(rows, texts, [sampled[row] for row in rows], began)
        self._count_drafted()
        if step.is_plain_decoding and len(rows) == len(sampled) and rows and self._returned is not None:
            self._goodput.observe(len(rows), sum(step.drafted), began - self._returned)
        if not rows or not self._goodput.wants_drafts():
            return
        likely = self._likely_tokens(computed, dict(zip(rows, step.drafted, strict=True)), len(sampled))
        requests: list[RowDraft] = []
        for row, text in zip(step.sessions, texts, strict=True):
            max_nodes = min(self._most, self._longest - 1 - row.length)
            if row.session is not None and max_nodes > 0:
                request = RowDraft(row, row.session, text[row.session_length :], max_nodes)
                requests.append(request if likely is None else request.with_likely(likely, len(sampled[row.index])))
        if requests:
            began_drafting = self._clock()
            requests = self._accept(requests)
            self._choose(requests, self._trees(requests), len(rows), drafts)
            self._goodput.settle(self._clock() - began_drafting)

    def _likely_tokens(self, computed: Sequence[Rows], drafted: dict[int, int], rows: int) -> LikelyTokens | None:
        """Return what the model found likely in this step; None if that was not computed or the rows are unknown.

        Args:
            computed: as in `propose`.
            drafted: the number of draft tokens of each row that produced tokens, by row.
            rows: the number of rows in the batch.
        """
        if not computed:
            return None
        likely = LikelyTokens(computed[0], [drafted.get(row, 0) for row in range(rows)]) if len(computed) == 1 else None
        if likely is None or not likely.fits:
            self._counters.unplaced += 1
            return None
        return likely

    def _accept(self, requests: list[RowDraft]) -> list[RowDraft]:
        """Have sessions accept the new tokens of their rows; return the requests whose sessions are still open."""
        grown = [request for request in requests if request.new.size]
        try:
            accept_all(
                [request.session for request in grown],
                [request.new for request in grown],
                [request.top_k for request in grown],
                node_top_k=[request.node_top_k for request in grown],
            )
        except Exception as error:
            self.say("accept", error)
            for request in grown:
                self._accept_alone(request)
        for request in grown:
            request.row.session_length, request.row.nodes = request.row.length, 0
        return [request for request in requests if request.row.session is not None]

    def _accept_alone(self, request: RowDraft) -> None:
        """Have one session accept its new tokens, unless it already has; give it up if that fails."""
        try:
            if len(request.session) == request.row.session_length:
                request.session.accept(request.new, request.top_k, node_top_k=request.node_top_k)
        except Exception as error:
            self._give_up(request, "accept", error)

    def _trees(self, requests: list[RowDraft]) -> list[TokenTree]:
        """Return a chain for each row."""
        try:
            sessions, limits = [request.session for request in requests], [request.max_nodes for request in requests]
            trees = draft_all(sessions, limits, shape="chain", min_score=self._goodput.min_score)
        except Exception as error:
            self.say("draft", error)
            trees = [self._draft_alone(request) for request in requests]
        for request in requests:
            if absent := request.session.statistics.absent:
                for absence in absent.values():
                    self.say("source", absence.reason)
        return trees

    def _draft_alone(self, request: RowDraft) -> TokenTree:
        """Return the chain of one row; if drafting fails, give its session up."""
        try:
            return request.session.draft(request.max_nodes, shape="chain", min_score=self._goodput.min_score)
        except Exception as error:
            self._give_up(request, "draft", error)
            return _EMPTY

    def _give_up(self, request: RowDraft, where: str, error: Exception) -> None:
        """Close the session of a row after an error; the row gets no more drafts."""
        self.say(where, error)
        request.row.session = None
        self._let_go([], [request.session])

    def _choose(self, requests: list[RowDraft], trees: list[TokenTree], rows: int, drafts: list[list[int]]) -> None:
        """Write the draft tokens that are worth verifying into `drafts`, by row."""
        scores = [_listed(tree.scores) for tree in trees]
        counts = self._goodput.chosen(scores, rows)
        for request, tree, promised, count in zip(requests, trees, scores, counts, strict=True):
            tokens = tree.tokens[:count].tolist()
            for token in tokens:
                if not 0 <= token < self._vocabulary_size:
                    raise TokenRangeError(describe("draft", "token id", token, f"0..{self._vocabulary_size - 1}"))
            drafts[request.row.index] = tokens
            self._drafted.append((request.row, _listed(tree.origins)[:count], sum(promised[:count])))
            request.row.nodes, request.row.drafted = len(tree), count

    def _count_drafted(self) -> None:
        """Count how many of the latest draft tokens were accepted, for the rows that show it."""
        promises, accepted = 0.0, 0
        for row, origins, promised in self._drafted:
            if row.accepted is not None:
                self._counters.add_draft(origins, row.accepted)
                promises += promised
                accepted += row.accepted
        self._goodput.judge(promises, accepted)
        self._drafted.clear()

    def _open_session(self, text: Tokens) -> DraftSession | None:
        try:
            return self._sources.session(text.copy())
        except Exception as error:
            self.say("open", error)
            return None

    def _start_over(self, error: Exception) -> None:
        """Close all sessions, whose state is unknown after an error."""
        with self._lock:
            self.say("propose", error)
            self._drafted.clear()
            try:
                self._let_go(*self._rows.clear())
            except Exception as another:
                self.say("close", another)

    def say(self, where: str, error: BaseException | str) -> None:
        """Count an error, and log it if it is the first of its kind.

        Args:
            where: a word for what failed.
            error: why.
        """
        reason = self._counters.add_error(where, error)
        if reason is not None:
            self._log.warning("rest-store: no drafts (%s): %s; said once", where, reason)

    def _let_go(self, answers: list[Answer], sessions: list[DraftSession]) -> None:
        """Queue answers to be remembered, and close sessions."""
        if documents := self._unknown(answers):
            counts = RememberCounts()
            self._counters.documents.append(counts)
            assert self._sources.target is not None
            remember(self._sources.target, documents, counts)
        for session in sessions:
            try:
                session.close()
            except Exception as error:
                self.say("close", error)

    def _unknown(self, answers: list[Answer]) -> list[OutputDocument]:
        """Return the documents whose text is not in the live datastore yet, each text once.

        An engine samples a few tokens beyond the end of a request, more or fewer each time, so the same answer can have
        many ids.
        """
        target = self._sources.target
        if target is None:
            return []
        unknown: list[OutputDocument] = []
        try:
            for document, certain in sorted(answers, key=lambda answer: answer.document.tokens.size, reverse=True):
                text = document.tokens[:certain]
                if isinstance(target, Store) and _has(target, text):
                    continue
                if not any(np.array_equal(longer.tokens[:certain], text) for longer in unknown):
                    unknown.append(document)
        except Exception as error:
            self.say("remember", error)
            return []
        return unknown

    def listen(self, listener: Callable[[Figures], None]) -> None:
        """Call `listener` with the figures about twice a second."""
        self._listeners.append(listener)

    def figures(self) -> Figures:
        """Return what was done so far."""
        with self._lock:
            rows = self._rows
            return self._counters.figures(sessions=len(rows), opened=rows.opened, resumed=rows.resumed)

    def tend(self) -> None:
        """Remember and close what has ended, and tell listeners."""
        with self._lock:
            answers, sessions = self._rows.retire(self._clock())
        self._let_go(answers, sessions)
        figures = self.figures()
        for listener in self._listeners:
            with suppress(Exception):
                listener(figures)

    def close(self) -> None:
        """Remember all outputs, and close sessions and sources. May be called again."""
        if self._closed.is_set():
            return
        self._closed.set()
        with self._lock:
            answers, sessions = self._rows.clear()
            self._let_go([], sessions)
            documents, target = self._unknown(answers), self._sources.target
            if documents and target is not None:  # at the end of a program, no thread of a queue starts any more
                try:
                    target.add([document.tokens for document in documents], ids=[document.id for document in documents])
                except Exception as error:
                    self.say("remember", error)
            try:
                self._sources.save_logits()
            except Exception as error:
                self.say("logits", error)
            self._sources.close()


def _listed(column: npt.NDArray[Any] | None) -> list[Any]:
    """Return a column of a session's draft, which always has it, as a list."""
    assert column is not None
    values: list[Any] = column.tolist()
    return values


def _has(store: Store, text: Tokens) -> bool:
    """Return whether `text` is in a datastore: each of its pieces, which are as long as a query may be."""
    pieces = [text[start : start + MAX_SUFFIX] for start in range(0, text.size - MAX_SUFFIX, MAX_SUFFIX)]
    pieces.append(text[-MAX_SUFFIX:])
    return text.size > 0 and all(store.count(piece) for piece in pieces)


def _keep(drafter: weakref.ref[BatchDrafter], closed: threading.Event) -> None:
    """Tend a drafter until it is closed or gone."""
    while not closed.wait(_TEND_SECONDS):
        alive = drafter()
        if alive is None:
            return
        try:
            alive.tend()
        except Exception as error:
            alive.say("tend", error)
        del alive
