"""`manifest.json`: its fields, and the error for each kind of fault."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rest_store.cli import main
from rest_store.datastore.check import check_datastore
from rest_store.datastore.datastore import Datastore
from rest_store.datastore.manifest import FILE_NAME, Manifest
from rest_store.errors import DatastoreNotFoundError
from rest_store.live.live_datastore import LiveDatastore
from tests.shared.strategies import edit_manifest, identity, refused


def test_what_is_written_is_read_back(directory: Path) -> None:
    manifest = Manifest.read(directory)
    assert manifest.tokenizer == identity(300)
    assert (manifest.token_count, manifest.document_count) == (11, 2)
    assert [record.name for record in manifest.shards] == ["shard-00000", "shard-00001"]
    assert manifest.to_json() == (directory / FILE_NAME).read_text(encoding="utf-8")


def test_unknown_fields_are_ignored(directory: Path) -> None:
    before = Manifest.read(directory)
    edit_manifest(directory, lambda fields: fields.update(later={"a": [1]}))
    edit_manifest(directory, lambda fields: fields["shards"][0].update(later=1))
    edit_manifest(directory, lambda fields: fields["tokenizer"].update(later=1))
    assert Manifest.read(directory) == before


@pytest.mark.parametrize(
    ("content", "actual"),
    [
        (b"", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"format": ' + b"9" * 5_000 + b"}", "not JSON"),
        (b" " * (1 << 25) + b"{}", "size is more than 33554432 bytes"),
        (b'{"format": "rest-store", "format_version": 1}', "manifest_sha256 is absent"),
        (
            b'{"format": "rest-store", "format_version": 1, "manifest_sha256": 5}',
            "manifest_sha256 is int",
        ),
        (b'{"format": "\xff"}', "not JSON"),
        (b"[]", "list"),
        (b'{"format": "zip"}', "'zip'"),
    ],
    ids=lambda value: repr(value[:12]),
)
def test_content_that_is_not_a_manifest(directory: Path, content: bytes, actual: str) -> None:
    (directory / FILE_NAME).write_bytes(content)
    message = refused("manifest", lambda: Datastore.open(directory), FILE_NAME, actual)
    assert len(message) < 300


@pytest.mark.parametrize(
    "version", [2, "1", None, int("7" * 4_200)], ids=lambda value: str(value)[:9]
)
def test_another_version(directory: Path, version: object) -> None:
    edit_manifest(directory, lambda fields: fields.update(format_version=version))
    message = refused(
        "version", lambda: Datastore.open(directory), f"{FILE_NAME}: format version is "
    )
    assert len(message) < 300


def test_a_changed_manifest_is_refused(directory: Path) -> None:
    """Any change is refused: here one of the provenance, on which nothing else depends."""
    edit_manifest(directory, lambda fields: fields.update(corpora=[{"path": "src"}]))
    assert Manifest.read(directory).corpora == ({"path": "src"},)
    path = directory / FILE_NAME
    path.write_bytes(path.read_bytes().replace(b"src", b"sra"))
    message = refused(
        "checksum", lambda: Datastore.open(directory), f"{path}: SHA-256 of the content is "
    )
    assert len(set(re.findall("[0-9a-f]{64}", message))) == 2


WRONG_FIELDS: list[tuple[tuple[str | int, ...], Any, str, str]] = [
    # path of the field, value, what is found, what is expected
    (("created_by",), 1, "int", "str"),
    (("created_by",), ..., "absent", "str"),
    (("corpora",), {}, "dict", "list"),
    (("options",), [], "list", "dict"),
    (("shards",), None, "NoneType", "list"),
    (("shards",), [], "0", "at least 1"),
    (("shards", 0), "shard-00000", "str", "an object"),
    (("shards", 0, "tokens_size"), "264", "str", "int"),
    (("shards", 0, "name"), "../shard-00000", "'../shard-00000'", "a file name"),
    (("shards", 0, "name"), "a\\b", "'a\\\\b'", "a file name"),
    (("shards", 0, "name"), "/etc/passwd", "'/etc/passwd'", "a file name"),
    (("tokenizer",), "gpt2", "malformed", "as in FORMAT.md"),
]


@pytest.mark.parametrize(
    ("path", "value", "actual", "expected"), WRONG_FIELDS, ids=lambda value: str(value)[:30]
)
def test_a_wrong_field(
    directory: Path, path: tuple[str | int, ...], value: object, actual: str, expected: str
) -> None:
    def change(fields: Any) -> None:
        *above, last = path
        for step in above:
            fields = fields[step]
        if value is ...:
            del fields[last]
        else:
            fields[last] = value

    edit_manifest(directory, change)
    message = refused("manifest", lambda: Datastore.open(directory), FILE_NAME)
    assert f"is {actual}, expected" in message
    assert expected in message.split(", expected ")[1]


@pytest.mark.parametrize("place", ["nowhere", "a file", "an empty directory", "inside a file"])
def test_no_datastore_at_the_path(tmp_path: Path, place: str) -> None:
    path = tmp_path / "ds"
    actual = "absent (no such directory), expected a built one"
    if place == "a file":
        path.write_text("{}", encoding="utf-8")
        actual = "a file, expected its directory"
    elif place == "an empty directory":
        path.mkdir()
        actual = "absent (no manifest.json in it), expected a built one"
    elif place == "inside a file":
        (tmp_path / "file").touch()
        path = tmp_path / "file" / "ds"
    assert (
        refused(DatastoreNotFoundError, lambda: Datastore.open(path))
        == f"{path}: datastore is {actual}"
    )


@pytest.mark.parametrize("name", [FILE_NAME, "shard-00000.tokens"])
def test_a_command_is_told_that_a_file_is_no_datastore(directory: Path, name: str) -> None:
    for command in ("info", "check"):
        result = CliRunner().invoke(main, [command, str(directory / name)])
        assert result.exit_code == 1
        assert (
            result.stderr
            == f"Error: {directory / name}: datastore is a file of one, expected its directory\n"
        )


@pytest.mark.parametrize("place", ["a\0b", "\ud800", "host:5/\0", "s3://bucket/\ud800"])
def test_what_can_be_no_path(place: str) -> None:
    expected = f"datastore: path is {place!a}, expected one without NUL and lone surrogates"
    for call in (
        Datastore.open,
        LiveDatastore.open,
        lambda place: Datastore.open("host:5", cache=place),
    ):
        assert refused(DatastoreNotFoundError, lambda call=call: call(place)) == expected


@pytest.mark.parametrize("kind", ["directory", "pipe", "device"])
@pytest.mark.parametrize("name", [FILE_NAME, "shard-00000.tokens", "shard-00000.suffixes"])
def test_what_is_no_regular_file_is_refused(directory: Path, name: str, kind: str) -> None:
    path = directory / name
    path.unlink()
    make = {
        "directory": path.mkdir,
        "pipe": lambda: os.mkfifo(path),
        "device": lambda: path.symlink_to("/dev/zero"),
    }
    make[kind]()
    kind = "manifest" if name == FILE_NAME else "missing file"
    refused(kind, lambda: check_datastore(directory), f"{path}: file is unreadable (")


def test_symbolic_links_to_files_are_followed(directory: Path, tmp_path: Path) -> None:
    """The cache of the Hugging Face hub consists of such links."""
    linked = tmp_path / "linked"
    linked.mkdir()
    for path in directory.iterdir():
        (linked / path.name).symlink_to(path)
    assert check_datastore(linked).manifest == Manifest.read(directory)
