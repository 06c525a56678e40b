"""Draft sessions over some of the datastores each, whose trees are merged as those of services are."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rest_store.datastore.datastore import Datastore
from rest_store.datastore.tree import TokenTree
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.limits import DraftLimits
from rest_store.drafting.merge import merge_trees
from rest_store.drafting.session import DraftSession

_PART = re.compile(r"(.+):(\d+/\d+)")  # a directory, and which part of its shards


def open_member(text: str) -> list[Datastore]:
    """Open the datastores of a member, as `--member` takes them.

    Args:
        text: directories with commas between them. One of which only a part of the shards is read ends with that part,
            such as `code.ds:1/2`.
    """
    stores = []
    for place in text.split(","):
        match = _PART.fullmatch(place)
        stores.append(Datastore.open(place) if match is None else Datastore.open(match[1], part=match[2]))
    return stores


class MergedSessions:
    """Draft sessions of one text, each with sources of its own; a drafter for `walk`.

    Args:
        members: the sources of each session.
        prompt: the text so far.
        calibration: of all sessions.
    """

    def __init__(
        self, members: Sequence[Sequence[object]], prompt: npt.NDArray[np.int32], calibration: Calibration
    ) -> None:
        self._sessions = [DraftSession(sources, prompt, calibration=calibration, learn=False) for sources in members]

    def draft(self, max_nodes: int) -> TokenTree:
        """Return the sessions' trees of `max_nodes`, merged by path and cut to `max_nodes`."""
        return merge_trees([session.draft(max_nodes) for session in self._sessions], DraftLimits(max_nodes))[0]

    def accept(self, tokens: npt.NDArray[np.int32], top_k: npt.NDArray[np.int32] | None) -> None:
        """Append what the model produced to the text of each session."""
        for session in self._sessions:
            session.accept(tokens, top_k)

    def close(self) -> None:
        """End all sessions."""
        for session in self._sessions:
            session.close()
