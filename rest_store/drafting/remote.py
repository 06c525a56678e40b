"""Remote sessions: a service that is the only source with counts of a draft session runs the session itself.

The local session keeps the text, and what it needs to draft from the prompt and the model's logits while the remote one
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
MOST_RECENT = 16  # numbers of `recent`, what recent steps have taught a session: at present 3, and 1 per datastore
_ORIGINS = 8  # bits


@dataclass(frozen=True)
class SessionSettings:
    """The settings of a `DraftSession` for another process to run.

    Attributes:
        calibration: turns evidence into acceptance probabilities, and learns what the session learns.
        learn: whether it learns.
        max_suffix: longest suffix of the context that datastores are asked for, in tokens.
        tokenizer: of the session; None: that of the datastores.
        prompt_top_k: [n, k], the model's most likely tokens after each of the last n tokens of the prompt; -1: unknown.
            None: nothing is known.
        prompt_lookup: whether the text is a source.
        recycled_logits: key under which sessions share recycled logits; None: these are no source.
    """

    calibration: Calibration
    learn: bool
    max_suffix: int
    tokenizer: TokenizerIdentity | None
    prompt_top_k: TopK | None
    prompt_lookup: bool = False
    recycled_logits: bytes | None = None


class RemoteTree(NamedTuple):
    """A tree that a remote session drafted.

    Attributes:
        nodes: as in the message DraftSessionResponse of `proto/rest_store/v1/datastore.proto`, not verified.
        vocabulary_size: greater than all its tokens.
        datastores: number of datastores that the session drafts from.
        calibration_weights: as `Calibration` takes them; empty: unknown.
    """

    nodes: bytes
    vocabulary_size: int
    datastores: int
    calibration_weights: list[float]


class RemoteSession(Protocol):
    """A session in another process. It may be lost at any time, and is then opened again with the text."""

    def open(self, text: Callable[[], tuple[npt.NDArray[np.int32], int]]) -> None:
        """Open it ahead of the first step, if that needs no waiting. If this fails, the first step opens it.

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
        """Return the tree of the next step; None if the session cannot be run there, now or later.

        A request for a chain may be answered with a tree of at most `tree_nodes(limits)` nodes, with the most probable
        path first.

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

        The timeout of that step then begins now.

        Returns:
            Whether it was sent. If not, `draft` sends it, and raises an error if it still cannot be sent.
        """

    def share(self) -> None:
        """Prepare to be drafted together with other sessions of the same source, in common messages."""

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
        """End the session; may be called again. Called at the end of the text, also if `draft` has returned None.

        Args:
            text: as in `draft`, for the output to remember.
        """


@runtime_checkable
class SessionSource(Source, Protocol):
    """A source that can run whole sessions in the process that has its datastores."""

    def session(self, settings: SessionSettings) -> RemoteSession | None:
        """Return a remote session; None if this source runs none."""


class RemoteDrafting:
    """Drafts the steps of a session with `remote`, and hands its trees to the local kernel session.

    Args:
        native: the local kernel session.
        source: the source that runs the remote session.
        remote: the remote session.
        settings: of the remote session.
        places: of that source, of prompt lookup and of recycled logits among the session's sources.
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
        self._rows = 1  # of `node_top_k` for the remote tree drafted last: the text's and each node's; 0: unknown

    def open(self) -> None:
        """Open the remote session, so that it is ready when the target model has read the prompt."""
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
        """Return the draft of the next step, within the timeout since `send`.

        A Drop says why this step has none; None means that the remote session cannot be run at all.
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
        if len(tree.nodes) == NODE_BYTES * len(origins):  # else it has a tree, of which one path is used
            self._rows = 1 + len(origins)
        return Drafted(packed, scores, origins.translate(self._origins_of(tree.datastores)))

    @property
    def seconds_left(self) -> float | None:
        """Seconds left of the timeout of the last step sent; None without a timeout."""
        return None if self._ends is None else max(0.0, self._ends - monotonic())

    def accept(
        self,
        tokens: npt.NDArray[np.int32],
        top_k: TopK | None,
        node_top_k: TopK | None,
    ) -> None:
        """Pass the arguments of `DraftSession.accept` on with the next step of the remote session."""
        is_known = node_top_k is not None and len(node_top_k) == self._rows  # it has the tree of these rows
        self._remote.accept(tokens, top_k, node_top_k if is_known else None)
        self._rows = 1

    def close(self) -> None:
        """End the remote session."""
        self._remote.close(self._text)

    def _text(self) -> tuple[npt.NDArray[np.int32], int]:
        """Return the text so far, and how many of its last tokens the model has written."""
        length = int(self._native.length())
        return np.frombuffer(self._native.tail(length), np.int32), length - self._prompt_length

    def _origins_of(self, datastores: int) -> bytes:
        """Return the local mask of sources for each remote one, where datastores come before other sources."""
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
    """Return the most nodes to ask for; for a chain twice as many, as an old service answers with a tree."""
    return min(2 * limits.max_nodes, MAX_NODES) if limits.is_chain else limits.max_nodes


def remote_drafting(
    native: NativeSession,
    sources: Sequence[object],
    settings: SessionSettings,
    prompt_length: int,
    timeout: float | None,
) -> RemoteDrafting | None:
    """Return the remote drafting of a session whose only source with counts can run it; None if that cannot.

    Args:
        native: the local kernel session.
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
