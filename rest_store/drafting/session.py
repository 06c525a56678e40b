"""A draft session: the drafting side of one generation, with a calibrated tree for each step."""

from __future__ import annotations

import warnings
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
    Accepted,
    DraftOptions,
    parse_references,
    parse_tokens,
)
from rest_store.drafting.session_sources import Omission, SessionSources
from rest_store.drafting.sources import require_source_timeout, require_sources
from rest_store.drafting.steps import Drafted, accept_step, draft_step
from rest_store.errors import DataFileError

_MAX_ERROR_LENGTH = 300  # characters


class Absence(NamedTuple):
    """A source that a session goes on without.

    Attributes:
        steps: how many steps in a row.
        reason: the name of the source, and the error of the latest step.
    """

    steps: int
    reason: str


@dataclass
class SessionStatistics:
    """The steps of a session so far.

    Attributes:
        steps: calls of `draft`.
        omissions: steps that went on without a source, or without one of its partitions, by its
            name and the reason: "error", "late" or "tokenizer".
        absent: the sources that the latest step went on without, by name.
        waited: seconds that the latest step waited for services.
    """

    steps: int = 0
    omissions: dict[tuple[str, str], int] = field(default_factory=dict)
    absent: dict[str, Absence] = field(default_factory=dict)
    waited: float = field(default=0.0, compare=False)

    def add_step(self, drafted: Drafted) -> None:
        """Count a step."""
        self.steps += 1
        self.waited = drafted.waited
        if not drafted.omissions and not self.absent:
            return
        before = self.absent
        self.absent = {}
        # Partitions of a source count once.
        by_source = {omission.source: omission for omission in drafted.omissions}
        for source, omission in by_source.items():
            self._count_omission(omission)
            steps = before[source].steps + 1 if source in before else 1
            self.absent[source] = Absence(steps, f"{source}: {omission.text[:_MAX_ERROR_LENGTH]}")

    def _count_omission(self, omission: Omission) -> None:
        key = omission.source, omission.why
        self.omissions[key] = self.omissions.get(key, 0) + 1

    @property
    def dropped(self) -> dict[tuple[str, str], int]:
        """The former name of `omissions`, which goes with the next release."""
        warnings.warn("dropped is now called omissions", FutureWarning, stacklevel=2)
        return self.omissions


class DraftSession:
    """The drafting of one generation: it holds the text, asks the sources, and learns.

    Args:
        sources: at most 8: a `PromptLookup`, a `RecycledLogits`, and up to 6 others:
            `Datastore`, `LiveDatastore`, `DatastoreClient`, and at most one `Grammar`.
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
        group: the group that this generation is of. A datastore that was opened with `shared_after`
            tells it of that group's documents, and of token sequences that enough groups wrote; ""
            of the latter alone.

    Raises:
        SourceError: an object is not a source, is there twice, or there are too many; or there are
            references, but no prompt lookup.
        DatastoreClosedError, DatastoreUnavailableError: a datastore is closed, or a page of it
            could not be read.
        DataFileError: `calibration` is no Calibration.
        ArgumentError: `source_timeout` out of range.
        ContextTypeError, QueryError: `prompt`, or a reference, is not 1-D integers of
            0 .. 2^31 - 1.
        DocumentError: `group` is not a valid group.
        NativeKernelError: the kernel was not compiled.

    Learning keeps scores accurate on new text: about as many tokens are accepted as the scores
    promise. With `costs`, the size of a tree depends on that. Learning does not improve trees of a
    fixed size.

    A service runs a whole session over its datastores, with prompt lookup and recycled logits. The
    trees that arrive in time are merged with the tree of the datastores in this process; where none
    arrives, the sources in this process draft alone. A datastore that is closed, or whose files are
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
        group: str = "",
    ) -> None:
        require_sources("draft session", sources)
        require_source_timeout("draft session", source_timeout)
        if calibration is not None and not isinstance(calibration, Calibration):
            raise DataFileError(
                f"draft session: calibration is of the type {type(calibration).__name__}, expected"
                " a Calibration; Calibration.load(path) reads one"
            )
        self.calibration = Calibration.default() if calibration is None else calibration
        self.statistics = SessionStatistics()
        self._sources = SessionSources(  # `batch.py` reads it, too
            sources,
            self.calibration,
            parse_tokens("prompt", prompt),
            parse_references(references),
            learn=learn,
            tokenizer=None if tokenizer is None else identity_of(tokenizer),
            timeout=source_timeout,
            group=group,
        )

    def __len__(self) -> int:
        """Return the number of tokens of prompt and output so far."""
        return int(self._sources.native.length())

    @property
    def service_origins(self) -> int:
        """The origins of the sources in other processes, as a bitmask."""
        return self._sources.service_origins

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
            services: whether services are asked in this step; sources in this process draft in any
                case.

        Returns:
            The draft, with `scores` and `origins`; its counts are zero. The parents of a chain are
            -1, 0, 1 ..

        Raises:
            ArgumentError: `max_nodes` out of range, `costs` that are not 1-D positive numbers, or
                an unknown `shape`.
            SessionClosedError: after `close`.

        Errors of a service's client are counted in `statistics`. An interrupt, such as
        KeyboardInterrupt, passes through, and the session is as if nothing had been drafted since
        the last `accept`.
        """
        self._sources.require_open("draft")
        options = DraftOptions.from_arguments(max_nodes, costs, shape)
        [drafted] = draft_step([self._sources], [options], services=services)
        self.statistics.add_step(drafted)
        return drafted.tree

    def accept(
        self,
        tokens: IntSequence,
        top_k: npt.ArrayLike | None = None,
        *,
        node_top_k: npt.ArrayLike | None = None,
    ) -> None:
        """Append the output of the target model: accepted draft tokens and the bonus token.

        Args:
            tokens: 1-D integers, at least one; any tokens, drafted or not.
            top_k: int[n, k], the model's k most likely tokens after each of `tokens`. More rows
                belong to the tokens before these. -1: unknown, as after the bonus token, which the
                model has not read yet. A token outside the vocabulary ends a row.
            node_top_k: int[1 + N, k], the same after the context (row 0) and after each node of the
                tree drafted since the last `accept`, in its order, accepted or not. Without such a
                tree, N is 0.

        Raises:
            ContextTypeError, QueryError: `tokens`, or a top-k, has another type, shape or range.
            SessionClosedError: after `close`.
        """
        self._sources.require_open("accept")
        accepted = Accepted.from_arguments("accept", tokens, top_k, node_top_k)
        accept_step("draft session", [self._sources], [accepted])

    def record_candidates(self, on: bool) -> None:
        """Record the candidates of each step from now on, to fit a calibration to; or stop."""
        self._sources.native.record(on)

    def recorded_candidates(self) -> tuple[bytes, bytes, bytes]:
        """Return the candidates recorded since the last call, as `Calibration.fit` takes them.

        Returns:
            The bytes of features float32[rows, F], labels uint8[rows] and ends uint32[positions].
        """
        return self._sources.native.recorded()

    def close(self) -> None:
        """End the session; sources stay open. May be called again."""
        self._sources.close()

    def __enter__(self) -> DraftSession:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
