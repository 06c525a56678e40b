"""The figures of an engine's drafter as lines of a log and as Prometheus metrics."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from typing import Any

from rest_store.datastore.render import counted
from rest_store.engines.counters import Figures

PREFIX = "rest_store_engine_"
# For each counter of `Figures`: the name of its metric, its label, and what it counts.
COUNTERS = {
    "drafted": ("draft_tokens", "position", "Draft tokens verified, by their place in a row's draft."),
    "accepted": ("accepted_tokens", "position", "Draft tokens accepted, by their place in a row's draft."),
    "drafted_by": ("source_draft_tokens", "source", "Draft tokens verified that a source proposed."),
    "accepted_by": ("source_accepted_tokens", "source", "Draft tokens accepted that a source proposed."),
    "errors": ("errors", "where", "Errors, each answered with fewer drafts or none."),
    "calls": ("steps", "", "Steps of the engine that asked for drafts."),
    "seconds": ("seconds", "", "Seconds that drafting took."),
    "opened": ("opened_sessions", "", "Sessions opened."),
    "resumed": ("resumed_sessions", "", "Sessions found again after their requests had no row."),
    "remembered": ("remembered_documents", "", "Outputs added to the live datastore."),
    "unplaced": ("unplaced_logits", "", "Steps whose logits were not recycled: which rows they were of is unknown."),
    "not_remembered": ("dropped_documents", "", "Outputs that could not be added."),
}


class LogLines:
    """Says in a log what was drafted since the last line, as often as the engine logs its own figures.

    Args:
        log: where to.
        interval: seconds between lines.
        clock: seconds that pass.
    """

    def __init__(self, log: logging.Logger, interval: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._interval = interval
        self._clock = clock
        self._said_at = clock()
        self._said: Figures | None = None

    def __call__(self, figures: Figures) -> None:
        """Write a line if it is time, and something has happened."""
        now = self._clock()
        if now - self._said_at < self._interval:
            return
        self._said_at = now
        if figures.calls != (self._said.calls if self._said is not None else 0):
            self._log.info("rest-store: %s", line(figures, self._said))
        self._said = figures


def line(figures: Figures, before: Figures | None = None) -> str:
    """Return a line about what was done since `before`; None: since the start."""
    old = {} if before is None else before.totals()
    new = {key: total - old.get(key, 0) for key, total in figures.totals().items()}

    def of(name: str) -> dict[str, float]:
        return {label: count for (counter, label), count in new.items() if counter == name}

    drafted, accepted = of("drafted"), of("accepted")
    rates = ", ".join(f"{accepted[place] / count:.2f}" for place, count in drafted.items() if count)
    sources = ", ".join(f"{source} {count}" for source, count in of("accepted_by").items())
    parts = [f"{counted(int(sum(drafted.values())), 'draft token')}, {sum(accepted.values())} accepted"]
    if rates:
        parts += [f"by position {rates}", f"accepted by source: {sources}"]
    parts += [
        counted(figures.sessions, "session"),
        f"{1e3 * new['seconds', ''] / max(1, new['calls', '']):.2f} ms a step",
    ]
    if remembered := new["remembered", ""]:
        parts.append(f"{counted(int(remembered), 'output')} remembered")
    parts += [f"errors: {where} {count}" for where, count in of("errors").items() if count]
    return "; ".join(parts)


class PrometheusCounters:
    """Keeps the counters of the process's Prometheus registry equal to a drafter's figures.

    Where engine and server are two processes, the server sees them only in the multiprocess mode of prometheus_client:
    the environment variable `PROMETHEUS_MULTIPROC_DIR` names an empty directory for both.

    Args:
        labels: labels of all metrics, such as the number of the engine; their names are the same in all of a process.
    """

    def __init__(self, labels: dict[str, str]) -> None:
        self._labels = labels
        self._counters, self._sessions = _metrics(tuple(labels))
        self._counted: dict[tuple[str, str], float] = {}

    def __call__(self, figures: Figures) -> None:
        """Count what is new."""
        for (name, label), total in figures.totals().items():
            counted = self._counted.get((name, label), 0)
            if total > counted or (name, label) not in self._counted:
                own = {COUNTERS[name][1]: label} if label else {}
                self._counters[name].labels(**self._labels, **own).inc(total - counted)
                self._counted[name, label] = total
        self._sessions.labels(**self._labels).set(figures.sessions)


@functools.cache
def _metrics(labels: tuple[str, ...]) -> tuple[dict[str, Any], Any]:
    """Return the metrics, which a process can register once."""
    from prometheus_client import Counter, Gauge

    counters = {
        counter: Counter(PREFIX + name, text, [*labels, *([label] if label else [])])
        for counter, (name, label, text) in COUNTERS.items()
    }
    text = "Sessions open now, with those of requests without a row."
    return counters, Gauge(PREFIX + "sessions", text, labels, multiprocess_mode="mostrecent")
