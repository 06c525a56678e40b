"""How far scores are believed."""

from __future__ import annotations

import pytest

from rest_store.drafting.reliability import Reliability


def test_scores_are_believed_until_something_speaks_against_them() -> None:
    reliability = Reliability(prior=1.0)
    assert reliability.factor == 1.0
    reliability.add(0.0, 3.0)  # more than promised
    assert reliability.factor == 1.0


def test_the_factor_is_the_part_that_was_accepted() -> None:
    reliability = Reliability(prior=1.0)
    reliability.add(999.0, 249.0)
    assert reliability.factor == pytest.approx(0.25)


def test_chance_is_allowed_for() -> None:
    strict, lenient = Reliability(prior=4.0), Reliability(prior=4.0, slack=1.25)
    for reliability in (strict, lenient):
        reliability.add(1.0, 0.0)
    assert strict.factor == pytest.approx(0.8)
    assert lenient.factor == 1.0


def test_failed_promises_are_forgotten_in_time() -> None:
    reliability = Reliability(prior=1.0)
    reliability.add(100.0, 0.0)
    assert reliability.factor < 0.01
    for _ in range(256):
        reliability.forget()
    assert reliability.factor == pytest.approx(1 / 51)
    for _ in range(10_000):
        reliability.forget()
    assert reliability.factor > 0.99
