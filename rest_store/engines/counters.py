"""What a drafter inside an engine has done so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from rest_store.drafting.remembering import RememberCounts
from rest_store.errors import error_text

Counts = npt.NDArray[np.int64]

_ORIGINS = 256  # sets of sources: bitmasks of uint8
_MAX_REASONS, _MAX_REASON_LENGTH = 16, 200


@dataclass(frozen=True)
class Figures:
    """Totals since the engine started.

    Attributes:
        drafted: draft tokens verified, by their place in a row's draft, from the first on.
        accepted: those that the model also produced.
        drafted_by: draft tokens verified, by source; one that several sources proposed counts for each.
        accepted_by: those that the model also produced.
        calls: of the engine for drafts.
        seconds: that they took altogether.
        sessions: open now, with those of requests that wait.
        opened: sessions opened.
        resumed: sessions found again after their request had no row.
        remembered: documents added.
        not_remembered: documents left out.
        unplaced: steps whose logits were not recycled, because it could not be told which rows they were of.
        errors: what went wrong, by where it did.
    """

    drafted: tuple[int, ...]
    accepted: tuple[int, ...]
    drafted_by: dict[str, int]
    accepted_by: dict[str, int]
    calls: int
    seconds: float
    sessions: int
    opened: int
    resumed: int
    remembered: int
    not_remembered: int
    unplaced: int
    errors: dict[str, int]

    def totals(self) -> dict[tuple[str, str], float]:
        """Return each counter by its name and its label, which is "" where it has none; `sessions` is no counter."""
        totals: dict[tuple[str, str], float] = {}
        for name in ("calls", "seconds", "opened", "resumed", "remembered", "not_remembered", "unplaced"):
            totals[name, ""] = getattr(self, name)
        for name in ("drafted", "accepted"):
            totals |= {(name, str(place)): count for place, count in enumerate(getattr(self, name))}
        for name in ("drafted_by", "accepted_by", "errors"):
            totals |= {(name, label): count for label, count in getattr(self, name).items()}
        return totals


@dataclass
class Counters:
    """Counts as a drafter goes. One thread writes at a time.

    Attributes:
        labels: of the sources, by their place in sessions.
        most: draft tokens of a row.
        calls: as of `Figures`, like the further ones.
        documents: what becomes of documents that were handed over and are not counted yet.
    """

    labels: Sequence[str]
    most: int
    calls: int = 0
    seconds: float = 0.0
    remembered: int = 0
    not_remembered: int = 0
    unplaced: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    documents: list[RememberCounts] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._drafted: Counts = np.zeros(self.most, np.int64)
        self._accepted: Counts = np.zeros(self.most, np.int64)
        self._drafted_by: Counts = np.zeros(_ORIGINS, np.int64)
        self._accepted_by: Counts = np.zeros(_ORIGINS, np.int64)
        self._reasons: set[str] = set()

    def add_step(
        self, places: npt.NDArray[np.integer[Any]], origins: npt.NDArray[np.uint8], accepted: npt.NDArray[np.bool_]
    ) -> None:
        """Count the draft tokens of one step.

        Args:
            places: int[n], of each draft token in its row's draft.
            origins: uint8[n], the sources that proposed it.
            accepted: bool[n].
        """
        self._drafted += np.bincount(places, minlength=self.most)
        self._accepted += np.bincount(places[accepted], minlength=self.most)
        self._drafted_by += np.bincount(origins, minlength=_ORIGINS)
        self._accepted_by += np.bincount(origins[accepted], minlength=_ORIGINS)

    def add_error(self, where: str, error: BaseException | str, count: int = 1) -> str | None:
        """Count an error; return it as text if it was not said yet and few others were."""
        self.errors[where] = self.errors.get(where, 0) + count
        reason = (error if isinstance(error, str) else error_text(error))[:_MAX_REASON_LENGTH]
        reason = " ".join(reason.split())
        if reason in self._reasons or len(self._reasons) >= _MAX_REASONS:
            return None
        self._reasons.add(reason)
        return reason

    def figures(self, *, sessions: int, opened: int, resumed: int) -> Figures:
        """Return all totals as they are now."""
        self._count_documents()
        return Figures(
            drafted=tuple(self._drafted.tolist()),
            accepted=tuple(self._accepted.tolist()),
            drafted_by=self._by_source(self._drafted_by),
            accepted_by=self._by_source(self._accepted_by),
            calls=self.calls,
            seconds=self.seconds,
            sessions=sessions,
            opened=opened,
            resumed=resumed,
            remembered=self.remembered,
            not_remembered=self.not_remembered,
            unplaced=self.unplaced,
            errors=dict(self.errors),
        )

    def _by_source(self, by_origins: Counts) -> dict[str, int]:
        masks = np.arange(_ORIGINS)
        return {label: int(by_origins[masks >> place & 1 == 1].sum()) for place, label in enumerate(self.labels)}

    def _count_documents(self) -> None:
        """Add up what became of documents; those that still wait are counted later."""
        waiting = []
        for counts in self.documents:
            if counts.added or counts.dropped:
                self.remembered += counts.added
                self.not_remembered += counts.dropped
            else:
                waiting.append(counts)
        self.documents = waiting
