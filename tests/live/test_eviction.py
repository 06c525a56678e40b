"""Eviction: documents that are too many or too old go, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from rest_store.live import clock as live_clock
from rest_store.live.live_datastore import LiveDatastore
from tests.shared.live import new_live, small_segments, until

YEAR = 365 * 86_400.0


class Time:
    """Stands for the module `time`: the system's clock, and the one that goes on evenly."""

    CLOCK_MONOTONIC = 1

    def __init__(self) -> None:
        self.now = 10 * YEAR
        self.set_ahead = 0.0

    def time(self) -> float:
        return self.now + self.set_ahead

    def clock_gettime(self, clock: int) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    clock = Time()
    monkeypatch.setattr(live_clock, "time", clock)
    return clock


def add_one_a_second(live: LiveDatastore, clock: Time, tokens: range) -> None:
    for token in tokens:
        live.add([[token, 299]])
        clock.now += 1


def there(live: LiveDatastore) -> list[int]:
    return [token for token in range(299) if live.count([token])]


def test_documents_are_evicted_by_age(tmp_path: Path, clock: Time) -> None:
    """They leave at most an eighth of the age early, also if they were closed meanwhile."""
    with new_live(tmp_path / "live", max_age=80.0) as live:
        add_one_a_second(live, clock, range(80))
        assert len(there(live)) >= 70
        clock.now += 40
        until(lambda: len(there(live)) <= 40)
        assert (len(there(live)) >= 30, there(live)[-1]) == (True, 79)
    clock.now += 20
    with LiveDatastore.open(tmp_path / "live") as live:
        assert 10 <= len(there(live)) <= 20
        clock.now += 80
        until(lambda: there(live) == [])
        live.add([[100, 299]])
        assert there(live) == [100]


def test_a_clock_that_is_set_while_it_is_open_changes_no_age(tmp_path: Path, clock: Time) -> None:
    with new_live(tmp_path / "live", max_age=80.0) as live:
        add_one_a_second(live, clock, range(40))
        clock.set_ahead = YEAR
        add_one_a_second(live, clock, range(40, 60))
        assert there(live) == list(range(60))
        clock.now += 85
        until(lambda: there(live) == [])


@pytest.mark.parametrize("wrong", [YEAR, 81.0, -YEAR])
def test_a_clock_that_is_wrong_when_it_is_opened_evicts_nothing_and_stops_no_eviction(
    tmp_path: Path, clock: Time, wrong: float
) -> None:
    new_live(tmp_path / "live", max_age=80.0).close()
    for first, ahead in ((0, 0.0), (20, wrong), (40, 0.0)):
        clock.set_ahead = ahead
        with LiveDatastore.open(tmp_path / "live") as live:
            add_one_a_second(live, clock, range(first, first + 20))
            assert there(live) == list(range(first + 20))
    with LiveDatastore.open(tmp_path / "live") as live:
        clock.now += 50
        until(lambda: there(live)[0] >= 30 - 10)
        assert there(live)[-1] == 59
        clock.now += 31
        until(lambda: there(live) == [])


def test_a_limit_that_is_set_while_the_clock_is_wrong_evicts_nothing(
    tmp_path: Path, clock: Time
) -> None:
    with new_live(tmp_path / "live") as live:
        add_one_a_second(live, clock, range(20))
    clock.set_ahead = YEAR
    with LiveDatastore.open(tmp_path / "live") as live:
        live.namespace("").set_retention(max_age=80.0)
        assert there(live) == list(range(20))
        clock.now += 81
        until(lambda: there(live) == [])


@pytest.mark.parametrize("reopened", [False, True])
def test_a_clock_that_was_ahead_evicts_no_other_document_early(
    tmp_path: Path, clock: Time, reopened: bool
) -> None:
    """This holds once the clock is right again, whether the datastore was open or closed."""
    with new_live(tmp_path / "live", max_age=80.0) as live:
        add_one_a_second(live, clock, range(20))
    clock.set_ahead = 30.0
    live = LiveDatastore.open(tmp_path / "live")
    add_one_a_second(live, clock, range(20, 40))
    if reopened:
        live.close()
    clock.set_ahead = 0.0
    if reopened:
        live = LiveDatastore.open(tmp_path / "live")
    clock.now += 35
    live.add([[50, 299]])
    assert there(live) == [*range(40), 50]
    clock.now += 30
    until(lambda: there(live)[0] >= 20)
    clock.now += 80
    until(lambda: there(live) == [])
    live.close()


@pytest.mark.parametrize("together", [7, 200])
def test_the_oldest_are_evicted_and_no_more_than_an_eighth_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    """This holds for one call that adds more than is kept, too."""
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
        assert len(list(live.documents())) == live.info().document_count
        shards = live.info().shard_count
        size = live.info().size
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


@pytest.mark.parametrize("compacted", [False, True])
def test_epochs_before_those_that_are_kept_are_evicted(tmp_path: Path, compacted: bool) -> None:
    """Documents of later epochs in the same segments stay."""
    with new_live(tmp_path / "live", max_epochs=2) as live:
        for epoch in (5, 6, 5, 7, 6, 8):
            live.add([[epoch, token] for token in range(100, 110)], epoch=epoch)
            if compacted:
                live.compact()
        until(lambda: there(live)[:2] == [7, 8])
        assert [live.count([epoch]) for epoch in range(5, 9)] == [0, 0, 10, 10]
        live.namespace("all").set_retention(max_epochs=9)
        for epoch in (0, 8):
            live.namespace("all").add([[epoch, 1]], epoch=epoch)
        live.add([[1]], epoch=9)
        until(lambda: live.count([7]) == 0)
        assert live.namespace("all").count([0]) == 1
        assert live.info().failure is None
        assert live.changes(0, "").head == live.newest_change


def test_limits_of_a_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits are stored and hold at once. A namespace without a limit has the datastore's."""
    small_segments(monkeypatch)
    with new_live(tmp_path / "live", 65_535, max_tokens=300) as live:
        small = live.namespace("small")
        live.namespace("quiet").add([[7, 8]])
        for token in range(150):
            for name in ("", "small"):
                live.namespace(name).add([[1000 + token, 1]])
        live.namespace("small").set_retention(max_age=3600)
        assert small.count([1]) > 100
        live.namespace("small").set_retention(max_tokens=80)
        assert 34 <= small.count([1]) <= 40
        assert 130 <= live.count([1]) <= 150
        assert live.namespace("quiet").count([7, 8]) == 1
    with LiveDatastore.open(tmp_path / "live") as live:
        small = live.namespace("small")
        small.add([[1000, 1]] * 50)
        assert small.count([1]) <= 40
        assert live.count([1]) > 100
