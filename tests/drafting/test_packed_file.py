"""Files of calibrations and recycled logits: what the system refuses is a named error, and what it takes is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rest_store.drafting.calibration import Calibration
from rest_store.drafting.packed_file import write_whole
from rest_store.drafting.sources import RecycledLogits
from rest_store.errors import CalibrationError, RecycledLogitsError
from tests.shared.strategies import identity


def test_a_name_may_be_as_long_as_the_system_allows(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 255)
    write_whole(path, b"old")
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path], "nothing temporary is left"


def test_what_cannot_be_replaced_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path / "directory", b"new")
    assert list(tmp_path.iterdir()) == [tmp_path / "directory"]


@pytest.mark.parametrize(
    ("error", "use"),
    [
        (CalibrationError, Calibration.load),
        (CalibrationError, Calibration.default().save),
        (RecycledLogitsError, lambda path: RecycledLogits.load(path, identity(300))),
        (RecycledLogitsError, lambda path: RecycledLogits().save(path, identity(300))),
    ],
    ids=["load a calibration", "save a calibration", "load logits", "save logits"],
)
def test_a_path_that_the_system_refuses_is_a_named_error(
    tmp_path: Path, error: type[Exception], use: Callable[[Path], object]
) -> None:
    with pytest.raises(error, match=r"expected a (readable file|writable place)"):
        use(tmp_path / ("x" * 300))
    assert list(tmp_path.iterdir()) == []
