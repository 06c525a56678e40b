"""Files of calibrations and recycled logits: written whole or not at all, and refused by what is wrong with them."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from rest_store.drafting.calibration import Calibration
from rest_store.drafting.packed_file import PackedFile
from rest_store.drafting.sources import RecycledLogits
from rest_store.errors import CalibrationError, RecycledLogitsError
from tests.shared.strategies import identity, refused

FILE = PackedFile("recycled logits", "rows", 3, ("of",), RecycledLogitsError)


def packed(payload: bytes) -> bytes:
    """What is compressed, behind a header that is right."""
    head = {"version": 3, "of": 1, "sha256": hashlib.sha256(payload).hexdigest()}
    return b"rest-store recycled logits\n" + json.dumps(head).encode() + b"\n" + payload


def test_a_file_is_read_back_whole(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 255)  # as long as the system allows
    for payload in (b"old", bytes(range(256))):
        FILE.write(path, {"of": 1}, payload)
        fields, read = FILE.read(path)
        assert (fields["of"], read) == (1, payload)
    assert list(tmp_path.iterdir()) == [path], "nothing temporary is left"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "content is something else, expected recycled logits"),
        (packed(b"")[:40], "header is damaged, expected one line of JSON"),
        (packed(b"").split(b"\n")[0] + b"\n" + b"[" * 100_000, "header is damaged"),
        (packed(b"").replace(b'"of"', b'"off"'), "header is damaged"),
        (packed(b"").replace(b'"version": 3', b'"version": 9'), "version is 9, expected 3"),
        (packed(b"") + b"x", "checksum of the rows is wrong"),
        (packed(zlib.compress(b"rows")[1:]), "rows is damaged (Error"),
        (packed(zlib.compress(b"rows")[:-1]), "rows is damaged (Error"),
    ],
)
def test_a_damaged_file_is_refused_by_what_is_wrong(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "file").write_bytes(content)
    refused(RecycledLogitsError, lambda: FILE.read(tmp_path / "file"), str(tmp_path / "file"), message)


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
