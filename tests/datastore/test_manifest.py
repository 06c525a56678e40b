"""`manifest.json`: its fields, and the error for each kind of fault."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rest_store.datastore.datastore import Datastore
from rest_store.datastore.manifest import FILE_NAME, Manifest
from rest_store.errors import DatastoreNotFoundError, FormatVersionError, ManifestError
from tests.shared.strategies import Corpus, edit_manifest, identity, refused, write_datastore

TWO_SHARDS = Corpus(300, [[[1, 2, 3], [4]], [[5, 6]]])


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_datastore(tmp_path, TWO_SHARDS)


def test_what_is_written_is_read_back(directory: Path) -> None:
    manifest = Manifest.read(directory)
    assert manifest.tokenizer == identity(300)
    assert (manifest.token_count, manifest.document_count) == (6, 3)
    assert [record.name for record in manifest.shards] == ["shard-00000", "shard-00001"]
    assert manifest.to_json() == (directory / FILE_NAME).read_text(encoding="utf-8")


def test_unknown_fields_are_ignored(directory: Path) -> None:
    before = Manifest.read(directory)
    edit_manifest(directory, lambda fields: fields.update(later={"a": [1]}))
    edit_manifest(directory, lambda fields: fields["shards"][0].update(later=1))
    edit_manifest(directory, lambda fields: fields["tokenizer"].update(later=1))
    assert Manifest.read(directory) == before


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"a":' * 100_000, "not JSON"),
        (b'{"format": ' + b"9" * 5_000 + b"}", "not JSON"),
        (b"\xff\xfe{\0}\0", "not UTF-8"),
        (b"[]", "list"),
        (b"null", "NoneType"),
        (b'"rest-store"', "str"),
        (b"{}", "None"),
        (b'{"format": "zip"}', "'zip'"),
    ],
    ids=lambda value: repr(value[:12]),
)
def test_content_that_is_not_a_manifest(directory: Path, content: bytes, found: str) -> None:
    (directory / FILE_NAME).write_bytes(content)
    expected = {"not JSON": "a JSON object", "not UTF-8": "UTF-8"}.get(found, "'rest-store'")
    refused(ManifestError, lambda: Datastore.open(directory), FILE_NAME, found, f"expected {expected}")


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_another_version(directory: Path, version: object) -> None:
    edit_manifest(directory, lambda fields: fields.update(format_version=version))
    message = refused(FormatVersionError, lambda: Datastore.open(directory), FILE_NAME)
    assert f"format version is {version}, expected 1" in message


WRONG_FIELDS: list[tuple[tuple[str | int, ...], Any, str, str]] = [
    # path of the field, value, what is found, what is expected
    (("created_by",), 1, "int", "str"),
    (("created_by",), ..., "absent", "str"),
    (("corpora",), {}, "dict", "list"),
    (("corpora",), [1], "not a list of objects", "a list of objects"),
    (("options",), [], "list", "dict"),
    (("token_count",), "6", "str", "int"),
    (("token_count",), True, "bool", "int"),
    (("token_count",), 7, "7", "6, the sum over shards"),
    (("document_count",), 2.0, "float", "int"),
    (("document_count",), 1, "1", "3, the sum over shards"),
    (("shards",), None, "NoneType", "list"),
    (("shards",), [], "0", "at least 1"),
    (("shards", 0), "shard-00000", "str", "an object"),
    (("shards", 0, "position_count"), ..., "absent", "int"),
    (("shards", 0, "tokens_size"), "264", "str", "int"),
    (("shards", 0, "tokens_sha256"), 0, "int", "str"),
    (("shards", 0, "name"), "", "''", "a file name"),
    (("shards", 0, "name"), "../shard-00000", "'../shard-00000'", "a file name"),
    (("shards", 0, "name"), "a\\b", "'a\\\\b'", "a file name"),
    (("shards", 0, "name"), "..", "'..'", "a file name"),
    (("shards", 0, "name"), "/etc/passwd", "'/etc/passwd'", "a file name"),
    (("shards", 0, "name"), "shard\0", "'shard\\x00'", "a file name"),
    (("shards", 0, "name"), "\ud800", "'\\ud800'", "a file name"),
    (("shards", 0, "name"), "shard-00001", "1 for 2 shards", "one for each shard"),
    (("tokenizer",), "gpt2", "'gpt2'", "an object"),
    (("tokenizer", "name"), None, "None", "a string"),
    (("tokenizer", "fingerprint"), "md5:00", "'md5:00'", "'sha256:' and 64 hexadecimal digits"),
    (("tokenizer", "vocabulary_size"), 0, "0", "a positive integer"),
    (("tokenizer", "vocabulary_size"), 2**24, str(2**24), f"1..{2**24 - 1}"),
    (("tokenizer", "added_tokens"), {"<s>": 300}, "{'<s>': 300}", "ids 0..299"),
    (("tokenizer", "special_tokens"), {"<s>": 1}, "{'<s>': 1}", "a subset of added_tokens"),
]


@pytest.mark.parametrize(("path", "value", "found", "expected"), WRONG_FIELDS, ids=lambda value: str(value)[:30])
def test_a_wrong_field(directory: Path, path: tuple[str | int, ...], value: object, found: str, expected: str) -> None:
    def change(fields: Any) -> None:
        *above, last = path
        for step in above:
            fields = fields[step]
        if value is ...:
            del fields[last]
        else:
            fields[last] = value

    edit_manifest(directory, change)
    message = refused(ManifestError, lambda: Datastore.open(directory), FILE_NAME)
    assert f"is {found}, expected" in message
    assert expected in message.split(", expected ")[1]


@pytest.mark.parametrize("place", ["nowhere", "a file", "an empty directory", "inside a file"])
def test_no_datastore_at_the_path(tmp_path: Path, place: str) -> None:
    path, found = tmp_path / "ds", "no such directory"
    if place == "a file":
        path.write_text("{}", encoding="utf-8")
    elif place == "an empty directory":
        path.mkdir()
        found = "no manifest.json in it"
    elif place == "inside a file":
        (tmp_path / "file").touch()
        path = tmp_path / "file" / "ds"
    message = refused(DatastoreNotFoundError, lambda: Datastore.open(path), str(path))
    assert f"is absent ({found}), expected a built one" in message


def test_a_directory_in_place_of_the_manifest(directory: Path) -> None:
    """It cannot be read, as a file without permission, but by any user."""
    (directory / FILE_NAME).unlink()
    (directory / FILE_NAME).mkdir()
    refused(ManifestError, lambda: Datastore.open(directory), "unreadable (Is a directory)", "expected a readable file")


def test_equal_manifests_have_equal_text(directory: Path) -> None:
    fields = json.loads((directory / FILE_NAME).read_text(encoding="utf-8"))
    (directory / FILE_NAME).write_text(json.dumps(dict(reversed(fields.items()))), encoding="utf-8")
    assert Manifest.read(directory).to_json() == Manifest.read(write_datastore(directory, TWO_SHARDS)).to_json()
