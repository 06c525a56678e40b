"""The drafting side of one generation: a calibrated draft tree from all sources, best first, within a budget."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from rest_store.datastore.datastore import Datastore
from rest_store.datastore.kernel import MAX_NODES, MAX_SUFFIX, native_session_kernel
from rest_store.datastore.tokenizer import TokenizerIdentity, identity_of
from rest_store.datastore.tree import TokenTree
from rest_store.datastore.validation import IntSequence
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.external_sources import ExternalSources, seconds, tokenizer_of
from rest_store.drafting.evidence import reader_of
from rest_store.drafting.sources import PromptLookup, RecycledLogits, Source
from rest_store.errors import (
    ContextTypeError,
    EmptyContextError,
    LimitError,
    SessionClosedError,
    SourceError,
    TokenRangeError,
    describe,
)

_LAST_TOKEN = 2**31 - 1
_NO_COSTS = np.zeros(0)

Costs = npt.ArrayLike | Callable[[int], float]


@dataclass
class SessionStatistics:
    """What a session has done so far.

    Attributes:
        steps: calls of `draft`.
        drafted: draft tokens of all trees.
        accepted: draft tokens that the target model produced, too.
        tokens: tokens given to `accept`.
        dropped: steps that went on without a source: (its place among the sources, why) -> steps; why is "error",
            "late" or "tokenizer". An answer that cannot be, such as a token outside the vocabulary, is an "error", too.
    """

    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    tokens: int = 0
    dropped: dict[tuple[int, str], int] = field(default_factory=dict)

    def drop(self, place: int, why: str) -> None:
        """Count a step that goes on without the source at `place`."""
        self.dropped[place, why] = self.dropped.get((place, why), 0) + 1


class DraftSession:
    """One generation's drafting: knows its text, asks the sources, learns from what was accepted.

    Args:
        sources: at most 8: `Datastore`, `PromptLookup`, `RecycledLogits`, or anything with `draft_batch` as
            `sources.Source` has it, such as a service's client; of those with counts at most 6, of the others one each.
        prompt: 1-D integers, the text so far, oldest token first; may be empty.
        prompt_top_k: int[len(prompt), k], the target model's k most likely tokens after each token of the prompt, -1:
            unknown; for `RecycledLogits`.
        calibration: what turns evidence into probabilities, shared and taught by all sessions that are given it; None:
            a copy of the one that comes with the package.
        learn: whether accepted tokens adjust the calibration.
        max_suffix: longest suffix of the context that sources with counts are asked for, in tokens, 1..64; within a
            tree, paths make matches longer.
        tokenizer: the target model's tokenizer or its `TokenizerIdentity`; a source that says it has another one is
            left out. None: that of the first source that has one. A service is asked for its tokenizer; one that does
            not answer yet is heard until it does.
        source_timeout: seconds that a step waits for sources in Python, from 0 on; None: as long as they take.

    Raises:
        SourceError: an object that is no source, given twice, or too many.
        LimitError: `max_suffix` or `source_timeout` out of range.
        ContextTypeError, TokenRangeError: `prompt` is not 1-D integers of 0 .. 2^31 - 1.
        NativeKernelError: the kernel was not compiled.

    What is learnt in use mends the calibration's error on new text (how many of the tokens that it promises are
    accepted), which is what `costs` are weighed against; it does not make trees of a fixed size accept more. Share one
    calibration among sessions to carry it from one generation to the next.

    A datastore in this process whose files are truncated underneath is left out from then on (what it answers itself is
    worth nothing then); for that a handler of SIGBUS is installed, once in a process.

    Not thread-safe: one thread at a time. A context manager; `close` ends it.
    """

    def __init__(
        self,
        sources: Sequence[object],
        prompt: IntSequence = (),
        *,
        prompt_top_k: npt.ArrayLike | None = None,
        calibration: Calibration | None = None,
        learn: bool = True,
        max_suffix: int = 16,
        tokenizer: object = None,
        source_timeout: float | None = None,
    ) -> None:
        kernel = native_session_kernel()
        self.calibration = Calibration.default() if calibration is None else calibration
        self.statistics = SessionStatistics()
        timeout = seconds(source_timeout)
        self._closed = threading.Event()
        stores = self._sort(list(sources), int(kernel.MAX_STORES))
        recycled = [source.native for source in sources if isinstance(source, RecycledLogits)]
        self._native = kernel.NativeSession(
            stores, self.calibration.native, recycled[0] if recycled else None, self._places
        )
        self._native.learn_online(learn)
        if not 1 <= max_suffix <= MAX_SUFFIX:
            raise LimitError(describe("draft session", "max_suffix", max_suffix, f"1..{MAX_SUFFIX}"))
        self._native.limit_suffix(max_suffix)
        expected = self._leave_out_other_tokenizers(list(sources), tokenizer)
        self._external = ExternalSources(
            self._native,
            self._foreign,
            timeout=timeout,
            max_suffix=max_suffix,
            tokenizer=expected,
            drop=self.statistics.drop,
        )
        tokens = _tokens("prompt", prompt)
        self._native.prompt(tokens)
        if prompt_top_k is not None:
            self._native.learn_text(0, _top_k("prompt_top_k", prompt_top_k, len(tokens)))

    def _sort(self, sources: list[object], most: int) -> list[Any]:
        """Tell the kinds of sources apart; return what the kernel reads of those with counts."""
        if len(sources) > 8:
            raise SourceError(describe("draft session", "number of sources", len(sources), "at most 8"))
        self._places = [-1, -1]
        self._foreign: list[tuple[int, int, Source]] = []  # place among the stores, place among the sources, source
        self._guards: dict[int, tuple[int, Any]] = {}  # by place among the stores: place among the sources, guard
        stores: list[Any] = []
        for place, source in enumerate(sources):
            if any(source is other for other in sources[:place]):
                raise SourceError(describe("draft session", f"source {place}", "one of the others", "another one"))
            special = 0 if isinstance(source, PromptLookup) else 1 if isinstance(source, RecycledLogits) else None
            if special is not None:
                if self._places[special] >= 0:
                    raise SourceError(describe("draft session", f"source {place}", f"a second {source}", "one of each"))
                self._places[special] = place
                continue
            if isinstance(source, Datastore):
                self._guards[len(stores)] = place, reader_of(source).guard
                stores.append(reader_of(source).native)
            elif isinstance(source, Source):
                self._foreign.append((len(stores), place, source))
                stores.append(None)
            else:
                found = type(source).__name__
                raise SourceError(describe("draft session", f"source {place}", found, "a source with draft_batch"))
            self._places.append(place)
        if len(stores) > most:
            raise SourceError(
                describe("draft session", "number of sources with counts", len(stores), f"at most {most}")
            )
        return stores

    def _leave_out_other_tokenizers(self, sources: list[object], tokenizer: object) -> TokenizerIdentity | None:
        """Drop, for all steps, sources that say they have another tokenizer; return the tokenizer, if any is known."""
        expected = None if tokenizer is None else identity_of(tokenizer)
        self._left_out: list[tuple[int, str]] = []  # place among the sources, why
        for store, place in enumerate(self._places[2:]):
            source = sources[place]
            own = source.manifest.tokenizer if isinstance(source, Datastore) else tokenizer_of(source)
            if own is None:
                continue
            expected = expected or own
            if own.fingerprint != expected.fingerprint:
                self._left_out.append((place, "tokenizer"))
                self._guards.pop(store, None)
                self._native.give(store, None)
        misfits = {place for place, _ in self._left_out}
        self._foreign = [one for one in self._foreign if one[1] not in misfits]
        return expected

    def __len__(self) -> int:
        """Return the number of tokens of prompt and output so far."""
        return int(self._native.length())

    def draft(self, max_nodes: int = 16, costs: Costs | None = None) -> TokenTree:
        """Return the draft tree that is worth verifying next.

        Grown best-first: a node's score is the probability that it is accepted, its parent's times its own. Parents
        come before children, and the likeliest path lies contiguous from node 0.

        Args:
            max_nodes: most draft tokens, 0..1024.
            costs: float[n + 1], the time of a step that verifies 0, 1, .. n draft tokens, in any unit; or a function
                from the width of a step, which is 1 + that number, to its time. The tree is then cut to the number of
                nodes that makes (1 + sum of scores) / time greatest, which may be none.

        Returns:
            The tree, with `scores` and `origins`; its counts are zero.

        Raises:
            LimitError: `max_nodes` out of range, or `costs` that are not 1-D positive numbers or a function of one.
            SessionClosedError: after `close`.

        What a source in Python raises is counted, save an interrupt such as KeyboardInterrupt: that passes through, and
        the session is as if it had not been asked to draft.
        """
        if self._closed.is_set():
            raise SessionClosedError(describe("draft", "the session", "closed", "open"))
        try:
            nodes = operator.index(max_nodes)
        except TypeError:
            nodes = -1
        if not 0 <= nodes <= MAX_NODES:
            raise LimitError(describe("draft", "max_nodes", repr(max_nodes), f"0..{MAX_NODES}"))
        times = _NO_COSTS if costs is None else _times(costs, nodes)
        if times.size:
            nodes = min(nodes, times.size - 1)
        try:
            if self._external:
                self._external.ask(nodes)
            packed, scores, origins = self._native.draft(nodes, times)
            if self._leave_out_unreadable():
                packed, scores, origins = self._native.draft(nodes, times)
        except BaseException:
            self._native.forget()
            raise
        for place, why in self._left_out:
            self.statistics.drop(place, why)
        tree = TokenTree.from_packed(packed, (0, 0), scores, origins)
        self.statistics.steps += 1
        self.statistics.drafted += len(tree)
        return tree

    def accept(
        self, tokens: IntSequence, top_k: npt.ArrayLike | None = None, *, node_top_k: npt.ArrayLike | None = None
    ) -> None:
        """Take in what the target model produced: accepted draft tokens and the bonus token, or any others.

        Args:
            tokens: 1-D integers, at least one.
            top_k: int[len(tokens), k], the model's k most likely tokens after each of `tokens`; -1: unknown, as after
                the bonus token, which the model has not read yet.
            node_top_k: int[1 + N, k], the same after the context (row 0) and after each node of the tree drafted since
                the last `accept`, in its order, accepted or not: all that a forward pass over the tree says. Without
                such a tree, N is 0.

        Raises:
            ContextTypeError, EmptyContextError, TokenRangeError: `tokens`, or a top-k, is not as above.
            SessionClosedError: after `close`.
        """
        if self._closed.is_set():
            raise SessionClosedError(describe("accept", "the session", "closed", "open"))
        new = _tokens("tokens", tokens)
        if new.size == 0:
            raise EmptyContextError(describe("accept", "tokens", "empty", "at least one token"))
        rows = None if top_k is None else _top_k("top_k", top_k, new.size)
        if node_top_k is not None:
            self._native.learn_nodes(_top_k("node_top_k", node_top_k, 1 + int(self._native.tree_size())))
        before = len(self)
        self.statistics.accepted += int(self._native.accept(new))
        self.statistics.tokens += new.size
        if rows is not None:
            self._native.learn_text(before, rows)

    def close(self) -> None:
        """End the session; sources stay open. May be called again."""
        self._closed.set()
        self._external.close()

    def _leave_out_unreadable(self) -> bool:
        """Drop, from now on, datastores of which a page could not be read; return whether there are new ones."""
        lost = [store for store, (_, guard) in self._guards.items() if guard is not None and guard.lost]
        for store in lost:
            self._left_out.append((self._guards.pop(store)[0], "error"))
            self._native.give(store, None)
        return bool(lost)

    def __enter__(self) -> DraftSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        done = self.statistics
        return f"DraftSession({len(self)} tokens, {done.steps} steps, {done.accepted} of {done.drafted} accepted)"


def _tokens(what: str, values: IntSequence) -> npt.NDArray[np.int32]:
    """Return `values` as int32; raise unless they are 1-D integers from 0 on."""
    array = _integers(what, values)
    if array.ndim != 1:
        raise ContextTypeError(describe("draft session", what, f"{array.ndim}-D", "1-D integers"))
    if array.size and not 0 <= int(array.min()) <= int(array.max()) <= _LAST_TOKEN:
        found = int(array.min()) if int(array.min()) < 0 else int(array.max())
        raise TokenRangeError(describe("draft session", f"token id in {what}", found, f"0..{_LAST_TOKEN}"))
    return np.ascontiguousarray(array, np.int32)


def _integers(what: str, values: Any) -> npt.NDArray[Any]:
    try:
        array = np.asarray(values)
    except (TypeError, ValueError):  # ragged
        array = np.empty((), dtype=object)
    if array.size and array.dtype.kind not in "iu":
        raise ContextTypeError(describe("draft session", what, f"{array.ndim}-D {array.dtype}", "integers"))
    return array


def _top_k(what: str, values: npt.ArrayLike, rows: int) -> npt.NDArray[np.int32]:
    """Return `values` as int32[rows, k]; raise unless they are 2-D integers of so many rows."""
    array = _integers(what, values)
    if array.ndim != 2 or array.shape[0] != rows:
        raise ContextTypeError(describe("draft session", what, f"of shape {array.shape}", f"[{rows}, k] integers"))
    return np.ascontiguousarray(np.clip(array, -1, _LAST_TOKEN), np.int32)


def _times(costs: Costs, nodes: int) -> npt.NDArray[np.float64]:
    try:
        found = [costs(1 + count) for count in range(nodes + 1)] if callable(costs) else costs
        array = np.asarray(found, np.float64, order="C")
    except (TypeError, ValueError):
        array = np.empty((0, 0))
    if array.ndim != 1 or array.size == 0 or not bool(np.all((array > 0) & np.isfinite(array))):
        raise LimitError(describe("draft", "costs", f"of shape {array.shape}", "1-D positive finite numbers"))
    return array
