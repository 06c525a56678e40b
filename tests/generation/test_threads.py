"""As many threads as fit: fewer where fewer are faster, and as many as before after the block."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
from click.testing import CliRunner

from rest_store.cli import main
from rest_store.generation import threads
from rest_store.generation.threads import fitting_threads


class Clock:
    """A clock that only work moves on, by the seconds that it takes with each number of threads."""

    def __init__(self, seconds: dict[int, float]) -> None:
        self.seconds = seconds
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def work(self) -> None:
        self.now += self.seconds[torch.get_num_threads()]


@pytest.fixture(autouse=True)
def four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("seconds", "chosen"),
    [
        ({4: 0.01, 2: 0.02, 1: 0.04}, 4),  # an idle machine
        ({4: 0.01, 2: 0.009, 1: 0.018}, 4),  # about the same: as many as were set
        ({4: 0.05, 2: 0.01, 1: 0.02}, 2),  # other work on half of the processors
        # On all of them; each comparison takes longer than it should.
        ({4: 3.0, 2: 1.0, 1: 0.05}, 1),
    ],
)
def test_fewer_threads_are_taken_where_they_are_faster(
    seconds: dict[int, float], chosen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(seconds)
    monkeypatch.setattr(threads, "time", clock)
    with fitting_threads(clock.work) as number:
        assert number == torch.get_num_threads() == chosen
    assert torch.get_num_threads() == 4


def test_one_thread_is_not_timed() -> None:
    torch.set_num_threads(1)

    def work() -> None:
        raise AssertionError("there is nothing to choose")

    with fitting_threads(work) as number:
        assert number == 1


def test_the_number_comes_back_after_an_error() -> None:
    with pytest.raises(KeyboardInterrupt), fitting_threads(lambda: None):
        raise KeyboardInterrupt
    assert torch.get_num_threads() == 4


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "1000"),
        ({"GOMP_SPINCOUNT": "7"}, "7"),
        ({"OMP_WAIT_POLICY": "active"}, None),
    ],
)
def test_commands_let_threads_wait_asleep_unless_the_environment_says_how(
    environment: dict[str, str], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, environment.get(name, ""))
        if name not in environment:
            monkeypatch.delenv(name)
    CliRunner().invoke(main, ["info", "absent"])
    assert os.environ.get("GOMP_SPINCOUNT") == expected
