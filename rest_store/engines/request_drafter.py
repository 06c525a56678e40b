"""Drafts for the requests of a serving engine; a fault costs drafts, and never a step."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from rest_store.datastore.tree import TokenTree
from rest_store.datastore.validation import check_int, label
from rest_store.drafting.batch import accept_all, draft_all, look_ahead_all
from rest_store.drafting.draft_policy import Pauses
from rest_store.drafting.output_document import OutputDocument
from rest_store.drafting.remembering import (
    RememberCounts,
    RememberTarget,
    add_to,
    are_groups_apart,
    earlier,
    remember,
)
from rest_store.drafting.session import DraftSession
from rest_store.engines.engine_metrics import EngineMetrics
from rest_store.engines.engine_sources import EngineSources
from rest_store.engines.latest_outputs import NO_TOKENS
from rest_store.engines.prediction import Prediction
from rest_store.engines.request import NO_TREE, EngineRequest, NewRequest, StepRequest, Tokens
from rest_store.errors import describe

_WORK_SECONDS = 0.5  # between calls of `work`
# Seconds without a draft after which the engine is idle; most prompts are read faster. Some engines
# report the end of their last request only with the next one.
_IDLE_SECONDS = 10.0
_MIN_SECONDS = 1e-6
_MAX_EPOCH = 2**62

_Job = TypeVar("_Job", bound=tuple[Any, ...])
_Result = TypeVar("_Result")


class _Grown(NamedTuple):
    """A request whose session is to accept the tokens of a step."""

    request: EngineRequest
    session: DraftSession
    step: StepRequest


class _Wanted(NamedTuple):
    """A request whose session is to draft, and its place in the step."""

    request: EngineRequest
    session: DraftSession
    place: int
    max_nodes: int
    under_way: Tokens | None


class RequestDrafter:
    """A session for each request of an engine, by the engine's own id.

    No method raises anything but interrupts: a fault costs drafts, and is counted.

    Args:
        sources: the sources of all sessions; closed with this.
        metrics: counts the work.
        vocabulary_size: token ids of the model.
        clock: returns the time in seconds.

    Attributes:
        vocabulary_size: as above.
        before_rest: called, without a lock of this, before outputs are remembered because the
            engine is idle or ends. An engine whose steps are read a step late reads the last one
            then; None: no step is read late.

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
        self.vocabulary_size = vocabulary_size
        self._sources = sources
        self._clock = clock
        self._requests: dict[str, EngineRequest] = {}
        self._services = Pauses()
        self._drafted_at = clock()  # the time of the latest draft
        self._waited = 0.0  # seconds that the latest draft waited for services
        # Since the latest draft: requests that wrote tokens, and tokens that they owe to services.
        self._written = 0
        self._from_services = 0
        self._lock = threading.RLock()
        self._closed = threading.Event()
        worker = threading.Thread(
            target=_work, args=(weakref.ref(self), self._closed), name="rest-store", daemon=True
        )
        worker.start()

    def length(self, id: str) -> int:
        """Return the tokens of a request's text, 0 if it is unknown."""
        request = self._requests.get(id)
        return 0 if request is None else len(request)

    def latest_outputs(self, id: str) -> Tokens:
        """Return the remembered outputs that a request may draft from, as `LatestOutputs` does.

        They are empty at first; `work` reads them from now on.
        """
        request = self._requests.get(id)
        return NO_TOKENS if request is None else request.sources.scope.latest_outputs.tokens()

    def begin(self, request: NewRequest) -> None:
        """Begin a request, or begin it anew with another text.

        Its session is opened with its first draft.
        """
        with self._lock:
            try:
                self._close_session(self._requests.pop(request.id, None))
                self._requests[request.id] = self._begun(request)
            except Exception as error:
                self.metrics.count_error("begin", error)

    def _begun(self, request: NewRequest) -> EngineRequest:
        """Return a request with its sources, and its references as token ids.

        The documents of its group are the first references. Malformed arguments are left out.
        """
        report = partial(self.metrics.count_error, "references")
        try:
            label("request", "a group", request.group)
            check_int("epoch", request.epoch, _MAX_EPOCH, minimum=0, where="request")
        except Exception as error:
            report(error)
            request = request._replace(group="", epoch=0)
        sources = self._sources.chosen(
            request.namespace,
            request.datastores,
            request.adapter,
            partial(self.metrics.count_error, "choices"),
        )
        apart = are_groups_apart(sources.target)
        if not request.group and request.grammar is not None and not apart:
            request = request._replace(group=request.grammar.group)
        predicted: list[npt.NDArray[np.int32]] = []
        try:
            predicted = self._sources.encoded(request.references)
        except Exception as error:
            report(error)
        references = [*earlier(sources.target, request.group, report), *predicted]
        return EngineRequest(
            request._replace(references=references),
            sources,
            Prediction(predicted, self._sources.lookup) if predicted else None,
        )

    def draft(
        self, steps: Sequence[StepRequest], shape: str = "tree", *, length: int = 0
    ) -> list[TokenTree]:
        """Return the draft of each request for its next step.

        Args:
            steps: different requests; unknown ones get no draft. Either all have a draft under way,
                or none has.
            shape: "tree" or "chain", unless a draft is under way.
            length: the most tokens of the drafts after those under way.

        Returns:
            A tree for each of `steps`, of at most `max_nodes` tokens of the vocabulary, with scores
            and origins.
        """
        began = self._clock()
        with self._lock:
            trees = [NO_TREE] * len(steps)
            try:
                self._accept(steps)
                self._draft(steps, shape, length, began, trees)
            except Exception as error:
                trees = [NO_TREE] * len(steps)
                self._start_over(error)
            self._drafted_at = self._clock()
            self.metrics.count("steps")
            self.metrics.count("seconds", self._drafted_at - began)
        return trees

    def accept(self, steps: Sequence[StepRequest]) -> None:
        """Accept the tokens of a step without asking for drafts; `draft` does both."""
        began = self._clock()
        with self._lock:
            try:
                self._accept(steps)
            except Exception as error:
                self._start_over(error)
            self.metrics.count("seconds", self._clock() - began)

    def _accept(self, steps: Sequence[StepRequest]) -> None:
        """Append the tokens of a step to texts and sessions, and count the accepted drafts."""
        grown: list[_Grown] = []
        for step in steps:
            request = self._requests.get(step.id)
            if request is None or not step.tokens.size:
                continue
            origins, accepted = request.count_step(step)
            self.metrics.count_draft(origins, accepted)
            self._from_services += self._owed_to_services(origins, accepted)
            self._written += 1
            request.extend(step.tokens)
            request.drafted = None
            if request.session is not None:
                grown.append(_Grown(request, request.session, step))
        self._isolated(grown, _accept_grown)

    def _owed_to_services(self, origins: Sequence[int], accepted: Sequence[int]) -> int:
        """Return how many accepted draft tokens would not have been there without services.

        From the first node on that only services proposed, the sources here would have drafted
        other tokens.
        """
        for place, node in enumerate(accepted):
            if not origins[node] & self._sources.here:
                return len(accepted) - place
        return 0

    def _isolated(
        self, jobs: Sequence[_Job], call: Callable[[Sequence[_Job]], Sequence[_Result]]
    ) -> list[_Result | None]:
        """Do a job of all sessions at once, or of one after the other if that fails.

        So a fault costs one request. If it fails for this request alone, too, its session is
        closed: for good if it does not fail for others, so that it fails no more.

        Args:
            jobs: the request of each, its session, and more.
            call: does some of the jobs; if it raises, it has done nothing.

        Returns:
            The result of `call` for each job; None: it failed.
        """
        if not jobs:
            return []
        try:
            return list(call(jobs))
        except Exception as error:
            self.metrics.count_error("propose", error)
        results: list[_Result | None] = [None] * len(jobs)
        if len(jobs) > 1:
            for index, job in enumerate(jobs):
                # An error is the one that was counted, or another fault of the same request.
                with suppress(Exception):
                    [results[index]] = call([job])
        any_succeeded = any(result is not None for result in results)
        for (request, *_), result in zip(jobs, results, strict=True):
            if result is None:
                self._close_session(request)
                request.is_given_up = any_succeeded
        return results

    def _draft(
        self,
        steps: Sequence[StepRequest],
        shape: str,
        length: int,
        began: float,
        trees: list[TokenTree],
    ) -> None:
        """Put the draft of each step into `trees`."""
        self._settle_services(began)
        wanted: list[_Wanted] = []
        for index, step in enumerate(steps):
            request = self._requests.get(step.id)
            if request is None or step.max_nodes <= 0 or not request.new.drafts:
                continue
            session = self._session(request)
            if session is not None:
                wanted.append(_Wanted(request, session, index, step.max_nodes, step.under_way))
        if not wanted:
            return
        services = self._services.ends()

        def drafted(some: Sequence[_Wanted]) -> list[TokenTree]:
            sessions = [one.session for one in some]
            under_way = [one.under_way for one in some if one.under_way is not None]
            if under_way:
                return look_ahead_all(
                    sessions, under_way, some[0].max_nodes, length=length, services=services
                )
            max_nodes = [one.max_nodes for one in some]
            return draft_all(sessions, max_nodes, shape=shape, services=services)

        for one, tree in zip(wanted, self._isolated(wanted, drafted), strict=True):
            if tree is None:
                continue
            for absence in one.session.statistics.absent.values():
                self.metrics.count_error("source", absence.reason)
            if self._is_of_vocabulary(tree):
                one.request.drafted = tree
                trees[one.place] = tree
            else:
                self._close_session(one.request)
                one.request.is_given_up = True
        self._waited = sum(one.session.statistics.waited for one in wanted)

    def _settle_services(self, now: float) -> None:
        """Compare the tokens that services brought to the latest step with its wait for them."""
        if self._waited:
            seconds = max(now - self._drafted_at, _MIN_SECONDS)
            tokens = self._from_services / max(1, self._written)
            self._services.settle(tokens - self._waited / seconds)
        self._waited = 0.0
        self._written = 0
        self._from_services = 0

    def _is_of_vocabulary(self, tree: TokenTree) -> bool:
        """Return whether the model has all tokens of a tree; count an error if not."""
        if not len(tree):
            return True
        smallest = int(tree.tokens.min())
        greatest = int(tree.tokens.max())
        if smallest >= 0 and greatest < self.vocabulary_size:
            return True
        expected = f"0..{self.vocabulary_size - 1}"
        self.metrics.count_error("tokens", describe("draft", "token id", greatest, expected))
        return False

    def _session(self, request: EngineRequest) -> DraftSession | None:
        """Return the session of a request, which is opened if it is not yet; None if that fails."""
        if request.session is None and not request.is_given_up:
            try:
                new = request.new
                # Those who share a grammar are not one group of readers.
                is_named = new.grammar is None or new.group != new.grammar.group
                request.session = self._sources.session(
                    request.text,
                    new.references,
                    new.grammar,
                    request.prompt_length,
                    request.sources,
                    group=new.group if is_named else "",
                )
            except Exception as error:
                self.metrics.count_error("open", error)
        return request.session

    def finish(self, ids: Iterable[str]) -> None:
        """End requests: remember their outputs, and close their sessions. Skip unknown ids."""
        with self._lock:
            ended = []
            for id in ids:
                request = self._requests.pop(id, None)
                if request is not None:
                    ended.append(request)
            self._remember(ended)
            for request in ended:
                self._close_session(request)
                self.metrics.end_request(request.new.id, request.acceptance)

    def _remember(self, requests: Iterable[EngineRequest]) -> None:
        """Queue the outputs of requests since their last documents to be remembered."""
        for target, documents in self._documents(requests):
            try:
                counts = RememberCounts()
                self.metrics.documents.append(counts)
                remember(target, documents, counts)
            except Exception as error:
                self.metrics.count_error("remember", error)

    def _documents(
        self, requests: Iterable[EngineRequest]
    ) -> list[tuple[RememberTarget, list[OutputDocument]]]:
        """Return the outputs of requests as documents, by target, equal texts once."""
        targets: dict[int, tuple[RememberTarget, dict[str, OutputDocument]]] = {}
        for request in requests:
            target = request.sources.target
            if target is None:
                continue
            try:
                document = request.document()
            except Exception as error:  # of one request
                self.metrics.count_error("remember", error)
                continue
            if document is not None:
                _, documents = targets.setdefault(id(target), (target, {}))
                documents[document.id] = document
        return [(target, [*documents.values()]) for target, documents in targets.values()]

    def drop(self, ids: Iterable[str]) -> None:
        """Close the sessions of requests that the engine puts off. These begin anew later."""
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
        request.session = None
        request.drafted = None

    def work(self) -> None:
        """Remember outputs when the engine is idle, publish metrics, and read the latest ones."""
        if self._clock() - self._drafted_at >= _IDLE_SECONDS:
            self._rest()
            with self._lock:
                self._remember(self._requests.values())
        with self._lock:
            self.metrics.publish(len(self._requests))
        self._sources.refresh(partial(self.metrics.count_error, "work"))

    def _rest(self) -> None:
        before_rest = self.before_rest
        if before_rest is None:
            return
        try:
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
            for target, some in documents:
                try:  # not queued: at the end of a program, no thread starts any more
                    add_to(target, some)
                except Exception as error:
                    self.metrics.count_error("remember", error)
            try:
                self._sources.close()
            except Exception as error:
                self.metrics.count_error("close", error)


def _accept_grown(grown: Sequence[_Grown]) -> list[bool]:
    """Have sessions accept the tokens of a step; return True for each."""
    accept_all(
        [one.session for one in grown],
        [one.step.tokens for one in grown],
        [one.step.top_k for one in grown],
        node_top_k=[one.step.node_top_k for one in grown],
    )
    return [True] * len(grown)


def _work(drafter: weakref.ref[RequestDrafter], closed: threading.Event) -> None:
    """Call a drafter's `work` until it is closed or collected."""
    while not closed.wait(_WORK_SECONDS):
        alive = drafter()
        if alive is None:
            return
        try:
            alive.work()
        except Exception as error:
            alive.metrics.count_error("work", error)
        del alive
