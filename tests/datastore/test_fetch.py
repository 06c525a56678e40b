"""Copies of datastores that lie elsewhere: complete or absent, whatever the place sends."""

from __future__ import annotations

import errno
import hashlib
import multiprocessing
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rest_store.datastore import fetch as fetching
from rest_store.datastore.datastore import Datastore
from rest_store.datastore.fetch import fetch
from rest_store.datastore.file_lock import take_lock
from rest_store.datastore.manifest import FILE_NAME, TOKENIZER_FILE_NAME, Manifest
from rest_store.errors import (
    AuthenticationError,
    DatastoreFormatError,
    FetchError,
    ServiceUnavailableError,
)
from rest_store.service.client import service_files
from tests.shared.builds import contents
from tests.shared.strategies import Corpus, write_datastore

PIECE = 100  # bytes
TOKENIZER = b"{}"


def write_source(directory: Path, token: int = 1) -> Path:
    """A datastore of two shards, with a tokenizer."""
    write_datastore(directory, Corpus(300, [[[token, 2, 3] * 90], [[5, 6, 7] * 80]]))
    (directory / TOKENIZER_FILE_NAME).write_bytes(TOKENIZER)
    manifest = replace(
        Manifest.read(directory), tokenizer_sha256=hashlib.sha256(TOKENIZER).hexdigest()
    )
    (directory / FILE_NAME).write_text(manifest.to_json(), encoding="utf-8")
    return directory


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_source(tmp_path_factory.mktemp("source") / "ds")


class Reader:
    """Reads the files of a directory, as the scripts say.

    Attributes:
        pieces: what is sent, before it breaks off; None: all.
        replaced: content of files that differs from the directory's.
        reads: file and offset of each read.
        log: file that gets a line for each read.
        error: what is raised instead of the manifest.
    """

    location = "far:1/ds"
    build = ""

    def __init__(
        self, directory: Path, *, pieces: int | None = None, log: Path | None = None
    ) -> None:
        self.directory = directory
        self.pieces = pieces
        self.replaced: dict[str, bytes] = {}
        self.reads: list[tuple[str, int]] = []
        self.log = log
        self.error: Exception | None = None

    def manifest(self) -> bytes:
        if self.error is not None:
            raise self.error
        return self.content(FILE_NAME)

    def content(self, name: str) -> bytes:
        return self.replaced.get(name) or (self.directory / name).read_bytes()

    def read(self, name: str, offset: int) -> Iterator[bytes]:
        if name == FILE_NAME:
            yield self.manifest()
            return
        self.reads.append((name, offset))
        if self.log is not None:
            with self.log.open("a") as file:
                file.write(f"{name}\n")
        content = self.content(name)
        for start in range(offset, len(content), PIECE):
            if self.pieces is not None:
                if self.pieces == 0:
                    raise ServiceUnavailableError("far:1: connection reset")
                self.pieces -= 1
            yield content[start : start + PIECE]


def partial(cache: Path) -> dict[str, bytes]:
    """Return the files of an incomplete copy; there is no complete one."""
    (temporary,) = (cache / "frozen").glob("*.tmp")
    assert not temporary.with_suffix("").exists()
    return contents(temporary)


def test_a_copy_is_the_same_datastore_and_made_once(source: Path, tmp_path: Path) -> None:
    reader = Reader(source)
    copy = fetch(reader, tmp_path)
    assert contents(copy) == contents(source)
    assert len(reader.reads) == 5
    assert fetch(reader, tmp_path) == copy
    assert len(reader.reads) == 5
    with Datastore.open(source) as here, Datastore.open(copy) as there:
        assert there.draft([1, 2]).tokens.tolist() == here.draft([1, 2]).tokens.tolist()


