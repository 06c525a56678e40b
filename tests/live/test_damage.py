"""Damaged and missing files: segments are sorted anew.

A database that is damaged is a named error, never a crash.
"""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rest_store.datastore.header import HEADER_SIZE
from rest_store.errors import RestStoreError, StorageError, TokenizerMismatchError
from rest_store.live import retention
from rest_store.live.documents import Documents
from rest_store.live.export import export
from rest_store.live.live_datastore import LiveDatastore
from tests.shared.live import (
    new_live,
    no_background,
    refresh,
    require_answers,
    small_segments,
    some_document,
)
from tests.shared.models import word_level
from tests.shared.strategies import Document, identity, refused


@pytest.fixture(autouse=True)
def few_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    small_segments(monkeypatch, memtable=40, largest=350)


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    chance = random.Random(0)
    return [some_document(chance, 300) for _ in range(57)] + [
        some_document(chance, 300, 9) for _ in range(3)
    ]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory, documents: list[Document]) -> Path:
    """A directory with three segments in files, and some documents in none."""
    directory = tmp_path_factory.mktemp("pristine") / "live"
    with pytest.MonkeyPatch.context() as patch:
        small_segments(patch, memtable=40, largest=350)
        with new_live(directory) as live:
            for start in (0, 19, 38):
                live.add(documents[start : start + 19])
                live.compact()
            live.add([document[:9] for document in documents[57:]])
            assert live.info().shard_count >= 3
    return directory


@pytest.fixture
def place(pristine: Path, tmp_path: Path) -> Path:
    return shutil.copytree(pristine, tmp_path / "live")


def files(directory: Path, kind: str = "*") -> list[Path]:
    return sorted(directory.glob(f"segment-*.{kind}"))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[HEADER_SIZE] ^= 4
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def swap(path: Path) -> None:
    other = next(file for file in files(path.parent, path.suffix[1:]) if file != path)
    content = other.read_bytes()
    other.write_bytes(path.read_bytes())
    path.write_bytes(content)


@pytest.mark.parametrize("harm", [Path.unlink, truncate, flip, empty, swap])
@pytest.mark.parametrize("kind", ["tokens", "suffixes"])
def test_damaged_segments_are_sorted_anew(
    place: Path, documents: list[Document], harm: Callable[[Path], None], kind: str
) -> None:
    harm(files(place, kind)[0])
    chance = random.Random(1)
    with LiveDatastore.open(place, read_only=True) as reader:
        require_answers(reader, documents, chance)
    with LiveDatastore.open(place) as live, LiveDatastore.open(place, read_only=True) as reader:
        require_answers(live, documents, chance)
        live.add([[7, 8]])
        live.compact()
        refresh(reader)
        require_answers(reader, [*documents, [7, 8]], chance)
        assert live.info().failure is None
        left = {path.stem for path in files(place)}
        assert len(left) == live.info().shard_count
    with LiveDatastore.open(place) as live:
        assert {path.stem for path in files(place)} == left, "nothing was left to mend"


def test_a_reader_that_has_found_a_damaged_segment_does_not_read_it_later(
    place: Path, documents: list[Document], monkeypatch: pytest.MonkeyPatch
) -> None:
    no_background(monkeypatch)
    with LiveDatastore.open(place) as live:
        expected = [live.count(document) for document in documents]
        flip(files(place, "tokens")[0])
        with LiveDatastore.open(place, read_only=True) as reader:
            for number in range(3):
                assert [reader.count(document) for document in documents] == expected
                live.add([[7, 8]])
                refresh(reader)
                assert reader.count([7, 8]) == number + 1


def test_files_of_a_killed_process_are_removed(place: Path, documents: list[Document]) -> None:
    before = files(place)
    for name in ("segment-0.tokens", "segment-0.suffixes", "segment-1.tokens"):
        (place / name).write_bytes(b"half")
    with LiveDatastore.open(place) as live:
        require_answers(live, documents, random.Random(2))
    assert files(place) == before


def test_a_segment_that_is_damaged_while_it_is_open_is_merged_from_the_documents(
    place: Path, documents: list[Document], monkeypatch: pytest.MonkeyPatch
) -> None:
    with LiveDatastore.open(place) as live:
        monkeypatch.setattr(retention, "_MAX_SEGMENT_POSITIONS", 1 << 20)
        flip(files(place, "tokens")[0])
        live.compact()
        require_answers(live, documents, random.Random(3))


