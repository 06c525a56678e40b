"""A draft session that its only source with counts, a service, runs elsewhere.

The session here keeps the text, and what it needs to draft from the prompt and the model's logits while the other one
is away.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rest_store.drafting.external_sources import Drop
from rest_store.drafting.sources import RemoteSession, SessionSettings
from rest_store.errors import ProtocolError, TokenizerMismatchError, describe, error_text

_ORIGINS = 8  # bits


class Drafted(NamedTuple):
    """A tree as the kernel packs it; see `TokenTree.from_packed`."""

    packed: bytes
    scores: bytes
    origins: bytes


class RemoteDrafting:
    """Hands a session's steps over to `remote`, and its trees to the kernel.

    Args:
        native: the kernel's side of the session here.
        remote: the session elsewhere.
        settings: that it was made with.
        places: of the source that runs it, of prompt lookup and of recycled logits, among the session's sources.
        text: returns the text so far, int32[n], and how many of its last tokens the model has written.
        timeout: seconds that a step waits; None: as long as `remote` does.
    """

    def __init__(
        self,
        native: Any,
        remote: RemoteSession,
        settings: SessionSettings,
        places: tuple[int, int | None, int | None],
        *,
        text: Callable[[], tuple[npt.NDArray[np.int32], int]],
        timeout: float | None,
    ) -> None:
        self._native = native
        self._remote = remote
        self._settings = settings
        self._places = places
        self._text = text
        self._timeout = timeout
        self._origins: dict[int, bytes] = {}  # by number of datastores: for each mask of origins, ours
        self._drafted = False  # whether the tree drafted last is the remote one

    def draft(self, max_nodes: int, costs: npt.NDArray[np.float64]) -> Drafted | Drop | None:
        """Return the tree of the next step.

        A Drop says why there are none in this step; None, that there will never be any.
        """
        self._drafted = False
        try:
            tree = self._remote.draft(self._text, max_nodes, costs if costs.size else None, timeout=self._timeout)
            if tree is None:
                return None
            try:
                packed, scores, _ = self._native.adopt(tree.nodes, max_nodes, tree.vocabulary_size)
            except ValueError as error:
                expected = f"at most {max_nodes} nodes of a vocabulary of {tree.vocabulary_size}"
                raise ProtocolError(describe("session", "tree", str(error), expected)) from None
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            why = "tokenizer" if isinstance(error, TokenizerMismatchError) else "error"
            return Drop(self._places[0], why, error_text(error))
        if self._settings.learn and tree.calibration_weights:
            self._settings.calibration.native.weights = tree.calibration_weights
        self._drafted = True
        origins = tree.nodes[len(tree.nodes) - len(scores) // 4 :]
        return Drafted(packed, scores, origins.translate(self._origins_of(tree.datastores)))

    def accept(
        self,
        tokens: npt.NDArray[np.int32],
        top_k: npt.NDArray[np.int32] | None,
        node_top_k: npt.NDArray[np.int32] | None,
    ) -> None:
        """Tell the session elsewhere, with its next step, what `DraftSession.accept` was told."""
        self._remote.accept(tokens, top_k, node_top_k if self._drafted else None)
        self._drafted = False

    def close(self) -> None:
        """End the session elsewhere."""
        self._remote.close()

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
