"""A draft session that its only source with counts, a service, runs elsewhere.

The session here keeps the text, and what it needs to draft from the prompt and the model's logits while the other one
is away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from rest_store.datastore.kernel import MAX_NODES
from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.external_sources import Drop
from rest_store.drafting.kernel_session import Drafted, DraftLimits, TopK
from rest_store.drafting.sources import PromptLookup, RecycledLogits, Source
from rest_store.errors import ProtocolError, TokenizerMismatchError, describe, error_text

if TYPE_CHECKING:
    from rest_store._kernel import NativeSession

NODE_BYTES = 11  # of a node as the message DraftSessionResponse has it
MOST_RECENT = 16  # numbers that recent steps have taught a session; now it has 3, and one for each datastore
_ORIGINS = 8  # bits


@dataclass(frozen=True)
class SessionSettings:
    """A `DraftSession` for another process to run.

    Attributes:
        calibration: that evidence is weighed with; learns what the session learns.
        learn: whether it learns.
        max_suffix: longest suffix of the context that datastores are asked for, in tokens.
        tokenizer: of the session; None: that of the datastores.
        prompt_top_k: [n, k], the model's most likely tokens after each of the last n tokens of the prompt, -1:
            unknown; None: all are.
        prompt_lookup: whether the text is a source.
        recycled_logits: by which key sessions share what the model found likely, as a source; None: it is none.
    """

    calibration: Calibration
    learn: bool
    max_suffix: int
    tokenizer: TokenizerIdentity | None
    prompt_top_k: TopK | None
    prompt_lookup: bool = False
    recycled_logits: bytes | None = None


class RemoteTree(NamedTuple):
    """A tree that a session elsewhere drafted.

    Attributes:
        nodes: as in the message DraftSessionResponse of `proto/rest_store/v1/datastore.proto`, not verified.
        vocabulary_size: above all its tokens.
        datastores: that the session drafts from.
        calibration_weights: as `Calibration` takes them; empty: unknown.
    """

    nodes: bytes
    vocabulary_size: int
    datastores: int
    calibration_weights: list[float]


class RemoteSession(Protocol):
    """A session that runs elsewhere. It may be lost at any time, and is then opened again with the text."""

    def open(self, text: Callable[[], tuple[npt.NDArray[np.int32], int]]) -> None:
        """Open it ahead of the first step, if that needs no waiting. If it fails, the first step opens it.

        Args:
            text: as in `draft`.

        Raises:
            ServiceError, TokenizerMismatchError: as `draft`.
        """

    def draft(
        self,
        text: Callable[[], tuple[npt.NDArray[np.int32], int]],
        limits: DraftLimits,
        *,
        timeout: float | None,
    ) -> RemoteTree | None:
        """Return the tree of the next step; None if this session cannot be run there, now or later.

        Where a chain is asked for, it may be a tree of at most `tree_nodes(limits)` nodes, whose most probable path
        comes first.

        Args:
            text: returns the text so far, int32[n], and how many of its last tokens the model has written.
            limits: of the draft.
            timeout: seconds to wait at most; None: no further limit.

        Raises:
            ServiceError: no answer; the subclass says why.
            TokenizerMismatchError: the datastores have another tokenizer.
        """

    def send(
        self,
        text: Callable[[], tuple[npt.NDArray[np.int32], int]],
        limits: DraftLimits,
        *,
        timeout: float | None,
    ) -> bool:
        """Send the request of the next `draft`, which has the same arguments, if that needs no waiting.

        Its time then counts from now on.

        Returns:
            Whether it was sent. If not, `draft` sends it, and says why it could not be sent if it still cannot.
        """

    def share(self) -> None:
        """Expect to be drafted together with others of the same source, whose requests travel together then."""

    def flush(self) -> None:
        """Send what `send` has kept, so that it travels together with the requests of other sessions."""

    def accept(
        self,
        tokens: npt.NDArray[np.int32],
        top_k: TopK | None,
        node_top_k: TopK | None,
    ) -> None:
        """Keep for the next step what `DraftSession.accept` was told."""

    def close(self, text: Callable[[], tuple[npt.NDArray[np.int32], int]]) -> None:
        """End the session; may be called again. Comes at the end of the text, also if `draft` has returned None.

        Args:
            text: as in `draft`, for what is done at the end.
        """


@runtime_checkable
class SessionSource(Source, Protocol):
    """A source that runs whole sessions where its datastores are."""

    def session(self, settings: SessionSettings) -> RemoteSession | None:
        """Return a session; None if it is not to run any."""


class RemoteDrafting:
    """Hands a session's steps over to `remote`, and its trees to the kernel.

    Args:
        native: the kernel's side of the session here.
        source: that runs the session elsewhere.
        remote: the session elsewhere.
        settings: that it was made with.
        places: of the source that runs it, of prompt lookup and of recycled logits, among the session's sources.
        prompt_length: tokens of the prompt.
        timeout: seconds that a step waits; None: as long as `remote` does.
    """

    def __init__(
        self,
        native: NativeSession,
        source: SessionSource,
        remote: RemoteSession,
        settings: SessionSettings,
        places: tuple[int, int | None, int | None],
        prompt_length: int,
        timeout: float | None,
    ) -> None:
        self.source = source
        self._native = native
        self._remote = remote
        self._settings = settings
        self._places = places
        self._prompt_length = prompt_length
        self._timeout = timeout
        self._ends: float | None = None  # of the step, `time.monotonic`
        self._origins: dict[int, bytes] = {}  # by number of datastores: for each mask of origins, ours
        self._rows = 1  # of top-k for the remote tree drafted last: one of the text, and one of each node; 0: unknown

    def open(self) -> None:
        """Open the session elsewhere, so that it is ready when the target model has read the prompt."""
        with suppress(Exception):  # the first step says what is wrong
            self._remote.open(self._text)

    def send(self, limits: DraftLimits) -> bool:
        """Send the request of the next `draft` if that needs no waiting; return whether it was sent."""
        self._rows = 0
        self._ends = None if self._timeout is None else monotonic() + self._timeout
        try:
            return self._remote.send(self._text, limits, timeout=self._timeout)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:
            return False  # `draft` says what is wrong

    def share(self) -> None:
        """Have steps travel together with those of other sessions, as `RemoteSession.share`."""
        self._remote.share()

    def flush(self) -> None:
        """Send what `send` has kept, as `RemoteSession.flush`."""
        with suppress(Exception):  # `draft` says what is wrong
            self._remote.flush()

    def draft(self, limits: DraftLimits) -> Drafted | Drop | None:
        """Return the draft of the next step, within the timeout from `send` on.

        A Drop says why there are none in this step; None, that there will never be any.
        """
        timeout = self.seconds_left
        most = tree_nodes(limits)
        try:
            tree = self._remote.draft(self._text, limits, timeout=timeout)
            if tree is None:
                return None
            try:
                chain_nodes = limits.max_nodes if limits.is_chain else None
                packed, scores, origins = self._native.adopt(
                    tree.nodes, most, tree.vocabulary_size, chain_nodes, limits.costs, limits.min_score
                )
            except ValueError as error:
                expected = f"at most {most} nodes of a vocabulary of {tree.vocabulary_size}"
                raise ProtocolError(describe("session", "tree", str(error), expected)) from None
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            why = "tokenizer" if isinstance(error, TokenizerMismatchError) else "error"
            return Drop(self._places[0], why, error_text(error))
        if self._settings.learn and tree.calibration_weights:
            self._settings.calibration.native.weights = tree.calibration_weights
        if len(tree.nodes) == NODE_BYTES * len(origins):  # else there it is a tree of which we use one path
            self._rows = 1 + len(origins)
        return Drafted(packed, scores, origins.translate(self._origins_of(tree.datastores)))

    @property
    def seconds_left(self) -> float | None:
        """What is left of the timeout of the step that was sent last; None without a timeout."""
        return None if self._ends is None else max(0.0, self._ends - monotonic())

    def accept(
        self,
        tokens: npt.NDArray[np.int32],
        top_k: TopK | None,
        node_top_k: TopK | None,
    ) -> None:
        """Tell the session elsewhere, with its next step, what `DraftSession.accept` was told."""
        is_known = node_top_k is not None and len(node_top_k) == self._rows  # there, the tree that the rows are of
        self._remote.accept(tokens, top_k, node_top_k if is_known else None)
        self._rows = 1

    def close(self) -> None:
        """End the session elsewhere."""
        self._remote.close(self._text)

    def _text(self) -> tuple[npt.NDArray[np.int32], int]:
        """Return the text so far, and how many of its last tokens the model has written."""
        length = int(self._native.length())
        return np.frombuffer(self._native.tail(length), np.int32), length - self._prompt_length

    def _origins_of(self, datastores: int) -> bytes:
        """Return, for each mask of the remote sources, the mask of ours: they are datastores, then the others."""
        if datastores not in self._origins:
            of_bits = [self._places[0]] * datastores + [place for place in self._places[1:] if place is not None]
            masks = []
            for mask in range(1 << _ORIGINS):
                ours = 0
                for bit, place in enumerate(of_bits):
                    ours |= (mask >> bit & 1) << place
                masks.append(ours)
            self._origins[datastores] = bytes(masks)
        return self._origins[datastores]


def tree_nodes(limits: DraftLimits) -> int:
    """Return most nodes of the tree to ask for: of one that a chain is cut out of, where no chains are drafted."""
    return min(2 * limits.max_nodes, MAX_NODES) if limits.is_chain else limits.max_nodes


def remote_drafting(
    native: NativeSession,
    sources: Sequence[object],
    settings: SessionSettings,
    prompt_length: int,
    timeout: float | None,
) -> RemoteDrafting | None:
    """Return what hands the steps of a session over to the only one of its `sources` with counts; None if it cannot.

    Args:
        native: the kernel's side of the session.
        sources: of the session; those without counts are added to `settings`.
        settings: of the session.
        prompt_length: tokens of the prompt.
        timeout: seconds that a step waits; None: as long as the source does.
    """
    lookup = recycled = None
    for place, source in enumerate(sources):
        if isinstance(source, PromptLookup):
            lookup, settings = place, replace(settings, prompt_lookup=True)
        elif isinstance(source, RecycledLogits):
            recycled, settings = place, replace(settings, recycled_logits=source.key)
    for place, source in enumerate(sources):
        if isinstance(source, SessionSource) and (remote := source.session(settings)) is not None:
            return RemoteDrafting(native, source, remote, settings, (place, lookup, recycled), prompt_length, timeout)
    return None
