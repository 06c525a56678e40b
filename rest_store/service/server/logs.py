"""The log of a service: one line for each event on standard error, as text or as JSON."""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime, timezone
from typing import TextIO


class EventLog:
    """Writes events. Thread-safe: each event is one write.

    Args:
        as_json: one JSON object a line; otherwise text.
        file: destination; None: standard error.
    """

    def __init__(self, as_json: bool = False, file: TextIO | None = None) -> None:
        self._as_json = as_json
        self._file = file

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
        except OSError:  # the reader has gone, which is no reason to stop serving
            pass

    def take_over(self) -> None:
        """Write as events what other packages log at level WARNING and above."""
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
        self._log(record.levelname.lower(), **fields)


def _shown(value: object) -> str:
    text = str(value)
    return text if text and not any(character.isspace() or character == '"' for character in text) else json.dumps(text)