def test_a_location_is_opened_as_a_copy(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetched(location: str, cache: Path, **access: Any) -> Path:
        assert (location, access) == ("far:1/ds", {"token": "secret", "tls": True})
        return fetch(Reader(source), cache)

    monkeypatch.setattr(service_files, "fetched", fetched)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "default"))
    for cache, place in (
        (None, tmp_path / "default" / "rest-store"),
        (tmp_path / "other", tmp_path / "other"),
    ):
        with Datastore.open(
            "far:1/ds", cache=cache, token="secret", tls=True, partition="1/2"
        ) as store:
            assert store.path.parent.parent == place
            assert store.info().shard_count == 1


@pytest.mark.parametrize("pieces", [0, 1, 3, 6, 9, 14])
def test_what_arrived_is_not_asked_for_again(source: Path, tmp_path: Path, pieces: int) -> None:
    reader = Reader(source, pieces=pieces)
    with pytest.raises(ServiceUnavailableError, match="connection reset"):
        fetch(reader, tmp_path)
    assert sum(map(len, partial(tmp_path).values())) >= (pieces - 1) * PIECE
    have = {name: len(content) for name, content in partial(tmp_path).items()}
    again = Reader(source)
    assert contents(fetch(again, tmp_path)) == contents(source)
    assert all(
        offset == have.get(name, 0) for name, offset in again.reads if name != TOKENIZER_FILE_NAME
    )
    assert not any((tmp_path / "frozen").glob("*.tmp"))


def test_a_connection_that_breaks_off_now_and_then_is_taken_up(
    source: Path, tmp_path: Path
) -> None:
    class Broken(Reader):
        def read(self, name: str, offset: int) -> Iterator[bytes]:
            self.pieces = 2
            return super().read(name, offset)

    reader = Broken(source)
    assert contents(fetch(reader, tmp_path)) == contents(source)
    assert len(reader.reads) > 8


@pytest.mark.parametrize("change", ["bit", "header", "longer", "endless", "shorter", "other build"])
def test_what_is_not_as_the_manifest_says_is_refused_and_fetched_again(
    source: Path, tmp_path: Path, change: str
) -> None:
    name = "shard-00001.suffixes"
    assert (source / name).exists()
    content = (source / name).read_bytes()
    other = write_source(tmp_path / "other", token=9)
    reader = Reader(source)
    reader.replaced[name] = {
        "bit": content[:-20] + bytes([content[-20] ^ 1]) + content[-19:],
        "header": bytes([content[0] ^ 1]) + content[1:],
        "longer": content + b"\0",
        "endless": content + bytes(1 << 22),
        "shorter": content[:-PIECE],
        "other build": (other / "shard-00000.suffixes")
        .read_bytes()
        .ljust(len(content))[: len(content)],
    }[change]
    with pytest.raises(
        FetchError, match=r"^far:1/ds: .*(those of the manifest|size of shard-00001|ends after)"
    ):
        fetch(reader, tmp_path / "cache")
    left = partial(tmp_path / "cache")
    assert len(left.get(name, b"")) < len(content)
    reader.replaced.clear()
    assert contents(fetch(reader, tmp_path / "cache")) == contents(source)


def test_another_tokenizer_is_refused(source: Path, tmp_path: Path) -> None:
    reader = Reader(source)
    reader.replaced[TOKENIZER_FILE_NAME] = b"{ }"
    with pytest.raises(FetchError, match=r"^far:1/ds: SHA-256 of tokenizer.json is "):
        fetch(reader, tmp_path)
    assert partial(tmp_path)


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (b"<html>", "content is not JSON"),
        (b"{}", "format is"),
        (bytes(1 << 26), "size is more than"),
    ],
)
def test_a_manifest_that_is_none_leaves_nothing(
    source: Path, tmp_path: Path, manifest: bytes, message: str
) -> None:
    reader = Reader(source)
    reader.replaced[FILE_NAME] = manifest
    with pytest.raises(DatastoreFormatError, match=rf"^far:1/ds: {message}"):
        fetch(reader, tmp_path)
    assert contents(tmp_path) == {}


