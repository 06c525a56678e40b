"""A disk that is really read-only: a small file system of its own, where this may be mounted."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from rest_store.errors import StorageError
from rest_store.live.live_datastore import LiveDatastore
from tests.shared.strategies import identity


@pytest.fixture
def read_only(disk: Path) -> Path:
    """A live datastore with one document, that nobody writes, on a disk that cannot be written."""
    with LiveDatastore.open(disk / "live", tokenizer=identity(300)) as live:
        live.add([[1, 2, 3]])
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    return disk / "live"


def test_it_cannot_be_read_without_a_writer(read_only: Path) -> None:
    with pytest.raises(StorageError, match=r"documents\.sqlite: documents cannot be opened"):
        LiveDatastore.open(read_only, read_only=True)


def test_it_cannot_be_written(read_only: Path) -> None:
    with pytest.raises(StorageError, match=r"cannot be written .Read-only file system."):
        LiveDatastore.open(read_only)


def test_it_is_read_while_a_process_writes_it(disk: Path, tmp_path: Path) -> None:
    """As in a container that sees the directory of another one."""
    view = tmp_path / "view"
    view.mkdir()
    with LiveDatastore.open(disk / "live", tokenizer=identity(300)) as live:
        live.add([[1, 2, 3]])
        subprocess.run(["mount", "--bind", "-o", "ro", disk, view], check=True)
        try:
            with LiveDatastore.open(view / "live", read_only=True) as reader:
                assert reader.count([1, 2, 3]) == 1
                live.add([[1, 2, 3]])
                reader.refresh()
                assert reader.count([1, 2, 3]) == 2
        finally:
            subprocess.run(["umount", "--lazy", view], check=True)
