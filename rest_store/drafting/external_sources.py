"""External sources: user code and clients of services. This module alone isolates a session from their faults.

A source that raises, is late or answers wrongly is left out of the step, and the reason is counted. With a timeout,
each source runs on a daemon thread of its own, so that none can delay a step, a session or the end of the process. A
source that was late is still asked, but no step waits for it until it has answered within the timeout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.datastore.tree import TokenTree
from rest_store.drafting.evidence import MAX_EVIDENCE_ROWS, Evidence, rows_for
from rest_store.drafting.source_request import DEFAULT_SUFFIX, TREE_DEPTH, TREE_NODES, SourceRequest
from rest_store.drafting.source_thread import SourceThread
from rest_store.drafting.sources import EvidenceSource, EvidenceStream, Source, StreamedSource
from rest_store.errors import TokenizerMismatchError, error_text

if TYPE_CHECKING:
    from rest_store._kernel import NativeSession

_LAST_TOKEN = 2**31 - 1

_Result = TypeVar("_Result")


class Drop(NamedTuple):
    """A source that a step goes on without.

    Attributes:
        place: among the session's sources.
        why: "error", "late", "tokenizer"; or "full" or "part" where only some of its datastores, or some parts of one,
            are left out.
        text: of the error.
    """

    place: int
    why: str
    text: str


class _Answer(NamedTuple):
    """The answer of a source; `evidence` is None if it has none and was asked for trees."""

    evidence: list[Evidence] | None
    trees: list[TokenTree]
    tokenizer: TokenizerIdentity | None


@dataclass(eq=False)
class _External:
    """One source, and the stores of the kernel that get its answers.

    Attributes:
        index: of its first store in the kernel, which also gets its trees.
        place: among the session's sources.
        indices: of the store that gets the evidence of each of its datastores, by name.
        gives_evidence: whether its last answer was evidence.
        thread: calls it, if there is a timeout.
        stream: its stream for this session, if it has streams.
        evidence: the method that asks for evidence, if it has one.
    """

    index: int
    place: int
    source: Source
    indices: dict[str, int] = field(default_factory=dict)
    gives_evidence: bool = False
    thread: SourceThread = field(default_factory=SourceThread)
    stream: EvidenceStream | None = None
    evidence: Callable[..., list[Evidence] | None] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.source, StreamedSource):
            self.stream = self.source.stream()
            self.evidence = self.stream.evidence_after
        elif isinstance(self.source, EvidenceSource):
            self.evidence = self.source.evidence

    def answer(self, request: SourceRequest) -> _Answer:
        """Ask for evidence, and for trees if there is none."""
        evidence, trees = None, []
        if self.evidence is not None:
            evidence = self.evidence(
                request.tail,
                request.proposals,
                max_nodes=request.max_nodes,
                max_suffix=request.max_suffix,
                max_rows=request.max_rows,
            )
        if evidence is None and request.contexts:
            trees = self.source.draft_batch(
                request.contexts,
                max_nodes=TREE_NODES,
                max_suffix=max(DEFAULT_SUFFIX, request.max_suffix),
                max_depth=TREE_DEPTH,
            )
        return _Answer(evidence, trees, _tokenizer_of(self.source))

    def close(self) -> None:
        """End the stream, and the thread once its call returns; may be called again."""
        self.thread.close(None if self.stream is None else self.stream.close)

    __del__ = close


class ExternalSources:
    """Asks each source once a step, for evidence or else for trees, and hands the answers to the kernel.

    Args:
        native: the kernel session.
        sources: (index of its store in the kernel, place among the session's sources, source) of each.
        timeout: seconds that a step waits for all of them together, as `require_source_timeout` takes them; None: no
            limit.
        max_suffix: longest suffix of the context that they are asked for, in tokens.

    Attributes:
        tokenizer: of the session. Requests and answers only have tokens of its vocabulary, and sources that report
            another tokenizer are left out. None: that of the first source that reports one.

    Not thread-safe.
    """

    def __init__(
        self,
        native: NativeSession,
        sources: Sequence[tuple[int, int, Source]],
        *,
        timeout: float | None,
        max_suffix: int,
    ) -> None:
        self.tokenizer: TokenizerIdentity | None = None
        self.timeout = None if timeout is None else float(timeout)
        self._native = native
        self._sources = [_External(*source) for source in sources]
        self._max_suffix = max_suffix
        self._reads_evidence = any(source.evidence is not None for source in self._sources)
        self._asked: tuple[SourceRequest, Callable[[], dict[int, _Answer | BaseException | None]]] | None = None

    def __len__(self) -> int:
        """Return the number of sources that are still asked."""
        return len(self._sources)

    def remove(self, place: int) -> None:
        """Never ask the source at `place` again."""
        for source in [source for source in self._sources if source.place == place]:
            self._skip(source)
            self._sources.remove(source)
            source.close()

    def skip(self) -> None:
        """Leave all sources out of the next step."""
        for source in self._sources:
            self._skip(source)

    def close(self) -> None:
        """End the threads once their calls return."""
        for source in self._sources:
            source.close()

    def tokenizers(self) -> dict[int, TokenizerIdentity]:
        """Return the tokenizers of the sources that report one in time, by place."""
        calls = {source.place: partial(_tokenizer_of, source.source) for source in self._sources}
        reported = self._start(calls)()
        return {place: value for place, value in reported.items() if isinstance(value, TokenizerIdentity)}

    def send(self, max_nodes: int, seconds: float | None = None) -> None:
        """Ask about this step's context, for a tree of `max_nodes`; without a timeout `receive` does.

        `seconds` is what is left of the timeout; None: all of it.
        """
        self.skip()
        max_nodes = max(1, max_nodes)
        request = SourceRequest.of(
            self._native,
            max_nodes=max_nodes,
            max_rows=rows_for(max_nodes),
            max_suffix=self._max_suffix,
            vocabulary_size=self._vocabulary_size,
            evidence=self._reads_evidence,
            trees=not all(source.gives_evidence for source in self._sources),
        )
        self._asked = None
        if request is not None:
            calls = {source.place: partial(source.answer, request) for source in self._sources}
            self._asked = request, self._start(calls, seconds)

    def receive(self) -> list[Drop]:
        """Wait for the answers to the last request; return the sources that the step goes on without.

        The caller removes a source that reports another tokenizer.
        """
        asked, self._asked = self._asked, None
        if asked is None:
            return []
        request, answers = asked
        outcomes = answers()
        drops = []
        for source in self._sources:
            outcome = outcomes[source.place]
            drop = self._use(source, request, outcome) if isinstance(outcome, _Answer) else self._drop(source, outcome)
            if drop is not None:
                drops.append(drop)
        return drops

    def _drop(self, source: _External, error: BaseException | None) -> Drop:
        """Leave `source` out of this step because of `error`; None: it is late."""
        self._skip(source)
        if error is None:
            return Drop(source.place, "late", f"no answer within {self.timeout} s")
        why = "tokenizer" if isinstance(error, TokenizerMismatchError) else "error"
        return Drop(source.place, why, error_text(error))

    def _start(
        self, calls: Mapping[int, Callable[[], _Result]], seconds: float | None = None
    ) -> Callable[[], dict[int, _Result | BaseException | None]]:
        """Begin each source's call, by place; return a function that waits for them, `seconds` at most if given.

        That function returns, by place, what each call returned or raised; None: it was not done in time.
        KeyboardInterrupt passes through. So does SystemExit without a timeout, when it may come from a signal handler;
        on the thread of a source it would only end that thread.
        """
        if self.timeout is None:
            return lambda: {place: _outcome(call, KeyboardInterrupt, SystemExit) for place, call in calls.items()}
        ends = monotonic() + (self.timeout if seconds is None else seconds)
        started = {source.place: source.thread.submit(calls[source.place], self.timeout) for source in self._sources}
        late = {source.place for source in self._sources if source.thread.late}

        def outcomes() -> dict[int, _Result | BaseException | None]:
            awaited = [call for place, call in started.items() if call is not None and place not in late]
            wait(awaited, max(0.0, ends - monotonic()))
            return {
                place: _outcome(call.result, KeyboardInterrupt) if call is not None and call.done() else None
                for place, call in started.items()
            }

        return outcomes

    def _skip(self, source: _External) -> None:
        """Leave `source` out of this step, whatever it has answered."""
        for index in {source.index, *source.indices.values()}:
            self._native.set_trees(index, None)

    @property
    def _vocabulary_size(self) -> int:
        return _LAST_TOKEN + 1 if self.tokenizer is None else self.tokenizer.vocabulary_size

    def _use(self, source: _External, request: SourceRequest, answer: _Answer) -> Drop | None:
        """Hand an answer to the kernel; return what is missing or wrong in it as an answer to `request`."""
        gave_evidence, source.gives_evidence = source.gives_evidence, answer.evidence is not None
        try:
            if (answer.evidence or answer.trees) and answer.tokenizer is not None:
                self.tokenizer = self.tokenizer or answer.tokenizer
                if self.tokenizer is not answer.tokenizer:
                    self.tokenizer.require_same(answer.tokenizer, "draft session")
            if answer.evidence is not None:
                return self._use_evidence(source, answer.evidence)
            if request.contexts:
                self._native.set_trees(source.index, request.checked(answer.trees, self._vocabulary_size))
            elif gave_evidence:
                raise ValueError("it has no evidence any more; the next step asks it for trees")
        except Exception as error:
            return self._drop(source, error)
        return None

    def _use_evidence(self, source: _External, answer: list[Evidence]) -> Drop | None:
        """Hand evidence to the kernel, that of the parts of a datastore as one; return what is missing."""
        left_out = []
        by_datastore: dict[str, list[Evidence]] = {}
        for evidence in answer:
            by_datastore.setdefault(evidence.datastore, []).append(evidence)
        for datastore, parts in by_datastore.items():
            index = self._index_of(source, datastore)
            if index is None:
                left_out.append(datastore)
            else:
                rows, live = [part.rows for part in parts], any(part.live for part in parts)
                self._native.set_evidence(index, rows, self._vocabulary_size, MAX_EVIDENCE_ROWS, live)
        if left_out:
            return Drop(source.place, "full", f"the session has no room for its datastores {', '.join(left_out)}")
        lacks = next((evidence.lacks for evidence in answer if evidence.lacks), None)
        return None if lacks is None else Drop(source.place, "part", lacks)

    def _index_of(self, source: _External, datastore: str) -> int | None:
        """Return the index of the store that gets the evidence of a datastore; None if the kernel takes no more."""
        if not source.indices:
            source.indices[datastore] = source.index
        elif datastore not in source.indices:
            try:
                source.indices[datastore] = self._native.add_store(source.place, None)
            except ValueError:
                return None
        return source.indices[datastore]


def _outcome(call: Callable[[], _Result], *interrupts: type[BaseException]) -> _Result | BaseException:
    """Return what `call` returns or raises; only `interrupts` pass through."""
    try:
        return call()
    except interrupts:
        raise
    except BaseException as error:
        return error


def _tokenizer_of(source: object) -> TokenizerIdentity | None:
    """Return the tokenizer that `source` reports; None if it has none or cannot report it now."""
    try:
        tokenizer = getattr(source, "tokenizer", None)
    except Exception:
        return None
    return tokenizer if isinstance(tokenizer, TokenizerIdentity) else None
