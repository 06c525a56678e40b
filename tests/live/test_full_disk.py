"""A disk that is really full: a small file system of its own, where this may be mounted."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rest_store.errors import StorageError
from rest_store.live.live_datastore import LiveDatastore
from tests.shared.strategies import identity

SECRET = [7, 8, 9] * 20


def some_tokens(seed: int, count: int) -> npt.NDArray[np.int32]:
    return np.random.default_rng(seed).integers(100, 60_000, count).astype(np.int32)


def fill(act: Callable[[int], object]) -> StorageError:
    """Act until the disk is full; return the error."""
    number = 0
    while True:
        try:
            act(number)
        except StorageError as error:
            return error
        number += 1
        assert number < 10_000


def test_what_was_acknowledged_is_kept_and_asked_while_the_disk_is_full(disk: Path) -> None:
    live = LiveDatastore.open(disk / "live", tokenizer=identity(60_000))
    ids = live.add([SECRET])
    acknowledged: list[int] = []

    def add(number: int) -> None:
        ids.extend(live.add([some_tokens(number, 20_000)]))
        acknowledged.append(number)

    def require_kept(store: LiveDatastore) -> None:
        assert all(store.count(some_tokens(number, 20_000)[:64]) == 1 for number in acknowledged)
        assert store.count(SECRET) == 1

    assert "cannot be written" in str(fill(add))
    require_kept(live)
    with suppress(StorageError):
        live.compact()
    require_kept(live)
    with LiveDatastore.open(disk / "live", read_only=True) as reader:
        require_kept(reader)
    live.close()
    with LiveDatastore.open(disk / "live") as live:
        require_kept(live)
        assert "cannot be written" in str(fill(lambda number: add(len(acknowledged))))
        require_kept(live)
    subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
    with LiveDatastore.open(disk / "live") as live:
        add(len(acknowledged))
        live.compact()
        require_kept(live)
        assert live.delete(ids) == len(ids)
        assert live.count(SECRET) == 0
        assert live.info().failure is None
