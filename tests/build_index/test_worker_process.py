"""What a worker process does with what it receives, or with what does not arrive."""

from __future__ import annotations

import io
import pickle
from queue import SimpleQueue
from typing import Any

import pytest

from build_index import worker_process


class ProcessEnd(BaseException):
    """Stands for the end of the process."""


class Unloadable:
    """Something that cannot be made here again, as an object of a package that is not installed."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("no number",)


def status_after(content: bytes, monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[Any]]:
    """The status with which the process ends when it reads `content`, and what it has received."""

    def end(status: int) -> None:
        raise ProcessEnd(status)

    monkeypatch.setattr(worker_process.os, "_exit", end)
    received: SimpleQueue[Any] = SimpleQueue()
    with pytest.raises(ProcessEnd) as ended:
        worker_process._receive(io.BytesIO(content), received)
    return ended.value.args[0], [received.get() for _ in range(received.qsize())]


def test_it_ends_with_its_input(monkeypatch: pytest.MonkeyPatch) -> None:
    assert status_after(pickle.dumps("task"), monkeypatch) == (0, ["task"])


def test_it_ends_when_the_build_is_killed_in_the_middle_of_a_task(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = pickle.dumps("a task that is longer than a pipe" * 1000)[:-100]
    assert status_after(pickle.dumps("setup") + cut, monkeypatch) == (0, ["setup"])
    assert capsys.readouterr().err == ""


def test_it_ends_when_it_cannot_load_what_it_receives(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise the build would wait for an answer for ever."""
    assert status_after(pickle.dumps(Unloadable()), monkeypatch) == (1, [])
    assert "ValueError: invalid literal for int() with base 10: 'no number'" in capsys.readouterr().err
