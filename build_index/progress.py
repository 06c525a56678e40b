"""The progress of a build: what a listener receives, and bars that show it on a terminal."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TextIO

from build_index.size import size_text

_BAR = 28


@dataclass(frozen=True)
class StageProgress:
    """The progress of one stage.

    Attributes:
        stage: `"loading"`, which comes first and alone; then `"tokenizing"`, which includes reading, `"sorting"` and
            `"writing"`.
        done: so far, in `unit`.
        total: at the end, in `unit`; None: unknown. An estimate for sorting and writing until everything is tokenized.
        unit: `"tokenizer"`, `"bytes"` of the corpora, or `"tokens"`.
        seconds: time spent on it.
    """

    stage: str
    done: int
    total: int | None
    unit: str
    seconds: float

    @property
    def share(self) -> float | None:
        """The share that is done, 0..1, or None if the total is unknown."""
        return None if not self.total else min(1.0, self.done / self.total)

    @property
    def rate(self) -> float:
        """Units a second."""
        return self.done / self.seconds if self.seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """Time that the rest takes at this rate, or None if it is unknown."""
        return max(0.0, (self.total - self.done) / self.rate) if self.total and self.rate else None


class ProgressListener(Protocol):
    """A function that is called with the progress of a build."""

    def __call__(self, stages: Sequence[StageProgress], /) -> None:
        """Receive the progress of all stages, in order; called a few times a second and once at the end."""


class TerminalBars:
    """A ProgressListener that draws a line with a bar for each stage, over the lines drawn before. Not thread-safe.

    Args:
        file: the terminal.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._drawn: list[str] = []  # stages of the lines that are drawn over

    @staticmethod
    def fits(file: TextIO) -> bool:
        """Whether the file is a terminal on which lines can be drawn again."""
        return file.isatty() and os.environ.get("TERM", "dumb") != "dumb"

    def __call__(self, stages: Sequence[StageProgress], /) -> None:
        """Draw the stages."""
        names = [stage.stage for stage in stages]
        up = f"\x1b[{len(names)}A" if names == self._drawn else ""
        width = shutil.get_terminal_size().columns - 1
        self._file.write(up + "".join(f"\r\x1b[2K{line_of(stage)[:width]}\n" for stage in stages))
        self._file.flush()
        self._drawn = names


def line_of(stage: StageProgress) -> str:
    """Return the line that shows a stage: bar, share, amount, rate and time left; of loading the seconds."""
    if stage.unit == "tokenizer":
        return "loading tokenizer ..." + (f" {stage.seconds:.1f} s" if stage.done else "")
    filled = int((stage.share or 0) * _BAR)
    share = "    " if stage.share is None else f"{int(100 * stage.share):3}%"
    left = "" if stage.seconds_left is None or stage.share == 1 else f"  {clock(stage.seconds_left)} left"
    rate = f"  {amount(stage.rate, stage.unit)}/s" if stage.rate else ""
    bar = "#" * filled + "-" * (_BAR - filled)
    return f"{stage.stage:<10} [{bar}] {share}  {amount(stage.done, stage.unit)}{rate}{left}"


def amount(number: float, unit: str) -> str:
    """Return a number of bytes or tokens for people."""
    if unit == "bytes":
        return size_text(number)
    for divisor, letter in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if number >= divisor:
            return f"{number / divisor:.1f}{letter} {unit}"
    return f"{number:.0f} {unit}"


def clock(seconds: float) -> str:
    """Return a time as hours, minutes and seconds: `"1:02:03"`, or `"2:03"`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
