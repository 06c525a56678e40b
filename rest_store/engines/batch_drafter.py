"""Drafts for the batch of a serving engine: whatever happens, the engine gets lists of tokens."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence, Set
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rest_store.datastore.tree import TokenTree
from rest_store.drafting.batch import accept_all, draft_all
from rest_store.drafting.costs import DraftPolicy
from rest_store.drafting.output_document import OutputDocument
from rest_store.drafting.remembering import RememberCounts, remember
from rest_store.drafting.session import DraftSession
from rest_store.engines.metrics import EngineMetrics
from rest_store.engines.row_sessions import Ended, RowSession, RowSessions, Tokens
from rest_store.engines.sources import EngineSources
from rest_store.errors import TokenRangeError, describe

Rows = npt.NDArray[np.int32]  # the model's most likely tokens after each of some positions, [n, k]; -1 ends a row

_TEND_SECONDS = 0.5
_IDLE_SECONDS = 3.0  # without a call, after which requests count as ended


class RowDraft(NamedTuple):
    """The request for the draft of a row.

    Attributes:
        row: the row's text.
        session: its session.
        new: int32[n], tokens that the session does not have yet.
        max_nodes: most draft tokens.
        top_k, node_top_k: what the model found likely, as `DraftSession.accept` takes it; at most one of them is set.
    """

    row: RowSession
    session: DraftSession
    new: Tokens
    max_nodes: int
    top_k: Rows | None = None
    node_top_k: Rows | None = None


class BatchDrafter:
    """Draft tokens for each row of a batch, as many as pay, from sessions that follow the rows.

    Args:
        sources: what sessions draft from; closed with this.
        metrics: counts what is done.
        most: the most draft tokens of a row.
        longest: the most tokens of a row that the engine allows.
        vocabulary_size: token ids of the model.
        ends: tokens that usually end an output, which is then remembered at once.
        clock: returns the time in seconds.

    Thread-safe. A thread of its own calls `tend` until `close`.
    """

    def __init__(
        self,
        sources: EngineSources,
        metrics: EngineMetrics,
        *,
        most: int,
        longest: int,
        vocabulary_size: int,
        ends: Set[int] = frozenset(),
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.metrics = metrics
        self._sources = sources
        self._most = most
        self._longest = longest
        self._vocabulary_size = vocabulary_size
        self._clock = clock
        self._rows = RowSessions(self._open_session, ends)
        self._policy = DraftPolicy()
        self._verified: list[RowSession] = []  # rows with draft tokens in the latest step
        self._returned: float | None = None  # when the latest call of `propose` returned; None: there was none
        self._lock = threading.RLock()
        self._closed = threading.Event()
        keeper = threading.Thread(target=_keep, args=(weakref.ref(self), self._closed), name="rest-store", daemon=True)
        keeper.start()

    @property
    def wants_logits(self) -> bool:
        """Whether the model's most likely tokens in the next step will be used."""
        return not self._policy.is_paused

    def propose(
        self,
        sampled: Sequence[Sequence[int]],
        lengths: npt.NDArray[np.integer[Any]],
        tokens: Tokens,
        computed: Sequence[Rows] = (),
    ) -> list[list[int]]:
        """Return the draft tokens of each row for the next step. Raises nothing but interrupts.

        Args:
            sampled: for each row what the model has just produced; empty while its prompt is being read.
            lengths: int[B], tokens that each row holds, with those in `sampled`.
            tokens: int32[B, n], the rows.
            computed: one array for each time that the model computed logits since the last call: its most likely tokens
                after each position, int32[n, k]. They are used only if there is exactly one, as after a step.

        Returns:
            A list for each of `sampled`, of at most `most` tokens, within the vocabulary and the longest length.
        """
        began = self._clock()
        drafts: list[list[int]] = [[] for _ in sampled]
        with self._lock:
            try:
                self._propose(sampled, lengths, tokens, computed, began, drafts)
            except Exception as error:
                self._start_over(error)
                drafts = [[] for _ in sampled]
            self._returned = self._clock()
            self.metrics.count("steps")
            self.metrics.count("seconds", self._returned - began)
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
        step = self._rows.follow(rows, texts, [sampled[row] for row in rows])
        self._let_go(step.ended)
        self._count_verified(len(rows))
        if step.is_plain_decoding and len(rows) == len(sampled) and rows and self._returned is not None:
            self._policy.observe(len(rows), sum(step.drafted), began - self._returned)
        if not rows or not self._policy.wants_drafts():
            return
        likely = self._likely_tokens(computed, dict(zip(rows, step.drafted, strict=True)), len(sampled))
        requests: list[RowDraft] = []
        for row, text in zip(step.sessions, texts, strict=True):
            max_nodes = min(self._most, self._longest - 1 - row.length)
            if row.session is not None and max_nodes > 0:
                request = RowDraft(row, row.session, text[row.session_length :], max_nodes)
                if likely is not None:
                    request = _with_likely(request, likely[row.index], len(sampled[row.index]))
                requests.append(request)
        if requests:
            began_drafting = self._clock()
            self._accept(requests)
            self._choose(requests, self._chains(requests), len(rows), drafts)
            verified, promised = sum(map(len, drafts)), sum(row.promised for row in self._verified)
            waited = sum(request.session.statistics.waited for request in requests)
            self._policy.settle(len(rows), verified, promised, self._clock() - began_drafting, waited)

    def _likely_tokens(self, computed: Sequence[Rows], drafted: dict[int, int], rows: int) -> list[Rows] | None:
        """Return what the model found likely in this step, for each row after its text before and its draft tokens.

        A scheduler may verify fewer draft tokens than it was given, never more. So if there are as many positions as
        the rows should have, each row has the expected number.

        Args:
            computed: as in `propose`.
            drafted: the number of draft tokens of each row that produced tokens, by row.
            rows: the number of rows in the batch.

        Returns:
            int32[1 + draft tokens, k] for each row; None if that was not computed, or the rows are unknown.
        """
        if not computed:
            return None
        ends = np.cumsum([drafted.get(row, 0) + 1 for row in range(rows)])
        if len(computed) > 1 or computed[0].ndim != 2 or len(computed[0]) != ends[-1]:
            self.metrics.count("unplaced_logits")
            return None
        return np.split(computed[0], ends[:-1])

    def _accept(self, requests: Sequence[RowDraft]) -> None:
        """Have sessions accept the new tokens of their rows."""
        grown = [request for request in requests if request.new.size]
        accept_all(
            [request.session for request in grown],
            [request.new for request in grown],
            [request.top_k for request in grown],
            node_top_k=[request.node_top_k for request in grown],
        )
        for request in grown:
            request.row.session_length, request.row.nodes = request.row.length, 0

    def _chains(self, requests: Sequence[RowDraft]) -> list[TokenTree]:
        """Return a chain for each row."""
        sessions, limits = [request.session for request in requests], [request.max_nodes for request in requests]
        services, min_score = self._policy.wants_services(), self._policy.min_score
        chains = draft_all(sessions, limits, shape="chain", min_score=min_score, services=services)
        for session in sessions:
            for absence in session.statistics.absent.values():
                self.metrics.count_error("source", absence.reason)
        return chains

    def _choose(
        self, requests: Sequence[RowDraft], chains: Sequence[TokenTree], rows: int, drafts: list[list[int]]
    ) -> None:
        """Write the draft tokens that are worth verifying into `drafts`, by row."""
        scores = [np.asarray(chain.scores).tolist() for chain in chains]
        counts = self._policy.chosen(scores, rows)
        for request, chain, of_tokens, count in zip(requests, chains, scores, counts, strict=True):
            tokens = chain.tokens[:count].tolist()
            for token in tokens:
                if not 0 <= token < self._vocabulary_size:
                    raise TokenRangeError(describe("draft", "token id", token, f"0..{self._vocabulary_size - 1}"))
            row = request.row
            drafts[row.index] = tokens
            row.nodes, row.drafted, row.accepted = len(chain), count, None
            row.origins, row.promised = np.asarray(chain.origins)[:count].tolist(), sum(of_tokens[:count])
            self._verified.append(row)

    def _count_verified(self, rows: int) -> None:
        """Count how many of the latest draft tokens were accepted, for the rows that show it."""
        promised, accepted, of_services = 0.0, 0, 0
        for row in self._verified:
            if row.accepted is not None:
                self.metrics.count_draft(row.origins, row.accepted)
                promised += row.promised
                accepted += row.accepted
                origins = row.origins[: row.accepted]
                first = next((i for i, mask in enumerate(origins) if not mask & self._sources.here), row.accepted)
                of_services += row.accepted - first  # here, something else would have been drafted, and rejected
        if rows:
            self._policy.judge(rows, promised, accepted, of_services)
        self._verified.clear()

    def _open_session(self, text: Tokens) -> DraftSession | None:
        try:
            return self._sources.session(text.copy())
        except Exception as error:
            self.metrics.count_error("open", error)
            return None

    def _start_over(self, error: Exception) -> None:
        """Close all sessions, whose state is unknown after an error."""
        self.metrics.count_error("propose", error)
        self._verified.clear()
        self._close_sessions(self._rows.clear().sessions)

    def _let_go(self, ended: Ended) -> None:
        """Queue what ended requests wrote to be remembered, and close their sessions."""
        if ended.documents and self._sources.target is not None:
            counts = RememberCounts()
            self.metrics.documents.append(counts)
            remember(self._sources.target, _distinct(ended.documents), counts)
        self._close_sessions(ended.sessions)

    def _close_sessions(self, sessions: Sequence[DraftSession]) -> None:
        for session in sessions:
            try:
                session.close()
            except Exception as error:
                self.metrics.count_error("close", error)

    def tend(self) -> None:
        """Let go of all requests when the engine makes no calls, and tell others what was done."""
        with self._lock:
            if self._returned is not None and self._clock() - self._returned >= _IDLE_SECONDS:
                self._let_go(self._rows.clear())
            self.metrics.publish(len(self._rows))

    def close(self) -> None:
        """Remember all outputs, and close sessions and sources. May be called again."""
        if self._closed.is_set():
            return
        self._closed.set()
        with self._lock:
            documents, sessions = self._rows.clear()
            self._close_sessions(sessions)
            if documents and (target := self._sources.target) is not None:
                documents = _distinct(documents)
                try:  # at the end of a program, no thread of a queue starts any more
                    target.add([document.tokens for document in documents], ids=[document.id for document in documents])
                except Exception as error:
                    self.metrics.count_error("remember", error)
            try:
                self._sources.save_logits()
            except Exception as error:
                self.metrics.count_error("logits", error)
            self._sources.close()


def _with_likely(request: RowDraft, likely: Rows, output: int) -> RowDraft:
    """Return a request with what the model found likely in a step that produced `output` tokens of the row.

    What it found after other tokens of the request is unknown.
    """
    new, width = request.new.size, likely.shape[1]
    if new == output:  # the session's latest draft was made for this step
        rows = np.full((1 + request.row.nodes, width), -1, np.int32)
        rows[: len(likely)] = likely
        return request._replace(node_top_k=rows)
    rows = np.full((max(new, output + 1), width), -1, np.int32)
    rows[-output - 1 : -1] = likely[:output]
    return request._replace(top_k=rows)


def _distinct(documents: Sequence[OutputDocument]) -> list[OutputDocument]:
    return list({document.id: document for document in documents}.values())


def _keep(drafter: weakref.ref[BatchDrafter], closed: threading.Event) -> None:
    """Tend a drafter until it is closed or gone."""
    while not closed.wait(_TEND_SECONDS):
        alive = drafter()
        if alive is None:
            return
        try:
            alive.tend()
        except Exception as error:
            alive.metrics.count_error("tend", error)
        del alive
