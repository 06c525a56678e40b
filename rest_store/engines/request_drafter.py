"""Drafts for the requests of a serving engine: whatever happens, the engine gets trees."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from rest_store.datastore.tree import TokenTree
from rest_store.datastore.validation import check_int, label
from rest_store.drafting.batch import accept_all, draft_all
from rest_store.drafting.costs import Pauses
from rest_store.drafting.output_document import OutputDocument
from rest_store.drafting.remembering import RememberCounts, add_to, earlier, remember
from rest_store.drafting.session import DraftSession
from rest_store.engines.metrics import EngineMetrics
from rest_store.engines.request import EngineRequest, NewRequest, StepRequest
from rest_store.engines.sources import EngineSources
from rest_store.errors import describe

_WORK_SECONDS = 0.5
# Without a draft, longer than most prompts are read for: some engines tell of no end at rest.
_IDLE_SECONDS = 10.0
NO_TREE = TokenTree([], [], [], scores=[], origins=[])

_Asked = TypeVar("_Asked", bound=tuple[Any, ...])
_Result = TypeVar("_Result")


class RequestDrafter:
    """A session for each request of an engine, known by the engine's own id.

    No method raises anything but interrupts: a fault costs drafts, and is counted.

    Args:
        sources: what sessions draft from; closed with this.
        metrics: counts what is done.
        vocabulary_size: token ids of the model.
        clock: returns the time in seconds.

    Attributes:
        before_rest: called before outputs are remembered because the engine rests or ends, and
            without a lock of this: what steps have written is taken in, where that is done a step
            late; None: nothing is late.

    Thread-safe. A thread of its own calls `work` until `close`.
    """

    def __init__(
        self,
        sources: EngineSources,
        metrics: EngineMetrics,
        *,
        vocabulary_size: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.metrics = metrics
        self.before_rest: Callable[[], None] | None = None
        self._sources = sources
        self._vocabulary_size = vocabulary_size
        self._clock = clock
        self._requests: dict[str, EngineRequest] = {}
        self._services = Pauses()
        self._returned = clock()  # when the latest draft was made
        self._waited = 0.0  # seconds, for services in the latest step
        # Requests that wrote since then; tokens that services alone brought them.
        self._written = self._of_services = 0
        self._lock = threading.RLock()
        self._closed = threading.Event()
        keeper = threading.Thread(
            target=_work, args=(weakref.ref(self), self._closed), name="rest-store", daemon=True
        )
        keeper.start()

    def length(self, id: str) -> int:
        """Return the tokens of a request's text, 0 if it is unknown."""
        request = self._requests.get(id)
        return 0 if request is None else len(request)

    def begin(self, request: NewRequest) -> None:
        """Begin a request, or begin it anew with another text.

        Its session is opened with its first draft.
        """
        with self._lock:
            try:
                self._close_session(self._requests.pop(request.id, None))
                self._requests[request.id] = EngineRequest(self._prepared(request))
            except Exception as error:
                self.metrics.count_error("begin", error)

    def _prepared(self, request: NewRequest) -> NewRequest:
        """Return a request with references as token ids, those of its group first.

        What is malformed is left out.
        """
        failed = partial(self.metrics.count_error, "references")
        try:
            label("request", "a group", request.group)
            check_int("epoch", request.epoch, 2**62, minimum=0, where="request")
        except Exception as error:
            failed(error)
            request = request._replace(group="", epoch=0)
        references = earlier(self._sources.target, request.group, failed)
        try:
            references += self._sources.encoded(request.references)
        except Exception as error:
            failed(error)
        return request._replace(references=references)

    def draft(self, steps: Sequence[StepRequest], shape: str = "tree") -> list[TokenTree]:
        """Return the draft of each request for its next step.

        Args:
            steps: different requests; those that are unknown get no draft.
            shape: "tree" or "chain".

        Returns:
            A tree for each of `steps`, of at most `max_nodes` tokens of the vocabulary, with scores
            and origins.
        """
        began = self._clock()
        with self._lock:
            trees = [NO_TREE] * len(steps)
            try:
                self._accept(steps)
                self._draft(steps, shape, began, trees)
            except Exception as error:
                trees = [NO_TREE] * len(steps)
                self._start_over(error)
            self._returned = self._clock()
            self.metrics.count("steps")
            self.metrics.count("seconds", self._returned - began)
        return trees

    def accept(self, steps: Sequence[StepRequest]) -> None:
        """Take in what requests have written, where no draft is asked for.

        `draft` does so itself.
        """
        began = self._clock()
        with self._lock:
            try:
                self._accept(steps)
            except Exception as error:
                self._start_over(error)
            self.metrics.count("seconds", self._clock() - began)

    def _accept(self, steps: Sequence[StepRequest]) -> None:
        """Count what became of the drafts that the engine verified,
        and have sessions accept what was written.
        """
        grown: list[tuple[EngineRequest, DraftSession, StepRequest]] = []
        for step in steps:
            if not step.tokens.size or (request := self._requests.get(step.id)) is None:
                continue
            origins, accepted = request.verified(step)
            self.metrics.count_draft(origins, accepted)
            # From the first node on that only services proposed, something else would have been
            # drafted here.
            here = (i for i, node in enumerate(accepted) if not origins[node] & self._sources.here)
            self._of_services += len(accepted) - next(here, len(accepted))
            self._written += 1
            request.extend(step.tokens)
            request.drafted = None
            if request.session is not None:
                grown.append((request, request.session, step))

        def accept(some: Sequence[tuple[EngineRequest, DraftSession, StepRequest]]) -> list[bool]:
            accept_all(
                [session for _, session, _ in some],
                [step.tokens for _, _, step in some],
                [step.top_k for _, _, step in some],
                node_top_k=[step.node_top_k for _, _, step in some],
            )
            return [True] * len(some)

        self._isolated(grown, accept)

    def _isolated(
        self, asked: Sequence[_Asked], call: Callable[[Sequence[_Asked]], Sequence[_Result]]
    ) -> list[_Result | None]:
        """Do something for all sessions at once, and for one after the
        other if that fails: a fault costs one request.

        Args:
            asked: the request of each, its session, and more. If it fails for this one alone, too,
                the session is closed: for good if it does not fail for others, so that it fails no
                more.
            call: does it for some of `asked`; if it raises, it has done nothing.

        Returns:
            What `call` returns for each; None: it failed.
        """
        try:
            return list(call(asked)) if asked else []
        except Exception as error:
            self.metrics.count_error("propose", error)
        results: list[_Result | None] = [None] * len(asked)
        for index in range(len(asked) if len(asked) > 1 else 0):
            # As the one that was counted, or another fault of the same request.
            with suppress(Exception):
                results[index] = next(iter(call(asked[index : index + 1])))
        for (request, *_), result in zip(asked, results, strict=True):
            if result is None:
                self._close_session(request)
                request.is_given_up = any(other is not None for other in results)
        return results

    def _draft(
        self, steps: Sequence[StepRequest], shape: str, began: float, trees: list[TokenTree]
    ) -> None:
        if self._waited:
            seconds = max(began - self._returned, 1e-6)
            self._services.settle(
                self._of_services / max(1, self._written) - self._waited / seconds
            )
            self._waited = 0.0
        self._written = self._of_services = 0
        # With its place and its most nodes.
        asked: list[tuple[EngineRequest, DraftSession, int, int]] = []
        for index, step in enumerate(steps):
            request = self._requests.get(step.id)
            if (
                request is not None
                and step.max_nodes > 0
                and (session := self._session(request)) is not None
            ):
                asked.append((request, session, index, step.max_nodes))
        if not asked:
            return
        services = self._services.ends()

        def drafted(
            some: Sequence[tuple[EngineRequest, DraftSession, int, int]],
        ) -> list[TokenTree]:
            sessions, most = (
                [session for _, session, _, _ in some],
                [most for _, _, _, most in some],
            )
            return draft_all(sessions, most, shape=shape, services=services)

        for (request, session, index, _), tree in zip(
            asked, self._isolated(asked, drafted), strict=True
        ):
            if tree is None:
                continue
            for absence in session.statistics.absent.values():
                self.metrics.count_error("source", absence.reason)
            if (
                len(tree)
                and not 0 <= tree.tokens.min() <= tree.tokens.max() < self._vocabulary_size
            ):
                expected = f"0..{self._vocabulary_size - 1}"
                self.metrics.count_error(
                    "tokens", describe("draft", "token id", int(tree.tokens.max()), expected)
                )
                self._close_session(request)
                request.is_given_up = True
            else:
                request.drafted = trees[index] = tree
        self._waited = sum(session.statistics.waited for _, session, _, _ in asked)

    def _session(self, request: EngineRequest) -> DraftSession | None:
        """Return the session of a request, which is opened if it is not yet; None if that fails."""
        if request.session is None and not request.is_given_up:
            try:
                request.session = self._sources.session(request.text, request.new.references)
            except Exception as error:
                self.metrics.count_error("open", error)
        return request.session

    def finish(self, ids: Iterable[str]) -> None:
        """End requests: what they wrote is remembered, and their sessions are closed.

        Unknown ids are skipped.
        """
        with self._lock:
            ended = [request for id in ids if (request := self._requests.pop(id, None)) is not None]
            self._remember(ended)
            for request in ended:
                self._close_session(request)

    def _remember(self, requests: Iterable[EngineRequest]) -> None:
        """Queue what requests wrote to be remembered.

        What was remembered before is not added again.
        """
        try:
            if self._sources.target is not None and (documents := self._documents(requests)):
                counts = RememberCounts()
                self.metrics.documents.append(counts)
                remember(self._sources.target, documents, counts)
        except Exception as error:
            self.metrics.count_error("remember", error)

    def _documents(self, requests: Iterable[EngineRequest]) -> list[OutputDocument]:
        """Return what requests wrote, the same text once."""
        documents: dict[str, OutputDocument] = {}
        for request in requests:
            try:
                if (document := request.document()) is not None:
                    documents[document.id] = document
            except Exception as error:  # of one request
                self.metrics.count_error("remember", error)
        return list(documents.values())

    def drop(self, ids: Iterable[str]) -> None:
        """Close the sessions of requests that the engine puts off, and forget them.

        They begin anew.
        """
        with self._lock:
            for id in ids:
                self._close_session(self._requests.pop(id, None))

    def _start_over(self, error: Exception) -> None:
        """Close all sessions, whose state is unknown after an error."""
        self.metrics.count_error("propose", error)
        for request in self._requests.values():
            self._close_session(request)

    def _close_session(self, request: EngineRequest | None) -> None:
        if request is None or request.session is None:
            return
        try:
            request.session.close()
        except Exception as error:
            self.metrics.count_error("close", error)
        request.session = request.drafted = None

    def work(self) -> None:
        """Remember what was written when the engine rests, and tell others what was done."""
        if self._clock() - self._returned >= _IDLE_SECONDS:
            self._rest()
            with self._lock:
                self._remember(self._requests.values())
        with self._lock:
            self.metrics.publish(len(self._requests))

    def _rest(self) -> None:
        try:
            if (before_rest := self.before_rest) is not None:
                before_rest()
        except Exception as error:
            self.metrics.count_error("rest", error)

    def close(self) -> None:
        """Remember all outputs, and close sessions and sources. May be called again."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._rest()
        self.before_rest = None
        with self._lock:
            documents = self._documents(self._requests.values())
            for request in self._requests.values():
                self._close_session(request)
            self._requests.clear()
            if documents and (target := self._sources.target) is not None:
                try:  # at the end of a program, no thread of a queue starts any more
                    add_to(target, documents)
                except Exception as error:
                    self.metrics.count_error("remember", error)
            try:
                self._sources.close()
            except Exception as error:
                self.metrics.count_error("close", error)


def _work(drafter: weakref.ref[RequestDrafter], closed: threading.Event) -> None:
    """Have a drafter work until it is closed or gone."""
    while not closed.wait(_WORK_SECONDS):
        alive = drafter()
        if alive is None:
            return
        try:
            alive.work()
        except Exception as error:
            alive.metrics.count_error("work", error)
        del alive
