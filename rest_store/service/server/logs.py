"""The log of a service: one line for each event on standard error, as text or as JSON."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from time import monotonic
from typing import TextIO

LIMIT = 10  # lines of one kind in _WINDOW_SECONDS
_WINDOW_SECONDS = 60.0


@dataclass
class _Window:
    end: float  # on the log's clock
    count: int = 0


class EventLog:
    """Writes events. Thread-safe: each event is one write.

    Args:
        as_json: one JSON object a line; otherwise text.
        file: destination; None: standard error.
        clock: returns seconds.
    """

    def __init__(
        self, as_json: bool = False, file: TextIO | None = None, clock: Callable[[], float] = monotonic
    ) -> None:
        self._as_json = as_json
        self._file = file
        self._clock = clock
        self._windows: dict[tuple[object, ...], _Window] = {}
        self._lock = threading.Lock()

    def __call__(self, event: str, **fields: object) -> None:
        """Write one event with its fields, which must be JSON values."""
        time = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        if self._as_json:
            line = json.dumps({"time": time, "event": event, **fields}, ensure_ascii=False, default=str)
        else:
            line = " ".join([time, event, *(f"{name}={_shown(value)}" for name, value in fields.items())])
        try:
            file = self._file or sys.stderr
            file.write(line + "\n")
            file.flush()
        except OSError:  # nobody reads the log any more, which is no reason to stop serving
            pass

    def limited(self, event: str, *kind: object, **fields: object) -> None:
        """Write an event that peers can cause as often as they like: at most ten of a kind in a minute.

        `summarize` writes how many more there were.

        Args:
            event: name of the event.
            kind: with the name, tells kinds of events apart; must not be chosen by peers.
            fields: of the event.
        """
        self.summarize()
        with self._lock:
            window = self._windows.setdefault((event, *kind), _Window(self._clock() + _WINDOW_SECONDS))
            window.count += 1
            if window.count > LIMIT:
                return
        self(event, **fields)

    def summarize(self, *, now: bool = False) -> None:
        """Write how many events were left out, for each kind whose minute is over; with `now`, for all."""
        time = self._clock()
        with self._lock:
            over = [kind for kind, window in self._windows.items() if now or window.end <= time]
            left_out = {kind: self._windows.pop(kind).count - LIMIT for kind in over}
        for (event, *kind), count in left_out.items():
            if count > 0:
                self("left_out", of=event, kind=" ".join(map(str, kind)), count=count)

    def take_over(self) -> None:
        """Write what other packages log at level WARNING and above as `limited` events."""
        root = logging.getLogger()
        root.handlers = [_Handler(self)]
        root.setLevel(logging.WARNING)


class _Handler(logging.Handler):
    def __init__(self, log: EventLog) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, object] = {"logger": record.name, "message": record.getMessage()}
        if record.exc_info:
            fields["traceback"] = logging.Formatter().formatException(record.exc_info)
        self._log.limited(record.levelname.lower(), record.name, record.lineno, **fields)


def _shown(value: object) -> str:
    text = str(value)
    plain = text.isprintable() and not any(character in ' "' for character in text)
    return text if text and plain else json.dumps(text)
