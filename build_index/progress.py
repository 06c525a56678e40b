"""The progress of a build, for listeners, and a line that shows it on a terminal."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO, TypeAlias

from build_index.size import size_text


@dataclass(frozen=True)
class StageProgress:
    """The progress of one stage.

    Attributes:
        stage: `"tokenizing"`, which includes reading, or `"sorting"`, once all is tokenized.
        done: the amount so far, in `unit`.
        total: the amount at the end, in `unit`; None: unknown.
        unit: `"bytes"` of the corpora, or `"tokens"`.
        seconds: time since the stage began.
    """

    stage: str
    done: int
    total: int | None
    unit: str
    seconds: float


ProgressListener: TypeAlias = Callable[[StageProgress], None]
"""A function that is called with the progress of a build.

It is called a few times a second, and at the end of each stage.
"""


class ProgressLine:
    """A ProgressListener that writes a line for each stage, again and again over itself.

    Its first line says that the tokenizer is being loaded. Not thread-safe.

    Args:
        file: the terminal.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._file.write("loading    the tokenizer\n")
        self._stage = ""

    @staticmethod
    def fits(file: TextIO) -> bool:
        """Return whether the file is a terminal on which lines can be written again."""
        return file.isatty() and os.environ.get("TERM", "dumb") != "dumb"

    def __call__(self, progress: StageProgress) -> None:
        """Show the progress."""
        up = "\x1b[1A" if progress.stage == self._stage else ""
        width = shutil.get_terminal_size().columns - 1
        self._file.write(f"{up}\r\x1b[2K{progress_line(progress)[:width]}\n")
        self._file.flush()
        self._stage = progress.stage


def progress_line(progress: StageProgress) -> str:
    """Return the line that shows a stage: share, amount and time left."""
    done = progress.done
    total = progress.total
    amount = size_text(done) if progress.unit == "bytes" else f"{done:,} {progress.unit}"
    share = f" {min(100, 100 * done // total):3}%" if total else ""
    line = f"{progress.stage:<10}{share} {amount}"
    if done and total and done < total:
        seconds_left = progress.seconds * (total - done) / done
        line += f", {clock(seconds_left)} left"
    return line


def clock(seconds: float) -> str:
    """Return a time as hours, minutes and seconds: `"1:02:03"`, or `"2:03"`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
