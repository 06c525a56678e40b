"""A small datastore that most tests here open or damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.shared.strategies import TWO_SHARDS, write_datastore


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_datastore(tmp_path / "ds", TWO_SHARDS)
