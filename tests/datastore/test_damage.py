"""Damaged shard files: each known fault raises its own error."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from rest_store.datastore.datastore import Datastore
from rest_store.datastore.header import (
    MAX_POSITIONS,
    MAX_VOCABULARY,
    SuffixesHeader,
    TokensHeader,
    token_width,
)
from rest_store.datastore.manifest import FILE_NAME
from rest_store.errors import DatastoreError
from tests.shared.strategies import (
    Corpus,
    edit_file,
    edit_manifest,
    refused,
    seal_header,
    write_datastore,
)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Two shards of equal shapes."""
    return write_datastore(tmp_path / "ds", Corpus(300, [[[1, 2, 3, 4], [5]], [[6, 7, 8, 9], [1]]]))


@pytest.mark.parametrize("kind", ["tokens", "suffixes"])
@pytest.mark.parametrize(
    ("offset", "value", "error", "actual", "expected"),
    [
        (0, b"\x89PNG", "magic", "file is of another kind", "a "),
        (8, b"\x0a\x0b\x0c\x0d", "byte order", "big-endian", "little-endian"),
        (8, bytes(4), "header", "0x00000000", "0x0a0b0c0d"),
        (12, b"\2\0", "version", "2", "1"),
        (20, b"\xff", "header", "header CRC-32 is 0x", "0x"),
        (-1, b"\1", "header", "tail is 0000000000000001", "zero bytes"),
    ],
)
def test_a_fault_that_every_shard_file_may_have(
    directory: Path,
    kind: str,
    offset: int,
    value: bytes,
    error: type[DatastoreError],
    actual: str,
    expected: str,
) -> None:
    def change(data: bytearray) -> None:
        start = offset % len(data)
        data[start : start + len(value)] = value

    edit_file(directory / f"shard-00001.{kind}", change)
    message = refused(error, lambda: Datastore.open(directory), f"shard-00001.{kind}: ")
    assert actual in message.split(", expected ")[0]
    assert message.split(", expected ")[1].startswith(expected)


CONTRADICTIONS: list[tuple[str, int, str, int, str]] = [
    # file, offset, struct code, value, what the message says
    ("tokens", 16, "<I", 3, "byte 16 of the header is 3, expected 2"),
    ("tokens", 20, "<I", 0, f"vocabulary size is 0, expected 1..{MAX_VOCABULARY}"),
    ("tokens", 20, "<I", 70_000, "byte 16 of the header is 2, expected 3"),
    ("tokens", 24, "<Q", 0, f"position count is 0, expected 1..{MAX_POSITIONS}"),
    (
        "tokens",
        24,
        "<Q",
        MAX_POSITIONS + 1,
        f"position count is {MAX_POSITIONS + 1}, expected 1..{MAX_POSITIONS}",
    ),
    ("tokens", 32, "<Q", 0, "document count is 0, expected 1..3"),
    ("tokens", 32, "<Q", 4, "document count is 4, expected 1..3"),
    ("tokens", 251, "<B", 255, "byte 251 of the header is 255, expected 0"),
    ("suffixes", 16, "<I", 0, "entry bits is 0, expected 1..30"),
    ("suffixes", 16, "<I", 31, "entry bits is 31, expected 1..30"),
    ("suffixes", 16, "<I", 4, "entry bits is 4, expected 3"),
    ("suffixes", 24, "<Q", 0, f"entry count is 0, expected 1..{MAX_POSITIONS - 1}"),
    ("suffixes", 24, "<Q", 6, "entry count is 6, expected 5"),
    ("suffixes", 32, "<Q", 0, "byte 32 of the header is 0, expected 1"),
    ("suffixes", 112, "<B", 1, "byte 112 of the header is 1, expected 0"),
]


@pytest.mark.parametrize(("kind", "offset", "code", "value", "message"), CONTRADICTIONS)
def test_a_header_field_that_contradicts_others(
    directory: Path, kind: str, offset: int, code: str, value: int, message: str
) -> None:
    """Fields are checked although the checksum of the header is correct."""
    path = directory / f"shard-00000.{kind}"

    def change(data: bytearray) -> None:
        struct.pack_into(code, data, offset, value)
        seal_header(data)

    edit_file(path, change)
    assert refused("header", lambda: Datastore.open(directory)) == f"{path}: {message}"


