"""What a drafter inside an engine has done so far: as totals, lines
of a log, and Prometheus counters.
"""

from __future__ import annotations

import functools
import logging
import time
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

from rest_store.datastore.render import counted
from rest_store.drafting.remembering import RememberCounts
from rest_store.errors import error_text

COUNTERS = {  # name: (label, what is counted)
    "draft_tokens": ("", "Draft tokens verified."),
    "accepted_tokens": ("", "Draft tokens accepted."),
    "source_draft_tokens": ("source", "Draft tokens verified that a source proposed."),
    "source_accepted_tokens": ("source", "Draft tokens accepted that a source proposed."),
    "errors": ("where", "Errors, each answered with fewer drafts or none."),
    "steps": ("", "Steps of the engine that asked for drafts."),
    "seconds": ("", "Seconds that drafting took."),
    "remembered_documents": ("", "Outputs added to the live datastore."),
    "dropped_documents": ("", "Outputs that could not be added."),
}
_MAX_REASONS, _MAX_REASON_LENGTH = 16, 200

Totals = Counter[tuple[str, str]]  # by name and label; the label is "" where a counter has none


class EngineMetrics:
    """Counts, and tells others from time to time. One thread at a time.

    Where engine and server are two processes, the server sees the counters only in the multiprocess
    mode of prometheus_client: the environment variable `PROMETHEUS_MULTIPROC_DIR` names an empty
    directory for both.

    Args:
        sources: names of the sources, by their index in sessions.
        log: gets lines, and a warning for each kind of error.
        interval: seconds between lines.
        labels: labels of the Prometheus metrics, such as the number of the engine; the names of
            labels are the same in all of a process. None: nothing is exported.
        clock: seconds that pass.

    Attributes:
        documents: the outcome of documents that were queued and are not counted yet.
    """

    def __init__(
        self,
        sources: Sequence[str],
        log: logging.Logger,
        interval: float = 10.0,
        labels: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.documents: list[RememberCounts] = []
        self._sources = sources
        self._log = log
        self._interval = interval
        self._labels = labels
        self._clock = clock
        self._counts: Totals = Counter()
        # Sources as a bitmask, whether accepted.
        self._verified: Counter[tuple[int, bool]] = Counter()
        self._reasons: set[str] = set()
        self._logged_at, self._logged = clock(), self.totals()
        self._exported = self.totals()

    def count(self, name: str, amount: float = 1, label: str = "") -> None:
        """Add to a counter of `COUNTERS`."""
        self._counts[name, label] += amount  # type: ignore[assignment]  # seconds are a fraction

    def count_draft(self, origins: Sequence[int], accepted: Container[int]) -> None:
        """Count the verified draft tokens of a request.

        Args:
            origins: of each, the sources that proposed it, as a bitmask.
            accepted: which of them the model also produced, by their index.
        """
        self._verified.update((sources, i in accepted) for i, sources in enumerate(origins))

    def count_error(self, where: str, error: BaseException | str) -> None:
        """Count an error, and log it if it is new, and one of the first few.

        Args:
            where: a word for what failed.
            error: why.
        """
        self.count("errors", label=where)
        reason = " ".join(
            (error if isinstance(error, str) else error_text(error))[:_MAX_REASON_LENGTH].split()
        )
        if reason not in self._reasons and len(self._reasons) < _MAX_REASONS:
            self._reasons.add(reason)
            self._log.warning("rest-store: no drafts (%s): %s; said once", where, reason)

    def totals(self) -> Totals:
        """Return all counters."""
        for counts in filter(lambda counts: counts.is_decided, self.documents):
            self._counts["remembered_documents", ""] += counts.added
            self._counts["dropped_documents", ""] += counts.dropped
        self.documents = [counts for counts in self.documents if not counts.is_decided]
        totals = self._counts.copy()
        for (sources, is_accepted), count in self._verified.items():
            for kind in ("draft", "accepted") if is_accepted else ("draft",):
                totals[f"{kind}_tokens", ""] += count
                for i, source in enumerate(self._sources):
                    totals[f"source_{kind}_tokens", source] += count * (sources >> i & 1)
        return totals

    def publish(self, sessions: int) -> None:
        """Export the counters, and write a line if it is time and something has happened.

        Args:
            sessions: open now.
        """
        totals = self.totals()
        if self._labels is not None:
            counters, gauge = _metrics(tuple(self._labels))
            for (name, label), amount in (totals - self._exported).items():
                own = {COUNTERS[name][0]: label} if label else {}
                counters[name].labels(**self._labels, **own).inc(amount)
            gauge.labels(**self._labels).set(sessions)
            self._exported = totals
        if self._clock() - self._logged_at >= self._interval:
            new = totals - self._logged
            if new["steps", ""]:
                self._log.info("rest-store: %s", line(new, sessions))
            self._logged_at, self._logged = self._clock(), totals


def line(totals: Totals, sessions: int) -> str:
    """Return a line about what was counted in some time, and the sessions that are open."""

    def by_label(name: str) -> str:
        return ", ".join(
            f"{label} {total}"
            for (counter, label), total in sorted(totals.items())
            if counter == name
        )

    drafted, accepted = totals["draft_tokens", ""], totals["accepted_tokens", ""]
    parts = [f"{counted(drafted, 'draft token')}, {accepted} accepted"]
    if sources := by_label("source_accepted_tokens"):
        parts.append(f"by source: {sources}")
    milliseconds = 1e3 * totals["seconds", ""] / max(1, totals["steps", ""])
    parts += [counted(sessions, "session"), f"{milliseconds:.2f} ms a step"]
    if remembered := totals["remembered_documents", ""]:
        parts.append(f"{counted(remembered, 'output')} remembered")
    if errors := by_label("errors"):
        parts.append(f"errors: {errors}")
    return "; ".join(parts)


@functools.cache
def _metrics(labels: tuple[str, ...]) -> tuple[dict[str, Any], Any]:
    """Return the counters by name, and the gauge of sessions; a process can register them once."""
    from prometheus_client import Counter, Gauge

    prefix = "rest_store_engine_"
    counters = {
        name: Counter(prefix + name, text, [*labels, *([label] if label else [])])
        for name, (label, text) in COUNTERS.items()
    }
    return counters, Gauge(
        prefix + "sessions", "Sessions open now.", labels, multiprocess_mode="mostrecent"
    )
