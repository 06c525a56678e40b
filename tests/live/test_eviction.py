"""Eviction: documents that are too many or too old go, and no others."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rest_store.live.encoding import NewDocument
from rest_store.live.live_datastore import LiveDatastore
from rest_store.live.retention import Retention
from rest_store.live.writer import Writer
from tests.shared.live import new_live, small_segments


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def begun(directory: Path, clock: Clock, max_age: float = 80.0) -> Writer:
    if not directory.exists():
        new_live(directory, max_age=max_age).close()
    return Writer(directory, None, Retention(), clock=clock)


@pytest.fixture
def aged(tmp_path: Path, clock: Clock) -> Iterator[Writer]:
    """A writer that keeps documents for 80 seconds; a document was added in each of the first 80."""
    opened = begun(tmp_path / "live", clock)
    for token in range(80):
        add(opened, token)
        clock.now += 1
    yield opened
    opened.close()


def add(opened: Writer, *tokens: int) -> None:
    opened.add(
        [NewDocument(f"{token} {opened.segments.newest}", np.array([token, 299], ">u2").tobytes()) for token in tokens]
    )


def there(opened: Writer) -> list[int]:
    return [token for token in range(299) if opened.segments.snapshot().kernel.count([token])]


def test_documents_are_evicted_by_age(aged: Writer, clock: Clock) -> None:
    assert len(there(aged)) >= 70, "no more than an eighth earlier"
    assert there(aged)[-1] == 79
    clock.now += 40
    assert aged.evict()
    assert 30 <= len(there(aged)) <= 40
    assert there(aged)[-1] == 79
    clock.now += 80
    assert aged.evict()
    assert there(aged) == []
    assert not aged.evict()
    add(aged, 100)
    assert there(aged) == [100]


def test_a_clock_that_is_set_evicts_nothing_and_stops_no_eviction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process goes on counting from the time at which it opened the datastore."""
    with new_live(tmp_path / "live", max_age=3600) as live:
        live.add([[token, 299] for token in range(99)])
        monkeypatch.setattr(time, "time", lambda: 4e9)
        live.add([[99, 299]])
        assert live.info().document_count == 100
        assert not live._backend.evict()
        clock = live._backend._clock
        monkeypatch.setattr(live._backend, "_clock", lambda: clock() + 3601)
        live._backend.evict()
        assert live.info().document_count == 0


YEAR = 365 * 86_400.0


@pytest.mark.parametrize("ahead", [True, False])
def test_times_of_a_wrong_clock_keep_no_other_document_and_evict_none(
    tmp_path: Path, clock: Clock, ahead: bool
) -> None:
    """An age in the future counts as now; the order is that of addition."""
    clock.now = 10 * YEAR
    opened = begun(tmp_path / "live", clock)
    if ahead:
        clock.now += YEAR
        add(opened, 100)
        clock.now -= YEAR
    for token in range(40):
        add(opened, token)
        clock.now += 1
    opened.close()
    clock.now -= 0 if ahead else YEAR
    opened = begun(tmp_path / "live", clock)
    assert there(opened) == [*range(40), 100][: 41 if ahead else 40]
    add(opened, 101)
    clock.now += 85 if ahead else YEAR + 85
    opened.evict()
    assert there(opened) == ([100] if ahead else [])
    clock.now += 2 * YEAR
    opened.evict()
    assert there(opened) == []
    add(opened, 102)
    assert there(opened) == [102]
    opened.close()


def test_what_was_too_old_is_gone_when_it_is_opened_again(aged: Writer, clock: Clock, tmp_path: Path) -> None:
    aged.close()
    clock.now += 60
    opened = begun(tmp_path / "live", clock)
    assert 10 <= len(there(opened)) <= 20
    opened.close()


@pytest.mark.parametrize("together", [7, 200])
def test_the_oldest_are_evicted_and_no_more_than_an_eighth_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    """Also by one call that adds more than is kept."""
    small_segments(monkeypatch)
    with new_live(tmp_path / "live", 65_535, max_tokens=240) as live:
        for first in range(0, 200, together):
            live.add([[1000 + token, 1, 2] for token in range(first, min(200, first + together))])
            held = [token for token in range(200) if live.count([1000 + token])]
            last = min(200, first + together)
            assert held == list(range(last - len(held), last))
            assert len(held) >= min(last, 80 - 10 - 1)
            assert live.info().token_count == 3 * len(held) <= 240
        live.compact()
        assert live.info().failure is None
        assert len(list(live._backend._documents.read())) == live.info().document_count
        shards, size = live.info().shard_count, live.info().size
        assert shards <= 30
    assert size < 20_000


def test_smaller_limits_evict_no_more_than_they_say(tmp_path: Path) -> None:
    with new_live(tmp_path / "live", 65_535) as live:
        live.add([[1000 + token, 1, 2] for token in range(200)])
        live.compact()
        assert live.info().shard_count == 1
    with LiveDatastore.open(tmp_path / "live", max_tokens=240) as live:
        held = [token for token in range(200) if live.count([1000 + token])]
        assert held == list(range(200 - len(held), 200))
        assert 80 - 10 - 1 <= len(held) <= 80
    with LiveDatastore.open(tmp_path / "live") as live:
        assert live.info().max_tokens == 240
