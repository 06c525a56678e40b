"""Draft sessions: one generation's drafting side, which makes a calibrated draft tree from all sources, best first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from rest_store.datastore.kernel import MAX_SUFFIX
from rest_store.datastore.render import counted
from rest_store.datastore.tokenizer import TokenizerIdentity, identity_of
from rest_store.datastore.tree import TokenTree
from rest_store.datastore.validation import IntSequence, limit
from rest_store.drafting.arguments import (
    Costs,
    is_chain,
    lowest_score,
    node_limit,
    times_of,
    tokens_of,
    top_k_of,
)
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.external_sources import Drop, ExternalSources
from rest_store.drafting.kernel_session import (
    Drafted,
    DraftLimits,
    TopK,
    append,
    follow_changes,
    kernel_session,
    take_prompt,
)
from rest_store.drafting.remote import RemoteDrafting, SessionSettings, remote_drafting
from rest_store.drafting.sources import (
    Source,
    require_source_timeout,
    require_sources,
)
from rest_store.errors import (
    CopyError,
    DatastoreClosedError,
    DatastoreUnavailableError,
    EmptyContextError,
    SessionClosedError,
    TokenizerMismatchError,
    describe,
)

_MAX_ERRORS, _MAX_ERROR_LENGTH = 4, 300  # texts kept of each source, and characters of one


class Absence(NamedTuple):
    """For how many steps in a row a session has gone on without a source, and why, as text."""

    steps: int
    reason: str


@dataclass
class SessionStatistics:
    """What a session has done so far.

    Attributes:
        steps: calls of `draft`.
        drafted: draft tokens of all trees.
        accepted: draft tokens that the target model also produced.
        tokens: tokens given to `accept`.
        dropped: steps that went on without a source, by its place among the sources and the reason: "error", "late" or
            "tokenizer". An invalid answer, such as a token outside the vocabulary, is an "error". "full" counts steps
            without some datastores of a service, because a session can hold only six; "part" those without a part of a
            datastore that is served in parts.
        errors: what went wrong, as text: the first few different errors of each source.
        absent: the sources that the latest step went on without, by place.
    """

    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    tokens: int = 0
    dropped: dict[tuple[int, str], int] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    absent: dict[int, Absence] = field(default_factory=dict)

    def add_step(self, drafted: int, drops: Iterable[Drop]) -> None:
        """Count a step.

        Args:
            drafted: draft tokens of its tree.
            drops: the sources that it went on without.
        """
        self.steps += 1
        self.drafted += drafted
        before, self.absent = self.absent, {}
        for place, why, error in drops:
            source = f"source {place}: "
            text = source + error[:_MAX_ERROR_LENGTH]
            self.dropped[place, why] = self.dropped.get((place, why), 0) + 1
            self.absent[place] = Absence(before[place].steps + 1 if place in before else 1, text)
            if text not in self.errors and sum(known.startswith(source) for known in self.errors) < _MAX_ERRORS:
                self.errors.append(text)


class DraftSession:
    """One generation's drafting: holds its text, asks the sources, learns from what was accepted.

    Args:
        sources: at most 8: `Datastore`, `DatastoreClient`, `PromptLookup`, `RecycledLogits`, or any other
            `sources.Source`; at most one `PromptLookup`, one `RecycledLogits` and 6 others.
        prompt: 1-D integers, the text so far, oldest token first; may be empty.
        prompt_top_k: int[n, k], the target model's k most likely tokens after each of the last n tokens of the prompt,
            -1: unknown; for `RecycledLogits`. Here and in `accept`, a token outside the vocabulary ends a row.
        calibration: turns evidence into acceptance probabilities; sessions that share one learn together. None: a copy
            of the default calibration.
        learn: whether accepted tokens adjust the calibration.
        max_suffix: longest suffix of the context that sources with counts are asked for, in tokens, 1..64; inside a
            tree, the path is added to it.
        tokenizer: the target model's tokenizer or its `TokenizerIdentity`; sources with another one are left out. None:
            that of the first source that has one. A service that cannot report its tokenizer yet stays in use and is
            checked once it does.
        source_timeout: seconds that a step waits for external sources (all but `Datastore`, `PromptLookup` and
            `RecycledLogits`), from 0 on; None: no limit.

    Raises:
        SourceError: an object is not a source, is given twice, or there are too many.
        DatastoreClosedError, DatastoreUnavailableError: a datastore is closed, or a page of it could not be read.
        LimitError: `max_suffix` or `source_timeout` out of range.
        ContextTypeError, TokenRangeError: `prompt` is not 1-D integers of 0 .. 2^31 - 1.
        NativeKernelError: the kernel was not compiled.

    Learning keeps scores true on new text: as many tokens are accepted as they promise, which `costs` are weighed
    against. It does not make trees of a fixed size accept more.

    A datastore that is closed, or whose files are truncated while it is open, is left out from then on.

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
        require_sources("draft session", sources)
        require_source_timeout("draft session", source_timeout)
        max_suffix = limit("max_suffix", max_suffix, MAX_SUFFIX, where="draft session")
        self.calibration = Calibration.default() if calibration is None else calibration
        self.statistics = SessionStatistics()
        self._closed = False
        self._native, self._datastores, stores = kernel_session(
            self.calibration, sources, learn=learn, max_suffix=max_suffix
        )
        self._left_out: list[Drop] = []  # from all steps
        tokenizers = {place: opened.store.tokenizer for place, opened in self._datastores.items()}
        external: list[tuple[int, int, Source]] = []
        for place, store in stores.items():
            source = sources[place]
            assert isinstance(source, Source)  # as required above
            external.append((store, place, source))
        self._external = ExternalSources(self._native, external, timeout=source_timeout, max_suffix=max_suffix)
        tokenizers |= self._external.tokenizers()
        self._remote: RemoteDrafting | None = None
        self._leave_out_other_tokenizers(tokenizers, None if tokenizer is None else identity_of(tokenizer))
        tokens = tokens_of("prompt", prompt)
        rows = None if prompt_top_k is None else top_k_of("prompt_top_k", prompt_top_k)
        take_prompt(self._native, tokens, rows)
        if len(external) == len(self._external) == 1 and not self._datastores:
            settings = SessionSettings(self.calibration, learn, max_suffix, self._external.tokenizer, rows)
            self._remote = remote_drafting(self._native, sources, settings, len(tokens), source_timeout)
        if self._remote is not None:
            self._external.skip()
            self._remote.open()

    def _leave_out_other_tokenizers(
        self, tokenizers: dict[int, TokenizerIdentity], expected: TokenizerIdentity | None
    ) -> None:
        """Leave out sources with another tokenizer than `expected`; None: that of the first source with one."""
        if expected is None and tokenizers:
            expected = tokenizers[min(tokenizers)]
        self._external.tokenizer = expected
        if expected is not None:
            self._native.limit_tokens(expected.vocabulary_size)
        for place, reported in tokenizers.items():
            try:
                assert expected is not None
                expected.require_same(reported, "draft session")
            except TokenizerMismatchError as error:
                self._leave_out(place, "tokenizer", str(error))

    @property
    def _asks_elsewhere(self) -> bool:
        return self._remote is not None or len(self._external) > 0

    def _send(self, limits: DraftLimits) -> bool:
        """Ask the sources outside this process for the next step. Batches call this, too, and the next two methods.

        Returns:
            Whether `_receive` waits for nothing but their answers.
        """
        if self._remote is not None:
            return self._remote.send(limits)
        if self._remote is None and self._external:
            self._external.send(limits.max_nodes)
        return True

    def _receive(self, limits: DraftLimits) -> tuple[Drafted | None, list[Drop]]:
        """Wait for their answers; return the draft if it came whole, and the sources that the step goes on without."""
        drops: list[Drop] = []
        if self._remote is not None:
            answer = self._remote.draft(limits)
            if isinstance(answer, Drafted):
                return answer, []
            if answer is None:
                seconds = self._remote.seconds_left
                self._end_remote()
                self._external.send(limits.max_nodes, seconds)
            else:
                drops.append(answer)
        if self._remote is None and self._external:
            drops = self._external.receive()
        for drop in drops:
            if drop.why == "tokenizer":
                self._leave_out(*drop)
        return None, [drop for drop in drops if drop.why != "tokenizer"]

    def _finish(self, drafted: Drafted, drops: Iterable[Drop]) -> TokenTree:
        """Count a step; return its draft."""
        packed, scores, origins = drafted
        tree = TokenTree.from_packed(packed, (0, 0), scores, origins)
        self.statistics.add_step(len(tree), [*drops, *self._left_out])
        return tree

    def _leave_out_unreadable(self) -> bool:
        """Leave out datastores that have lost a page or were closed; return whether there are new ones."""
        readable = len(self._datastores)
        for place, opened in list(self._datastores.items()):
            try:
                opened.store.require_readable()
            except (DatastoreUnavailableError, DatastoreClosedError) as error:
                self._leave_out(place, "error", str(error))
        return len(self._datastores) < readable

    def _leave_out(self, place: int, why: str, text: str) -> None:
        """Draft without the source at `place` from now on; every step counts that."""
        self._left_out.append(Drop(place, why, text))
        if place in self._datastores:
            self._native.set_trees(self._datastores.pop(place).index, None)
        else:
            self._external.remove(place)
            self._end_remote()

    def _end_remote(self) -> None:
        remote, self._remote = self._remote, None
        if remote is not None:
            remote.close()

    def __len__(self) -> int:
        """Return the number of tokens of prompt and output so far."""
        return int(self._native.length())

    def draft(
        self, max_nodes: int = 16, costs: Costs | None = None, *, shape: str = "tree", min_score: float = 0.0
    ) -> TokenTree:
        """Return the draft that is worth verifying next.

        A tree is built best-first: a node's score is the probability that it is accepted, its parent's score times its
        own acceptance probability. Parents come before children, and the most probable path is contiguous from node 0.

        A chain follows the likeliest token of each place. The sum of its scores is its expected accepted length. It
        ends where further nodes would bring nothing.

        Args:
            max_nodes: most draft tokens, 0..1024; of a chain never more than 48.
            costs: float[n + 1], the time of a step that verifies 0, 1, .. n draft tokens, in any unit; or a function
                from the width of a step, which is 1 + that number, to its time. The draft then has the number of nodes
                that makes (1 + sum of scores) / time greatest, which may be 0.
            shape: "tree", or "chain": one path, for engines that verify no trees.
            min_score: nodes with a lower score are left out, 0..1; then drafting takes less time, too.

        Returns:
            The draft, with `scores` and `origins`; its counts are zero. The parents of a chain are -1, 0, 1 ..

        Raises:
            LimitError: `max_nodes` or `min_score` out of range, `costs` that are not 1-D positive numbers or a function
                of one, or an unknown `shape`.
            SessionClosedError: after `close`.

        What an external source raises is counted in `statistics`, except an interrupt: KeyboardInterrupt, and without
        `source_timeout` also SystemExit. That passes through, and the session is as it was before the call.
        """
        self._require_open("draft")
        nodes, chain = node_limit(max_nodes), is_chain(shape)
        times = times_of(costs, nodes)
        if times.size:
            nodes = min(nodes, times.size - 1)
        limits = DraftLimits(nodes, times, chain, lowest_score(min_score))
        try:
            self._send(limits)
            drafted, drops = self._receive(limits)
            if drafted is None:
                follow_changes(self._native, self._datastores.values())
                drafted = Drafted(*self._native.draft(*limits))
                if self._leave_out_unreadable():
                    drafted = Drafted(*self._native.draft(*limits))
        except BaseException:
            self._native.forget()
            raise
        return self._finish(drafted, drops)

    def accept(
        self, tokens: IntSequence, top_k: npt.ArrayLike | None = None, *, node_top_k: npt.ArrayLike | None = None
    ) -> None:
        """Append what the target model produced: accepted draft tokens and the bonus token, or any others.

        Args:
            tokens: 1-D integers, at least one.
            top_k: int[n, k], the model's k most likely tokens after each of `tokens` and, in the rows before, of the
                tokens before them; -1: unknown, as after the bonus token, which the model has not read yet.
            node_top_k: int[1 + N, k], the same after the context (row 0) and after each node of the tree drafted since
                the last `accept`, in its order, accepted or not. Without such a tree, N is 0.

        Raises:
            ContextTypeError, EmptyContextError, TokenRangeError: `tokens`, or a top-k, is not as above.
            SessionClosedError: after `close`.
        """
        self._require_open("accept")
        new = tokens_of("tokens", tokens)
        if new.size == 0:
            raise EmptyContextError(describe("accept", "tokens", "empty", "at least one token"))
        rows = None if top_k is None else top_k_of("top_k", top_k)
        node_rows = None if node_top_k is None else top_k_of("node_top_k", node_top_k)
        self._appended(new, append(self._native, new, rows, node_rows), rows, node_rows)

    def _appended(
        self, tokens: npt.NDArray[np.int32], accepted: int, top_k: TopK | None = None, node_top_k: TopK | None = None
    ) -> None:
        """Count what the kernel has appended, and tell the session that a service runs, if there is one."""
        self.statistics.accepted += accepted
        self.statistics.tokens += tokens.size
        if self._remote is not None:
            self._remote.accept(tokens, top_k, node_top_k)

    def close(self) -> None:
        """End the session; sources stay open. May be called again."""
        self._closed = True
        self._end_remote()
        self._external.close()

    def _require_open(self, where: str) -> None:
        if self._closed:
            raise SessionClosedError(describe(where, "the session", "closed", "open"))

    def __enter__(self) -> DraftSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise CopyError(describe("draft session", "a copy", "impossible", "a new session of its sources and its text"))

    def __repr__(self) -> str:
        done = self.statistics
        length, steps = counted(len(self), "token"), counted(done.steps, "step")
        return f"DraftSession({length}, {steps}, {done.accepted} of {done.drafted} accepted)"
