"""The work of a drafter inside an engine: totals, lines of a log, and Prometheus counters."""

from __future__ import annotations

import functools
import logging
import time
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, TypeAlias

from rest_store.datastore.render import counted
from rest_store.drafting.remembering import RememberCounts
from rest_store.engines.request import Acceptance
from rest_store.errors import error_text

COUNTERS = {  # name: (label, description)
    "draft_tokens": ("", "Draft tokens verified."),
    "accepted_tokens": ("", "Draft tokens accepted."),
    "source_draft_tokens": ("source", "Draft tokens verified that a source proposed."),
    "source_accepted_tokens": ("source", "Draft tokens accepted that a source proposed."),
    "accepted_prediction_tokens": ("", "Accepted draft tokens from predictions of requests."),
    "rejected_prediction_tokens": ("", "Rejected draft tokens from predictions of requests."),
    "errors": ("where", "Errors, each answered with fewer drafts or none."),
    "steps": ("", "Steps of the engine that asked for drafts."),
    "seconds": ("", "Seconds that drafting took."),
    "remembered_documents": ("", "Outputs added to the live datastore."),
    "dropped_documents": ("", "Outputs that could not be added."),
}
_MAX_REASONS = 16  # errors that are logged
_MAX_REASONS_OF_KIND = 4  # so that one kind leaves room for others
_MAX_REASON_LENGTH = 200  # characters

# By name and label; the label is "" where a counter has none.
Totals: TypeAlias = Counter[tuple[str, str]]