def test_each_header_bit_is_guarded(directory: Path) -> None:
    """A file with any flipped header bit is refused."""
    for kind, header in (("tokens", TokensHeader), ("suffixes", SuffixesHeader)):
        path = directory / f"shard-00000.{kind}"
        good = path.read_bytes()[:256]
        for bit in range(8 * 256):
            data = bytearray(good)
            data[bit // 8] ^= 1 << bit % 8
            with pytest.raises(DatastoreError):
                header.unpack(bytes(data), path)
        assert header.unpack(good, path).pack() == good


@pytest.mark.parametrize("kind", ["tokens", "suffixes"])
@pytest.mark.parametrize("place", [0, 7, 8, 255, 256, -8, -1, 1])
def test_a_file_that_is_too_short_or_too_long(directory: Path, kind: str, place: int) -> None:
    """The file is cut at a place counted from its beginning or end; 1: it is a byte longer."""
    path = directory / f"shard-00001.{kind}"
    size = path.stat().st_size
    length = size + 1 if place == 1 else place % size
    os.truncate(path, length)
    if 0 < length < 8:
        refused("magic", lambda: Datastore.open(directory), f"{path}: ")
    else:
        message = refused("size", lambda: Datastore.open(directory))
        assert (
            message == f"{path}: size is {length} bytes, expected"
            f" {'at least 256' if length < 256 else f'{size} bytes'}"
        )


@pytest.mark.parametrize("vocabulary_size", [300, 70_000])
def test_a_last_symbol_that_is_not_a_separator(tmp_path: Path, vocabulary_size: int) -> None:
    write_datastore(tmp_path, Corpus(vocabulary_size, [[[1, 2]]]))
    width = token_width(vocabulary_size)
    edit_file(tmp_path / "shard-00000.tokens", lambda data: data.__setitem__(-9, 0xFE))
    actual = f"last symbol is {'ff' * (width - 1)}fe, expected a separator"
    refused("header", lambda: Datastore.open(tmp_path), "shard-00000.tokens: ", actual)


@pytest.mark.parametrize("kind", ["tokens", "suffixes"])
def test_a_missing_file(directory: Path, kind: str) -> None:
    path = directory / f"shard-00001.{kind}"
    path.unlink()
    message = refused("missing file", lambda: Datastore.open(directory))
    assert message == f"{path}: file is absent, expected a file that the manifest names"


@pytest.mark.parametrize(("kind", "other"), [("tokens", "suffixes"), ("suffixes", "tokens")])
def test_a_file_of_the_other_kind(directory: Path, kind: str, other: str) -> None:
    shutil.copy(directory / f"shard-00000.{other}", directory / f"shard-00000.{kind}")
    expected = f"shard-00000.{kind}: file is a {other} file, expected a {kind} file"
    refused("magic", lambda: Datastore.open(directory), expected)


def swap_shards(directory: Path, other: Path) -> None:
    for kind in ("tokens", "suffixes"):
        first = directory / f"shard-00000.{kind}"
        second = directory / f"shard-00001.{kind}"
        first.rename(other / "aside")
        second.rename(first)
        (other / "aside").rename(second)


def replace(*names: str) -> Callable[[Path, Path], None]:
    def change(directory: Path, other: Path) -> None:
        for name in names:
            shutil.copy(other / name, directory / name)

    return change


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (swap_shards, "tokens sha256"),
        (replace("shard-00000.tokens"), "checksum of its tokens"),
        (replace("shard-00000.suffixes"), "checksum of its tokens"),
        (replace("shard-00000.tokens", "shard-00000.suffixes"), "tokens sha256"),
        (replace(FILE_NAME), "tokens sha256"),
    ],
)
def test_files_of_two_builds_side_by_side(
    directory: Path, tmp_path: Path, change: Callable[[Path, Path], None], what: str
) -> None:
    """All files are intact and have the same sizes."""
    other = Corpus(300, [[[1, 2, 3, 5], [4]], [[6, 7, 8, 8], [2]]])
    change(directory, write_datastore(tmp_path / "other", other))
    message = refused(
        "mixed builds", lambda: Datastore.open(directory), str(directory), f"{what} is "
    )
    actual, expected = message.split(f"{what} is ")[1].split(", expected ")
    assert actual != expected
    assert len(actual) == len(expected) == 64


def test_a_manifest_of_another_vocabulary(directory: Path) -> None:
    edit_manifest(directory, lambda fields: fields["tokenizer"].update(vocabulary_size=301))
    refused(
        "mixed builds", lambda: Datastore.open(directory), "vocabulary size is 300, expected 301"
    )