@pytest.mark.parametrize("kind", ["tokens", "suffixes"])
def test_a_deletion_from_a_segment_that_is_damaged_while_it_is_open_sorts_the_documents(
    place: Path, documents: list[Document], kind: str
) -> None:
    """Written without the document, the segment would have new checksums, which fit the damage."""
    with LiveDatastore.open(place) as live:
        (id,) = live.add([documents[0]])
        live.compact()
        record = live.backend.segments.all[-1].record
        assert record is not None
        path = place / f"{record.name}.{kind}"
        content = bytearray(path.read_bytes())
        content[-20] ^= 4
        path.write_bytes(content)
        assert live.discard([id]) == 1
        require_answers(live, documents, random.Random(4), 40)


@pytest.mark.parametrize("kind", ["tokens", "suffixes"])
@pytest.mark.parametrize(
    "harm", [flip, lambda path: os.truncate(path, 0)], ids=["flipped", "truncated"]
)
def test_a_segment_that_is_damaged_while_it_is_open_is_not_exported(
    place: Path, documents: list[Document], tmp_path: Path, kind: str, harm: Callable[[Path], None]
) -> None:
    """The export would have new checksums, which fit the wrong bytes."""
    with LiveDatastore.open(place, read_only=True) as live:
        damaged = files(place, kind)[0]
        harm(damaged)
        refused(
            "checksum",
            lambda: export(live, tmp_path / "out"),
            str(damaged),
            "SHA-256 of the payload",
        )
        assert not (tmp_path / "out").exists()
    with LiveDatastore.open(place, read_only=True) as live:
        assert export(live, tmp_path / "out").info().document_count == len(documents)


def test_text_is_not_encoded_by_another_tokenizer(tmp_path: Path) -> None:
    """The other tokenizer has taken the place of the datastore's, as a copy of a directory may."""
    LiveDatastore.open(tmp_path / "live", tokenizer=word_level(100)).close()
    word_level(90).save(str(tmp_path / "live" / "tokenizer.json"))
    with LiveDatastore.open(tmp_path / "live") as live:
        refused(TokenizerMismatchError, lambda: live.add(["w1 w2"]), "one with a vocabulary of 90")
        assert live.add([[1, 2]])


@pytest.mark.parametrize("seed", range(3))
def test_a_damaged_database_is_a_named_error_or_answers(place: Path, seed: int) -> None:
    chance = random.Random(seed)
    path = place / "documents.sqlite"
    pristine = path.read_bytes()
    for _ in range(8):
        content = bytearray(pristine)
        for _ in range(chance.choice([1, 4, 40])):
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        if chance.random() < 0.2:
            del content[chance.randrange(len(content)) :]
        path.write_bytes(content)
        for suffix in ("-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        for read_only in (True, False):
            try:
                with LiveDatastore.open(
                    place, tokenizer=identity(300), read_only=read_only
                ) as live:
                    live.draft([1, 2])
                    if not read_only:
                        live.add([[1, 2]])
                        live.delete(["a"])
                        live.compact()
            except RestStoreError:
                assert not open_files(place), "while the error is held"


def open_files(directory: Path) -> list[str]:
    """Return what this process has open in a directory; nothing where there is no /proc."""
    return [
        path
        for path in map(os.path.realpath, Path("/proc/self/fd").glob("*"))
        if path.startswith(f"{directory}/")
    ]


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE documents SET symbols = 'text'",
        "UPDATE documents SET added = 'yesterday'",
        "UPDATE segments SET name = '../../other' WHERE first = 1",
        "UPDATE segments SET first = last + 1",
        "UPDATE namespaces SET max_tokens = 'many'",
        "UPDATE properties SET tokenizer = '{'",
        "DROP TABLE documents",
    ],
)
def test_values_that_nobody_wrote(place: Path, change: str) -> None:
    database = sqlite3.connect(place / "documents.sqlite")
    database.execute(change)
    database.commit()
    database.close()
    for read_only in (False, True):
        with pytest.raises(StorageError, match=r"documents\.sqlite"):
            LiveDatastore.open(place, read_only=read_only)


def test_the_tokenizer_is_on_disk_before_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    sync, create = os.fsync, Documents.create

    def syncing(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        sync(descriptor)

    def creating(*arguments: Any) -> None:
        assert synced == ["tokenizer.json", "live"]
        create(*arguments)

    monkeypatch.setattr(os, "fsync", syncing)
    monkeypatch.setattr(Documents, "create", creating)
    LiveDatastore.open(tmp_path / "live", tokenizer=word_level(9)).close()
    assert synced


def test_a_directory_whose_creation_was_killed(tmp_path: Path) -> None:
    for name in ("writer.lock", "tokenizer.json"):
        tmp_path.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
        new_live(tmp_path).close()
        shutil.rmtree(tmp_path)
    tmp_path.mkdir()
    with closing(sqlite3.connect(tmp_path / "documents.sqlite")) as database:
        database.execute("PRAGMA journal_mode=WAL")
    with pytest.raises(RestStoreError, match="empty"):
        LiveDatastore.open(tmp_path, read_only=True)
    new_live(tmp_path).close()