class EngineMetrics:
    """Counts the work, and publishes the counters from time to time. Not thread-safe.

    Where engine and server are two processes, the server sees the counters only in the multiprocess
    mode of prometheus_client: the environment variable `PROMETHEUS_MULTIPROC_DIR` names an empty
    directory for both.

    Args:
        sources: names of the sources, by their index in sessions.
        log: gets lines, and a warning for each kind of error.
        interval: seconds between lines.
        labels: labels of the Prometheus metrics, such as the number of the engine. All metrics of a
            process have the same names of labels. None: nothing is exported.
        clock: returns the time in seconds.
        log_requests: whether each request that ends gets a line; if not, those with a prediction.

    Attributes:
        documents: counts of queued documents whose outcome is not counted yet.
    """

    def __init__(
        self,
        sources: Sequence[str],
        log: logging.Logger,
        interval: float = 10.0,
        labels: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        log_requests: bool = False,
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
        self._log_requests = log_requests
        self._reasons: dict[str, str] = {}  # that were logged, with the place of each
        self._logged_at = clock()
        self._logged: Totals = Counter()
        self._exported: Totals = Counter()

    def count(self, name: str, amount: float = 1, label: str = "") -> None:
        """Add to a counter of `COUNTERS`."""
        self._counts[name, label] += amount  # type: ignore[assignment]  # seconds are a fraction

    def count_draft(self, origins: Sequence[int], accepted: Container[int]) -> None:
        """Count the verified draft tokens of a request.

        Args:
            origins: for each draft token, the sources that proposed it, as a bitmask.
            accepted: indices of the draft tokens that the model also produced.
        """
        for index, sources in enumerate(origins):
            self._verified[sources, index in accepted] += 1

    def count_error(self, where: str, error: BaseException | str) -> None:
        """Count an error, and log it if it is new and one of the first few.

        Args:
            where: a word for the place of the error.
            error: the error, or its text.
        """
        self.count("errors", label=where)
        text = error if isinstance(error, str) else error_text(error)
        reason = " ".join(text[:_MAX_REASON_LENGTH].split())  # on one line
        same_kind = list(self._reasons.values()).count(where)
        has_room = same_kind < _MAX_REASONS_OF_KIND and len(self._reasons) < _MAX_REASONS
        if reason not in self._reasons and has_room:
            self._reasons[reason] = where
            self._log.warning("rest-store: no drafts (%s): %s; said once", where, reason)

    def end_request(self, id: str, acceptance: Acceptance) -> None:
        """Count the tokens of a prediction, and log the line of a request that has ended."""
        prediction = acceptance.prediction
        if prediction is not None:
            self.count("accepted_prediction_tokens", prediction.accepted_tokens)
            self.count("rejected_prediction_tokens", prediction.rejected_tokens)
        if prediction is not None or self._log_requests:
            self._log.info("rest-store: request %s: %s", id, request_line(acceptance))

    def totals(self) -> Totals:
        """Return all counters."""
        self._count_decided_documents()
        totals = self._counts.copy()
        for (sources, is_accepted), count in self._verified.items():
            names = self._names_of(sources)
            totals["draft_tokens", ""] += count
            for name in names:
                totals["source_draft_tokens", name] += count
            if is_accepted:
                totals["accepted_tokens", ""] += count
                for name in names:
                    totals["source_accepted_tokens", name] += count
        return totals

    def _names_of(self, sources: int) -> list[str]:
        """Return the names of the sources of a bitmask."""
        names = []
        for index, name in enumerate(self._sources):
            if (sources >> index) & 1:
                names.append(name)
        return names

    def _count_decided_documents(self) -> None:
        """Count the queued documents that were added or dropped meanwhile."""
        undecided = []
        for counts in self.documents:
            if counts.is_decided:
                self._counts["remembered_documents", ""] += counts.added
                self._counts["dropped_documents", ""] += counts.dropped
            else:
                undecided.append(counts)
        self.documents = undecided

    def publish(self, sessions: int) -> None:
        """Export the counters, and log a line if it is time and there were steps.

        Args:
            sessions: open now.
        """
        totals = self.totals()
        if self._labels is not None:
            self._export(totals, sessions, self._labels)
        now = self._clock()
        if now - self._logged_at < self._interval:
            return
        new = totals - self._logged
        if new["steps", ""]:
            self._log.info("rest-store: %s", summary_line(new, sessions))
        self._logged_at = now
        self._logged = totals

    def _export(self, totals: Totals, sessions: int, labels: Mapping[str, str]) -> None:
        """Add the counts since the last export to the Prometheus counters, and set the gauge."""
        counters, gauge = _metrics(tuple(labels))
        for (name, label), amount in (totals - self._exported).items():
            all_labels = dict(labels)
            if label:
                all_labels[COUNTERS[name][0]] = label
            counters[name].labels(**all_labels).inc(amount)
        gauge.labels(**labels).set(sessions)
        self._exported = totals


def summary_line(totals: Totals, sessions: int) -> str:
    """Return a line about the counters of a period, and about the sessions that are open."""
    drafted = totals["draft_tokens", ""]
    accepted = totals["accepted_tokens", ""]
    phrases = [f"{counted(drafted, 'draft token')}, {accepted} accepted"]
    by_source = _by_label(totals, "source_accepted_tokens")
    if by_source:
        phrases.append(f"by source: {by_source}")
    phrases.append(counted(sessions, "session"))
    milliseconds = 1e3 * totals["seconds", ""] / max(1, totals["steps", ""])
    phrases.append(f"{milliseconds:.2f} ms a step")
    remembered = totals["remembered_documents", ""]
    if remembered:
        phrases.append(f"{counted(remembered, 'output')} remembered")
    errors = _by_label(totals, "errors")
    if errors:
        phrases.append(f"errors: {errors}")
    return "; ".join(phrases)


def request_line(acceptance: Acceptance) -> str:
    """Return a line about the drafts of one request."""
    tokens = counted(acceptance.tokens, "token")
    drafted = counted(acceptance.draft_tokens, "draft token")
    phrases = [
        f"{tokens} in {counted(acceptance.steps, 'step')}",
        f"{drafted}, {acceptance.accepted_tokens} accepted",
    ]
    prediction = acceptance.prediction
    if prediction is not None:
        phrases.append(f"accepted_prediction_tokens {prediction.accepted_tokens}")
        phrases.append(f"rejected_prediction_tokens {prediction.rejected_tokens}")
    return "; ".join(phrases)


def _by_label(totals: Totals, name: str) -> str:
    """Return one counter's totals by label, as text."""
    texts = []
    for (counter, label), total in sorted(totals.items()):
        if counter == name:
            texts.append(f"{label} {total}")
    return ", ".join(texts)


@functools.cache
def _metrics(labels: tuple[str, ...]) -> tuple[dict[str, Any], Any]:
    """Return the counters by name, and the gauge of sessions; a process can register them once."""
    from prometheus_client import Counter, Gauge

    prefix = "rest_store_engine_"
    counters = {}
    for name, (label, description) in COUNTERS.items():
        all_labels = [*labels, label] if label else list(labels)
        counters[name] = Counter(prefix + name, description, all_labels)
    sessions = Gauge(
        prefix + "sessions", "Sessions open now.", labels, multiprocess_mode="mostrecent"
    )
    return counters, sessions
