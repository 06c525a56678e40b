"""Ways timed in turns: the order, when a comparison ends, and what it says."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import pytest

from rest_store.generation import comparison
from rest_store.generation.comparison import Comparison, Speedup, in_turns


class Clock:
    """A clock that only the ways advance."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(comparison, "time", clock)
    return clock


def way(clock: Clock, order: list[str], name: str, seconds: Iterable[float]) -> Callable[[], float]:
    times = itertools.cycle(seconds)

    def run() -> float:
        order.append(name)
        clock.now += (took := next(times))
        return took

    return run


def test_ways_take_turns_until_the_range_is_narrow(clock: Clock) -> None:
    order: list[str] = []
    plain, drafted = in_turns(
        way(clock, order, "plain", [2.0]), way(clock, order, "drafted", [1.0, 1.05])
    )
    assert order == 2 * ["plain", "drafted", "drafted", "plain"]
    speedup = Speedup.from_runs(plain, drafted)
    assert (speedup.median, speedup.pairs, speedup.is_certain) == (
        pytest.approx(2.0 / 1.025),
        4,
        True,
    )
    assert (speedup.low, speedup.high) == (pytest.approx(2 / 1.05), 2.0)


def test_the_time_is_looked_at_after_each_pair(clock: Clock) -> None:
    order: list[str] = []
    plain, drafted = in_turns(
        way(clock, order, "plain", [100.0]), way(clock, order, "drafted", [40.0])
    )
    assert order == ["plain", "drafted"]
    said = str(Speedup.from_runs(plain, drafted))
    assert said == "faster, 2.50 times as fast in 1 pair of runs; how much is uncertain"


def test_a_busy_machine_gets_no_verdict_after_a_bounded_time(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "MAX_SECONDS", 60.0)
    speedup = Speedup.from_runs(
        *in_turns(way(clock, [], "plain", [1.0, 4.0, 2.0]), way(clock, [], "drafted", [1.0, 3.0]))
    )
    assert 60 <= clock.now < 75
    assert not speedup.is_certain
    assert str(speedup).startswith("this machine is too busy for a verdict: ")


@pytest.mark.parametrize(
    ("slow", "fast", "said"),
    [
        (
            [2.5, 3.26],
            [1.0, 1.0],
            "faster, 2.50 to 3.26 times as fast in 2 pairs of runs; how much is uncertain",
        ),
        (
            [1.0, 1.0],
            [1.25, 2.0],
            "slower, 0.50 to 0.80 times as fast in 2 pairs of runs; how much is uncertain",
        ),
        ([3.0], [1.0], "faster, 3.00 times as fast in 1 pair of runs; how much is uncertain"),
        (
            [1.0, 1.5],
            [1.0, 1.0],
            (
                "this machine is too busy for a verdict: 1.00 to 1.50 times as fast in 2 pairs of "
                "runs (median 1.25)"
            ),
        ),
    ],
)
def test_what_is_certain_is_said_where_the_figure_is_not(
    slow: list[float], fast: list[float], said: str
) -> None:
    assert str(Speedup.from_runs(slow, fast)) == said


def test_a_few_disturbed_runs_do_not_hide_a_clear_result() -> None:
    slow = [2.0] * 20
    fast = [1.0] * 20
    slow[3] = slow[11] = fast[7] = 9.0
    speedup = Speedup.from_runs(slow, fast)
    assert speedup.is_certain
    assert (speedup.median, speedup.low, speedup.high) == (2.0, 2.0, 2.0)


def test_the_verdict_has_the_figures_beside_it() -> None:
    runs = Speedup.from_runs([2.0, 2.1], [1.0, 1.0])
    said = str(Comparison(runs, True, 100, 2.05, 1.0, 16, 2.5))
    assert (
        "at 48.8 tokens a second, drafts at 100.0: 2.05 times as fast (2.00 to 2.10 in 2 pairs of"
        " runs)" in said
    )
    assert "M " not in said, "the text has one M"
    disturbed = str(
        Comparison(Speedup.from_runs([2.0, 3.1], [1.0, 1.0]), True, 100, 2.05, 1.0, 16, 2.5)
    )
    assert disturbed.endswith("; how much is uncertain; on an idle machine, M is up to 2.50")
