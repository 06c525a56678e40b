"""A disk that is really full, or read-only.

It is a small file system of its own, where this may be mounted.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from rest_store.errors import StorageError
from rest_store.live.live_datastore import LiveDatastore
from tests.shared.live import refresh
from tests.shared.strategies import identity

SECRET = [7, 8, 9] * 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 4 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    try:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", place],
            check=True,
            capture_output=True,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be mounted here ({error})")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


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


def test_acknowledged_documents_are_readable_on_a_full_disk(disk: Path) -> None:
    live = LiveDatastore.open(disk / "live", tokenizer=identity(60_000))
    ids = live.add([SECRET])
    acknowledged: list[int] = []

    def add(number: int) -> None:
        ids.extend(live.add([some_tokens(number, 20_000)]))
        acknowledged.append(number)

    def require_acknowledged(store: LiveDatastore) -> None:
        assert all(store.count(some_tokens(number, 20_000)[:64]) == 1 for number in acknowledged)
        assert store.count(SECRET) == 1

    assert "cannot be written" in str(fill(add))
    require_acknowledged(live)
    with suppress(StorageError):
        live.compact()
    require_acknowledged(live)
    with LiveDatastore.open(disk / "live", read_only=True) as reader:
        require_acknowledged(reader)
    live.close()
    with LiveDatastore.open(disk / "live") as live:
        require_acknowledged(live)
        assert "cannot be written" in str(fill(lambda number: add(len(acknowledged))))
        require_acknowledged(live)
    subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
    with LiveDatastore.open(disk / "live") as live:
        add(len(acknowledged))
        live.compact()
        require_acknowledged(live)
        assert live.delete(ids) == len(ids)
        assert live.count(SECRET) == 0
        assert live.info().failure is None


@pytest.fixture
def read_only(disk: Path) -> Path:
    """A live datastore with one document, that nobody writes, on a disk that cannot be written."""
    with LiveDatastore.open(disk / "live", tokenizer=identity(300)) as live:
        live.add([[1, 2, 3]])
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    return disk / "live"


def test_it_cannot_be_written_nor_read_without_a_writer(read_only: Path) -> None:
    with pytest.raises(StorageError, match=r"documents\.sqlite: documents cannot be opened"):
        LiveDatastore.open(read_only, read_only=True)
    with pytest.raises(StorageError, match=r"cannot be written .Read-only file system."):
        LiveDatastore.open(read_only)


def test_it_is_read_while_a_process_writes_it(disk: Path, tmp_path: Path) -> None:
    """A container may see the directory of another one in this way."""
    view = tmp_path / "view"
    view.mkdir()
    with LiveDatastore.open(disk / "live", tokenizer=identity(300)) as live:
        live.add([[1, 2, 3]])
        subprocess.run(["mount", "--bind", "-o", "ro", disk, view], check=True)
        try:
            with LiveDatastore.open(view / "live", read_only=True) as reader:
                assert reader.count([1, 2, 3]) == 1
                live.add([[1, 2, 3]])
                refresh(reader)
                assert reader.count([1, 2, 3]) == 2
        finally:
            subprocess.run(["umount", "--lazy", view], check=True)