def test_names_that_lead_out_of_the_cache_are_refused(source: Path, tmp_path: Path) -> None:
    manifest = Manifest.read(source)
    shards = (replace(manifest.shards[0], name="../../escaped"),)
    reader = Reader(source)
    reader.replaced[FILE_NAME] = replace(manifest, shards=shards).to_json().encode()
    with pytest.raises(DatastoreFormatError, match=r"shard name is '\.\./\.\./escaped'"):
        fetch(reader, tmp_path)
    assert reader.reads == []


def test_builds_lie_side_by_side(source: Path, tmp_path: Path) -> None:
    """When a service is reloaded while it is read, the new copy is another directory."""
    with pytest.raises(ServiceUnavailableError):
        fetch(Reader(source, pieces=7), tmp_path / "cache")
    other = write_source(tmp_path / "other", token=9)
    new = fetch(Reader(other), tmp_path / "cache")
    assert contents(new) == contents(other)
    old = fetch(Reader(source), tmp_path / "cache")
    assert contents(old) == contents(source)
    assert contents(new) == contents(other)
    assert old != new


def test_a_place_that_is_away_costs_freshness_alone(
    source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reader = Reader(source)
    reader.error = ServiceUnavailableError("far:1: nobody answers")
    with pytest.raises(ServiceUnavailableError, match="nobody answers"):
        fetch(reader, tmp_path / "cache")
    old = fetch(Reader(source), tmp_path / "cache")
    new = fetch(Reader(write_source(tmp_path / "other", token=9)), tmp_path / "cache")
    assert old != new
    assert fetch(reader, tmp_path / "cache") == new
    assert (
        "far:1/ds cannot be reached; opened as it was before (far:1: nobody answers)" in caplog.text
    )
    reader.location = "far:1/never"
    with pytest.raises(ServiceUnavailableError):
        fetch(reader, tmp_path / "cache")
    reader.location = "far:1/ds"
    reader.error = AuthenticationError("far:1: the token is wrong")
    with pytest.raises(AuthenticationError):
        fetch(reader, tmp_path / "cache")


def test_a_disk_that_is_full_or_cannot_be_written_is_named_and_what_arrived_is_kept(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(fetching, "sync", full)
    with pytest.raises(
        FetchError, match=r"^far:1/ds: no copy can be written to .* \(No space left on device\)"
    ):
        fetch(Reader(source), tmp_path)
    monkeypatch.undo()
    assert partial(tmp_path)
    assert contents(fetch(Reader(source), tmp_path)) == contents(source)
    (tmp_path / "file").touch()
    with pytest.raises(
        FetchError, match=r"^far:1/ds: no copy can be written to .*file \(Not a directory\)"
    ):
        fetch(Reader(source), tmp_path / "file")


def test_what_the_disk_has_no_room_for_is_not_begun(source: Path, tmp_path: Path) -> None:
    manifest = Manifest.read(source)
    shards = (manifest.shards[0], replace(manifest.shards[1], tokens_size=10**18))
    reader = Reader(source)
    reader.replaced[FILE_NAME] = replace(manifest, shards=shards).to_json().encode()
    with pytest.raises(
        FetchError,
        match=r"^far:1/ds: no copy can be written to .* still to come, and [\d,]+ are free\)",
    ):
        fetch(reader, tmp_path)
    assert reader.reads == []


def _fetch_in_process(source: Path, cache: Path) -> None:
    fetch(Reader(source, log=cache / "log"), cache)


def test_two_processes_fetch_once(source: Path, tmp_path: Path) -> None:
    (tmp_path / "frozen").mkdir()
    build = hashlib.sha256((source / FILE_NAME).read_bytes()).hexdigest()
    release = take_lock(tmp_path / "frozen" / f"{build}.lock")
    assert release is not None
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=_fetch_in_process, args=(source, tmp_path)) for _ in range(3)
    ]
    for process in processes:
        process.start()
    release()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert sorted((tmp_path / "log").read_text().split()) == sorted(
        path.name for path in source.iterdir() if path.name != FILE_NAME
    )
    assert contents(tmp_path / "frozen" / build) == contents(source)
