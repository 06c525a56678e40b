"""The circuit breaker: closed, open, half open; and what it costs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rest_store.service.client.circuit import Circuit


def opened(threshold: int = 3, at: float = 100.0) -> Circuit:
    circuit = Circuit(threshold, pause=1.0, longest_pause=4.0)
    assert [circuit.failed(at) for _ in range(threshold)] == [False] * (threshold - 1) + [True]
    return circuit


def test_closed_until_failures_in_a_row() -> None:
    circuit = Circuit(3)
    for _ in range(5):
        circuit.failed(0.0)
        circuit.failed(0.0)
        assert circuit.admits(0.0)
        circuit.succeeded()
    assert not circuit.is_open


def test_open_it_admits_none_then_one() -> None:
    circuit = opened()
    assert circuit.is_open
    assert not circuit.admits(100.49)  # pauses are at least half as long as they may be
    assert circuit.admits(101.0)
    assert not circuit.admits(101.0)
    circuit.succeeded()
    assert circuit.admits(101.0)
    assert circuit.admits(101.0)


def test_pauses_double_up_to_the_longest() -> None:
    circuit, now = opened(), 100.0
    for pause in (2.0, 4.0, 4.0, 4.0):
        now += 10
        assert circuit.admits(now)
        assert circuit.failed(now)
        assert not circuit.admits(now + pause / 2 - 0.01)
    assert circuit.admits(now + 4.0)


def test_a_first_pause_longer_than_the_longest_does_not_shrink() -> None:
    circuit = Circuit(1, pause=10.0, longest_pause=4.0)
    for now in (0.0, 20.0, 40.0):
        assert circuit.admits(now)
        assert circuit.failed(now)
        assert not circuit.admits(now + 4.9)


def test_calls_under_way_when_it_opened_prolong_nothing() -> None:
    circuit = opened()
    for _ in range(50):
        assert not circuit.failed(100.9)
    assert circuit.admits(101.0)


def test_a_try_that_never_reports_back_does_not_lock_it_for_ever() -> None:
    circuit = opened()
    assert circuit.admits(101.0)
    assert circuit.admits(102.0)


@given(st.lists(st.sampled_from(["succeed", "fail", "ask"]), max_size=60), st.integers(1, 6))
def test_never_more_than_one_call_in_a_pause_and_open_only_after_failures(steps: list[str], threshold: int) -> None:
    circuit, in_a_row, now = Circuit(threshold, pause=1.0), 0, 0.0
    for step in steps:
        if step == "succeed":
            circuit.succeeded()
            in_a_row = 0
        elif step == "fail":
            circuit.failed(now)
            in_a_row += 1
        else:
            admitted = [circuit.admits(now) for _ in range(3)]
            assert admitted == [True] * 3 if in_a_row < threshold else sum(admitted) <= 1
            now += 0.3
        assert circuit.is_open == (in_a_row >= threshold)
