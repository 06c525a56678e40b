"""What a drafter inside an engine has done so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from rest_store.drafting.remembering import RememberCounts
from rest_store.errors import error_text

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
        unplaced: steps whose logits were not recycled, because it is unknown which rows they belong to.
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
    """The running counts of a drafter. One thread writes at a time.

    Attributes:
        labels: names of the sources, by their place in sessions.
        most: the most draft tokens of a row.
        calls: as in `Figures`; so are the other counts.
        documents: the outcome of documents that were queued and are not counted yet.
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
        self._drafted, self._accepted = [0] * self.most, [0] * self.most
        self._drafted_by: Counter[int] = Counter()  # by bitmask of sources
        self._accepted_by: Counter[int] = Counter()
        self._reasons: set[str] = set()

    def add_draft(self, origins: Sequence[int], accepted: int) -> None:
        """Count the verified draft tokens of a row.

        Args:
            origins: of each, the sources that proposed it, as a bitmask.
            accepted: how many of them, the first ones, the model also produced.
        """
        for place, origin in enumerate(origins):
            self._drafted[place] += 1
            self._drafted_by[origin] += 1
        for place, origin in enumerate(origins[:accepted]):
            self._accepted[place] += 1
            self._accepted_by[origin] += 1

    def add_error(self, where: str, error: BaseException | str) -> str | None:
        """Count an error; return its text if it is to be logged: one that is new, of the first few."""
        self.errors[where] = self.errors.get(where, 0) + 1
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
            drafted=tuple(self._drafted),
            accepted=tuple(self._accepted),
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

    def _by_source(self, by_origins: Counter[int]) -> dict[str, int]:
        return {
            label: sum(count for origins, count in by_origins.items() if origins >> place & 1)
            for place, label in enumerate(self.labels)
        }

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
