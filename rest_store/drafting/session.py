"""Draft sessions: one generation's drafting side, which makes a
calibrated draft tree from all sources, best first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple

import numpy.typing as npt

from rest_store.datastore.tokenizer import identity_of
from rest_store.datastore.tree import TokenTree
from rest_store.datastore.validation import IntSequence
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.draft_options import (
    DraftOptions,
    parse_references,
    parse_tokens,
    parse_top_k,
)
from rest_store.drafting.kernel_session import append
from rest_store.drafting.session_sources import Drop, SessionSources, draft_step
from rest_store.drafting.sources import require_source_timeout, require_sources
from rest_store.errors import DataFileError, QueryError, describe

_MAX_ERROR_LENGTH = 300  # characters


class Absence(NamedTuple):
    """For how many steps in a row a session has gone on without a source, and why, as text."""

    steps: int
    reason: str


@dataclass
class SessionStatistics:
    """What a session has done so far.

    Attributes:
        steps: calls of `draft`.
        dropped: steps that went on without a source, or without one of its partitions, by its name
            and the reason: "error", "late" or "tokenizer".
        absent: the sources that the latest step went on without, by name.
    """

    steps: int = 0
    dropped: dict[tuple[str, str], int] = field(default_factory=dict)
    absent: dict[str, Absence] = field(default_factory=dict)

    def add_step(self, drops: Sequence[Drop]) -> None:
        """Count a step that went on without some sources."""
        self.steps += 1
        if not drops and not self.absent:
            return
        before, self.absent = self.absent, {}
        # Partitions of a source count once.
        for source, why, error in {drop.source: drop for drop in drops}.values():
            self.dropped[source, why] = self.dropped.get((source, why), 0) + 1
            steps = before[source].steps + 1 if source in before else 1
            self.absent[source] = Absence(steps, f"{source}: {error[:_MAX_ERROR_LENGTH]}")


class DraftSession:
    """One generation's drafting: holds its text, asks the sources, learns from what was accepted.

    Args:
        sources: at most 8: a `PromptLookup`, a `RecycledLogits`, and up to 6 of `Datastore`,
            `LiveDatastore` and `DatastoreClient`.
        prompt: 1-D integers, the text so far, oldest token first; may be empty.
        calibration: turns evidence into acceptance probabilities; sessions that share one learn
            together. None: a copy of the default calibration.
        learn: whether accepted tokens adjust the calibration.
        tokenizer: the target model's tokenizer or its `TokenizerIdentity`; sources with another one
            are left out. None: that of the first datastore in this process.
        source_timeout: seconds that a step waits for services, from 0 on; None: as long as their
            clients do.
        references: texts that the output will probably resemble, 1-D integers each, the likeliest
            last: an edited file, an earlier answer to the same prompt, a template. Prompt lookup,
            which must be among `sources`, searches them, too. They are no part of the text.
            Services search them, too, unless their clients keep the text.

    Raises:
        SourceError: an object is not a source, is given twice, or there are too many; or there are
            references, but no prompt lookup.
        DatastoreClosedError, DatastoreUnavailableError: a datastore is closed, or a page of it
            could not be read.
        DataFileError: `calibration` is something else.
        ArgumentError: `source_timeout` out of range.
        ContextTypeError, QueryError: `prompt`, or a reference, is not 1-D integers of 0 .. 2^31 -
            1.
        NativeKernelError: the kernel was not compiled.

    Learning keeps scores accurate on new text: about as many tokens are accepted as the scores
    promise. With `costs`, the size of a tree depends on that. Trees of a fixed size do not get more
    tokens accepted.

    A service runs a whole session over its datastores, with prompt lookup and recycled logits. The
    trees that arrive in time are merged with that of the datastores in this process; where none
    arrives, what is in this process drafts alone. A datastore that is closed, or whose files are
    truncated while it is open, is left out from then on.

    Not thread-safe: one thread at a time. A context manager; `close` ends it.
    """

    def __init__(
        self,
        sources: Sequence[object],
        prompt: IntSequence = (),
        *,
        calibration: Calibration | None = None,
        learn: bool = True,
        tokenizer: object = None,
        source_timeout: float | None = None,
        references: Iterable[IntSequence] = (),
    ) -> None:
        require_sources("draft session", sources)
        require_source_timeout("draft session", source_timeout)
        if calibration is not None and not isinstance(calibration, Calibration):
            expected = "a Calibration; Calibration.load(path) reads one"
            raise DataFileError(
                describe(
                    "draft session", "calibration", f"a {type(calibration).__name__}", expected
                )
            )
        self.calibration = Calibration.default() if calibration is None else calibration
        self.statistics = SessionStatistics()
        self.sources = SessionSources(  # for batches, too; no public interface
            sources,
            self.calibration,
            parse_tokens("prompt", prompt),
            parse_references(references),
            learn=learn,
            tokenizer=None if tokenizer is None else identity_of(tokenizer),
            timeout=source_timeout,
        )

    def __len__(self) -> int:
        """Return the number of tokens of prompt and output so far."""
        return int(self.sources.native.length())

    def draft(
        self,
        max_nodes: int = 16,
        costs: npt.ArrayLike | None = None,
        *,
        shape: str = "tree",
        services: bool = True,
    ) -> TokenTree:
        """Return the draft that is worth verifying next.

        A tree is built best-first: a node's score is the probability that it is accepted, its
        parent's score times its own acceptance probability. Parents come before children, and the
        most probable path is contiguous from node 0.

        A chain follows the likeliest token of each position. The sum of its scores is its expected
        accepted length. It ends where further nodes would bring nothing.

        Args:
            max_nodes: most draft tokens, 0..1024; of a chain never more than 48.
            costs: float[n + 1], the time of a step that verifies 0, 1, .. n draft tokens, in any
                unit. The draft then has the number of nodes that makes (1 + sum of scores) / time
                greatest, which may be 0.
            shape: "tree", or "chain": one path, for engines that verify no trees.
            services: whether services are asked in this step; what is in this process drafts in any
                case.

        Returns:
            The draft, with `scores` and `origins`; its counts are zero. The parents of a chain are
            -1, 0, 1 ..

        Raises:
            ArgumentError: `max_nodes` out of range, `costs` that are not 1-D positive numbers, or
                an unknown `shape`.
            SessionClosedError: after `close`.

        What a service's client raises is counted in `statistics`. An interrupt, such as
        KeyboardInterrupt, passes through, and the session is as if nothing had been drafted since
        the last `accept`.
        """
        self.sources.require_open("draft")
        [tree] = draft_step(
            [self.sources],
            [DraftOptions.from_arguments(max_nodes, costs, shape)],
            services=services,
        )
        self.statistics.add_step(self.sources.drops)
        return tree

    def accept(
        self,
        tokens: IntSequence,
        top_k: npt.ArrayLike | None = None,
        *,
        node_top_k: npt.ArrayLike | None = None,
    ) -> None:
        """Append what the target model produced: accepted draft
        tokens and the bonus token, or any others.

        Args:
            tokens: 1-D integers, at least one.
            top_k: int[n, k], the model's k most likely tokens after each of `tokens` and, in the
                rows before, of the tokens before them; -1: unknown, as after the bonus token, which
                the model has not read yet. A token outside the vocabulary ends a row.
            node_top_k: int[1 + N, k], the same after the context (row 0) and after each node of the
                tree drafted since the last `accept`, in its order, accepted or not. Without such a
                tree, N is 0.

        Raises:
            ContextTypeError, QueryError: `tokens`, or a top-k, is not as above.
            SessionClosedError: after `close`.
        """
        self.sources.require_open("accept")
        new = parse_tokens("tokens", tokens)
        if new.size == 0:
            raise QueryError(describe("accept", "tokens", "empty", "at least one token"))
        rows, node_rows = parse_top_k("top_k", top_k), parse_top_k("node_top_k", node_top_k)
        append(self.sources.native, new, rows, self.sources.rows_here(node_rows))
        self.sources.accept(new, rows, node_rows)

    def close(self) -> None:
        """End the session; sources stay open. May be called again."""
        self.sources.close()

    def __enter__(self) -> DraftSession:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
