"""Lines of an engine's log about requests that have ended."""

from __future__ import annotations

import re
from pathlib import Path

from tests.shared.live import until

_LINE = (
    r"\S*: (?P<tokens>\d+) tokens? in (?P<steps>\d+) steps?; "
    r"(?P<drafted>\d+) draft tokens?, (?P<accepted>\d+) accepted"
    r"(; accepted_prediction_tokens (?P<right>\d+); rejected_prediction_tokens (?P<wrong>\d+))?"
)


def figures_of(log: Path, id: str) -> dict[str, int]:
    """Return the figures of a request's line, once it is there."""
    pattern = re.compile(f"rest-store: request {re.escape(id)}{_LINE}")
    until(lambda: pattern.search(log.read_text()) is not None)
    line = pattern.search(log.read_text())
    assert line is not None
    return {name: int(figure) for name, figure in line.groupdict().items() if figure}
