"""The counters of a client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from rest_store.errors import (
    CircuitOpenError,
    DeadlineError,
    OverloadedError,
    ProtocolError,
    RestStoreError,
    ServiceInternalError,
    ServiceUnavailableError,
)
from rest_store.service.client.process_lock import ProcessLock


@dataclass(frozen=True)
class ClientStatistics:
    """What a client has done so far. A call is one request of its user; it may take several attempts.

    Attributes:
        calls: calls made, including steps of streams.
        answers: calls that were answered.
        retries: attempts after the first of a call.
        failovers: attempts made at another endpoint than the one before.
        unavailable: calls that failed because no endpoint could be reached.
        deadlines: calls that failed because no answer came in time.
        not_asked: calls that failed at once because every circuit was open.
        overloaded: calls that the service refused because it had too much to do.
        refused: calls refused for another reason: token, tokenizer, name, size, or the query itself, by the service or
            before anything was sent.
        broken: calls that failed inside the service, or whose answer was not valid.
        circuits_opened: times that a circuit opened, or stayed open after a trial call.
        streams_opened: streams opened: the first of a generation, and those that replace it. A session on a shared
            stream counts as one.
        late_answers: answers of a stream that came after their deadline and were skipped.
        absent_parts: parts of a datastore that were missing from answers, one for each answer and part.
        unproved_trees: draft trees of several parts whose nodes were not proved to be those of the whole datastore's
            tree; their counts are exact.
    """

    calls: int = 0
    answers: int = 0
    retries: int = 0
    failovers: int = 0
    unavailable: int = 0
    deadlines: int = 0
    not_asked: int = 0
    overloaded: int = 0
    refused: int = 0
    broken: int = 0
    circuits_opened: int = 0
    streams_opened: int = 0
    late_answers: int = 0
    absent_parts: int = 0
    unproved_trees: int = 0


_COUNTED_AS: tuple[tuple[type[RestStoreError], str], ...] = (
    (CircuitOpenError, "not_asked"),
    (ServiceUnavailableError, "unavailable"),
    (DeadlineError, "deadlines"),
    (OverloadedError, "overloaded"),
    (ProtocolError, "broken"),
    (ServiceInternalError, "broken"),
    (RestStoreError, "refused"),
)


class ClientCounters:
    """The counters behind `ClientStatistics`. Thread-safe.

    Attributes:
        failures: a context manager that counts a failed call if its block raises one of our errors.
    """

    def __init__(self) -> None:
        self.failures = _Failures(self.failed)
        self._lock = ProcessLock()
        self._counts = {field.name: 0 for field in fields(ClientStatistics)}

    def add(self, *names: str, times: int = 1) -> None:
        """Count one more of each of `names`, or `times` more."""
        with self._lock:
            for name in names:
                self._counts[name] += times

    def failed(self, error: RestStoreError) -> None:
        """Count a call that ended with `error`."""
        self.add("calls", next(name for kind, name in _COUNTED_AS if isinstance(error, kind)))

    def snapshot(self) -> ClientStatistics:
        """Return the counts at this moment."""
        with self._lock:
            return ClientStatistics(**self._counts)


class _Failures:
    """Calls `failed` with the error if its block raises one of ours."""

    def __init__(self, failed: Callable[[RestStoreError], None]) -> None:
        self._failed = failed

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, RestStoreError):
            self._failed(error)
