"""The latest remembered outputs as one array: as the memory has them, and no others'."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import rest_store
from rest_store import LiveDatastore
from rest_store.engines import latest_outputs
from rest_store.engines.latest_outputs import LatestOutputs
from rest_store.errors import DatastoreClosedError
from tests.shared.live import until
from tests.shared.strategies import identity


class SlowClock:
    """Seconds that pass only where a test says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveDatastore]:
    with rest_store.LiveDatastore.open(tmp_path / "live", tokenizer=identity(300)) as live:
        yield live


@pytest.fixture
def clock() -> SlowClock:
    return SlowClock()


def read(outputs: LatestOutputs, clock: SlowClock) -> list[int]:
    clock.now += 5
    outputs.refresh()
    return outputs.tokens().tolist()


def test_documents_are_read_once_somebody_wants_them(live: LiveDatastore, clock: SlowClock) -> None:
    live.add([[1, 2, 3]])
    outputs = LatestOutputs(live, clock)
    outputs.refresh()
    assert outputs.tokens().tolist() == []
    outputs.refresh()
    assert outputs.tokens().tolist() == [1, 2, 3, -1]


def test_changes_are_seen_after_five_seconds(live: LiveDatastore, clock: SlowClock) -> None:
    outputs = LatestOutputs(live, clock)
    assert read(outputs, clock) == []
    assert read(outputs, clock) == []
    live.add([[1, 2], [299, 0]], ["a", "b"])
    outputs.refresh()
    assert outputs.tokens().tolist() == []
    assert read(outputs, clock) == [1, 2, -1, 299, 0, -1]
    before = outputs.tokens()
    assert read(outputs, clock) == before.tolist()
    assert outputs.tokens() is before, "nothing has changed"
    live.delete(["a"])
    assert read(outputs, clock) == [299, 0, -1]
    assert before.tolist() == [1, 2, -1, 299, 0, -1]


@pytest.mark.parametrize("most", [1, 5, 7, 100])
def test_the_latest_documents_are_kept(
    live: LiveDatastore, clock: SlowClock, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(latest_outputs, "MAX_TOKENS", most)
    monkeypatch.setattr(latest_outputs, "_FIRST_DOCUMENTS", 1)
    monkeypatch.setattr(latest_outputs, "_MAX_DOCUMENTS", 16)
    documents = [[number, number + 1] for number in range(20)]
    live.add(documents)
    outputs = LatestOutputs(live, clock)
    outputs.tokens()
    everything = [token for document in documents[-16:] for token in (*document, -1)]
    assert read(outputs, clock) == everything[-most:]


def test_namespaces_are_apart(live: LiveDatastore, clock: SlowClock) -> None:
    live.namespace("a").add([[1, 2]])
    live.add([[3, 4]])
    own = {name: LatestOutputs(live.namespace(name), clock) for name in ("a", "b", "")}
    for outputs in own.values():
        outputs.tokens()
    assert [read(outputs, clock) for outputs in own.values()] == [[1, 2, -1], [], [3, 4, -1]]


def test_what_groups_share_is_left_to_queries(tmp_path: Path, clock: SlowClock) -> None:
    path = tmp_path / "shared"
    with rest_store.LiveDatastore.open(path, tokenizer=identity(300), shared_after=2) as live:
        live.add([[1, 2]], group="one")
        outputs = LatestOutputs(live, clock)
        outputs.tokens()
        assert read(outputs, clock) == []


def test_outputs_that_groups_share_from_now_on_are_left_to_queries(
    tmp_path: Path, clock: SlowClock
) -> None:
    path = tmp_path / "shared"
    with rest_store.LiveDatastore.open(path, tokenizer=identity(300)) as live:
        live.add([[1, 2]], group="one")
    with rest_store.LiveDatastore.open(path, read_only=True) as reader:
        outputs = LatestOutputs(reader, clock)
        outputs.tokens()
        assert read(outputs, clock) == [1, 2, -1]
        rest_store.LiveDatastore.open(path, shared_after=2).close()
        until(lambda: reader.shared_after == 2)
        assert read(outputs, clock) == []


def test_there_are_none_without_a_memory_in_this_process(clock: SlowClock) -> None:
    for memory in (None, object()):
        outputs = LatestOutputs(memory, clock)
        outputs.tokens()
        assert read(outputs, clock) == []


def test_there_are_none_that_cannot_be_read(live: LiveDatastore, clock: SlowClock) -> None:
    live.add([[1, 2, 3]])
    outputs = LatestOutputs(live, clock)
    outputs.tokens()
    assert read(outputs, clock) == [1, 2, 3, -1]
    live.close()
    clock.now += 5
    with pytest.raises(DatastoreClosedError):
        outputs.refresh()
    assert outputs.tokens().tolist() == []
