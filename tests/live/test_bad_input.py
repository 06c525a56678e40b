"""Documents, ids, limits and directories that are refused.

Each has one named error and changes nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rest_store.errors import (
    ArgumentError,
    DatastoreFormatError,
    DatastoreNotFoundError,
    DocumentError,
    QueryError,
    RestStoreError,
    StorageError,
    TokenizerLoadError,
    TokenizerMismatchError,
    WriterError,
)
from rest_store.live.directory import is_live
from rest_store.live.live_datastore import LiveDatastore
from rest_store.live.open_store import open_store
from tests.shared.live import file_bytes, new_live
from tests.shared.strategies import ONE_TO_NINE, identity, refused, write_datastore

DOCUMENTS: dict[str, tuple[Any, type[RestStoreError], str]] = {
    "no token": ([], DocumentError, "document 1 is empty, expected at least one token"),
    "two rows": (
        [[1, 2], [3, 4]],
        DocumentError,
        "document 1 is 2-D int64, expected 1-D integers or text",
    ),
    "ragged": ([[1, 2], [3]], DocumentError, "document 1 is list, expected 1-D integers or text"),
    "floats": (
        [1.0, 2.0],
        DocumentError,
        "document 1 is 1-D float64, expected 1-D integers or text",
    ),
    "nothing": (None, DocumentError, "document 1 is NoneType, expected 1-D integers or text"),
    "negative": ([1, -1], QueryError, "token id in document 1 is -1, expected 0..299"),
    "over the vocabulary": ([1, 300], QueryError, "token id in document 1 is 300, expected 0..299"),
    "the separator": ([65_535], QueryError, "token id in document 1 is 65535, expected 0..299"),
    "enormous": (
        np.zeros(2**24 + 1, np.uint16),
        DocumentError,
        f"document 1 has {2**24 + 1} tokens, expected at most {2**24}",
    ),
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> LiveDatastore:
    """A live datastore with one document, which nothing may change."""
    live = new_live(tmp_path_factory.mktemp("shared") / "live")
    live.add([[1, 2]], ["kept"])
    return live


def require_unchanged(live: LiveDatastore) -> None:
    info = live.info()
    assert (info.document_count, info.token_count, live.count([1, 2]), info.failure) == (
        1,
        2,
        1,
        None,
    )


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_a_bad_document(shared: LiveDatastore, kind: str) -> None:
    document, error, message = DOCUMENTS[kind]
    assert refused(error, lambda: shared.add([[1, 2], document, [3]])) == f"add: {message}"
    require_unchanged(shared)


@pytest.mark.parametrize("documents", ["text", b"bytes", 5, None, {1: 2}, iter([[1]]), np.array(5)])
def test_what_is_no_sequence_of_documents(shared: LiveDatastore, documents: Any) -> None:
    refused(DocumentError, lambda: shared.add(documents), "add: documents is a")
    require_unchanged(shared)


def test_text_needs_a_tokenizer(shared: LiveDatastore) -> None:
    refused(TokenizerLoadError, lambda: shared.add(["text"]), "add token ids instead")
    require_unchanged(shared)


@pytest.mark.parametrize("id", ["", "a" * 257, "a\0b", "\ud800", 5], ids=repr)
@pytest.mark.parametrize("where", ["add", "delete"])
def test_a_hostile_id(shared: LiveDatastore, where: str, id: Any) -> None:
    calls: dict[str, Callable[[], object]] = {
        "add": lambda: shared.add([[1, 2], [3]], ["other", id]),
        "delete": lambda: shared.delete(["kept", id]),
    }
    message = refused(DocumentError, calls[where], f"{where}: an id is")
    assert message.endswith("expected 1..256 Unicode characters, none of them NUL")
    assert len(message) < 200
    require_unchanged(shared)


@pytest.mark.parametrize("ids", [["a"], ["a", "b", "c"], "ab", b"ab", {"a": 1, "b": 2}, 5])
def test_ids_that_are_not_one_for_each_document(shared: LiveDatastore, ids: Any) -> None:
    refused(DocumentError, lambda: shared.add([[1, 2], [3]], ids), "add: ", "ids is ")
    require_unchanged(shared)


@pytest.mark.parametrize(
    ("limit", "value"),
    [
        *(("max_tokens", value) for value in (0, -1, 1.5, "1", 2**70)),
        *(
            ("max_age", value)
            for value in (0, -1.0, float("nan"), float("inf"), 10**400, "1", True)
        ),
    ],
)
def test_bad_limits(tmp_path: Path, limit: str, value: Any) -> None:
    refused(ArgumentError, lambda: new_live(tmp_path / "live", **{limit: value}), limit)
    assert not (tmp_path / "live").exists()


def test_a_document_larger_than_what_is_kept(tmp_path: Path) -> None:
    with new_live(tmp_path / "live", max_tokens=10) as live:
        live.add([[1] * 10])
        refused(DocumentError, lambda: live.add([[1] * 11]), "11 tokens, expected at most 10")
        assert live.info().token_count == 10


# --- Directories ----------------------------------------------------------------------------------


def require_refused(
    error: type[RestStoreError], directory: Path, *fragments: str, **options: Any
) -> None:
    """Opening for writing and for reading is refused, and changes nothing."""
    before = file_bytes(directory) if directory.is_dir() else b""
    for read_only in (False, True):
        refused(
            error,
            lambda read_only=read_only: LiveDatastore.open(
                directory, read_only=read_only, **options
            ),
            *fragments,
        )
    assert (file_bytes(directory) if directory.is_dir() else b"") == before


def test_a_second_writer(tmp_path: Path) -> None:
    with new_live(tmp_path / "live") as live:
        live.add([[1, 2]])
        refused(
            WriterError, lambda: LiveDatastore.open(tmp_path / "live"), "the writer's lock is taken"
        )
        with LiveDatastore.open(tmp_path / "live", read_only=True) as reader:
            changes: list[Callable[[], object]] = [
                lambda: reader.add([[1]]),
                lambda: reader.delete(["a"]),
                reader.compact,
            ]
            for change in changes:
                refused(WriterError, change, "opened for reading, expected opened for writing")
            assert reader.count([1, 2]) == 1
    LiveDatastore.open(tmp_path / "live").close()


def test_another_tokenizer(tmp_path: Path) -> None:
    new_live(tmp_path / "live").close()
    for read_only in (False, True):
        with pytest.raises(TokenizerMismatchError):
            LiveDatastore.open(tmp_path / "live", tokenizer=identity(301), read_only=read_only)


def test_directories_of_something_else(tmp_path: Path) -> None:
    for name in ("frozen", "letters", "empty"):
        (tmp_path / name).mkdir()
    write_datastore(tmp_path / "frozen", ONE_TO_NINE)
    require_refused(
        DatastoreFormatError,
        tmp_path / "frozen",
        "datastore is a frozen one",
        tokenizer=identity(300),
    )
    (tmp_path / "letters" / "letter.txt").write_text("Dear")
    require_refused(
        DatastoreFormatError,
        tmp_path / "letters",
        "this is not a live datastore, expected one or an empty directory",
        tokenizer=identity(300),
    )
    require_refused(DatastoreNotFoundError, tmp_path / "absent", "there is no live datastore")
    assert not (tmp_path / "absent").exists()
    require_refused(DatastoreNotFoundError, tmp_path / "empty", "there is no live datastore")
    with pytest.raises(StorageError, match=r"the directory cannot be read .Not a directory."):
        LiveDatastore.open(tmp_path / "letters" / "letter.txt", tokenizer=identity(3))


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rest_store.datastore import file_lock

    def no_locks(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(file_lock.fcntl, "flock", no_locks)
    with pytest.raises(StorageError, match=r"has no locks: No locks available"):
        new_live(tmp_path / "live")


@pytest.mark.parametrize(("version", "application"), [(3, 0x52535430), (0, 0), (1, 5)])
def test_a_database_of_another_release_or_program(
    tmp_path: Path, version: int, application: int
) -> None:
    database = sqlite3.connect(tmp_path / "documents.sqlite")
    database.execute("CREATE TABLE things (name)")
    database.execute(f"PRAGMA user_version={version}")
    database.execute(f"PRAGMA application_id={application}")
    database.close()
    require_refused(
        DatastoreFormatError,
        tmp_path,
        f"format version is {version} (of {application:#x})",
        tokenizer=identity(3),
    )


def test_a_writer_upgrades_a_database_of_version_1(tmp_path: Path) -> None:
    with new_live(tmp_path / "live") as store:
        store.add([[1, 2, 1]])
        known = store.tokenizer
    database = sqlite3.connect(tmp_path / "live/documents.sqlite")
    database.execute("ALTER TABLE properties DROP COLUMN shared_after")
    database.execute("PRAGMA user_version=1")
    database.close()
    with pytest.raises(DatastoreFormatError, match=r"version is 1 .* expected 2 .* a writer"):
        LiveDatastore.open(tmp_path / "live", tokenizer=known, read_only=True)
    with LiveDatastore.open(tmp_path / "live", tokenizer=known) as store:
        assert [document.tokens.tolist() for document in store.documents()] == [[1, 2, 1]]
        assert store.info().shared_after == 1
        assert store.count([1, 2]) == 1
    LiveDatastore.open(tmp_path / "live", tokenizer=known, read_only=True).close()


def test_what_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "documents.sqlite").write_bytes(b"no database" * 1000)
    for read_only in (False, True):
        with pytest.raises(StorageError, match="documents cannot be opened"):
            LiveDatastore.open(tmp_path, tokenizer=identity(3), read_only=read_only)


def test_a_directory_that_cannot_be_looked_at(tmp_path: Path) -> None:
    """A name that is too long stands for a directory of another user: root may read all."""
    place = tmp_path / ("x" * 300)
    assert not is_live(place)
    for options in ({"read_only": True}, {"tokenizer": identity(3)}):
        with pytest.raises(StorageError, match=r"cannot be read .File name too long."):
            LiveDatastore.open(place, **options)
    with pytest.raises(DatastoreFormatError):
        open_store(place)


def test_a_directory_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", read_only)
    with pytest.raises(StorageError, match=r"cannot be written .Read-only file system."):
        new_live(tmp_path / "new")


def test_numbers_of_numpy_are_stored_as_numbers(tmp_path: Path) -> None:
    """SQLite would store the bytes of a number of numpy."""
    retention: dict[str, Any] = {"max_tokens": np.int64(1000), "max_age": np.float32(60)}
    new_live(tmp_path / "live", **retention).close()
    with LiveDatastore.open(tmp_path / "live") as live:
        assert (live.info().max_tokens, live.info().max_age) == (1000, 60.0)
