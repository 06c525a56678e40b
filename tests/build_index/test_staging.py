"""The unfinished build on disk: its journal, its lock, and how a datastore comes to its place."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from build_index import staging as module
from build_index.errors import output_errors
from build_index.journal import Completion, Cursor, Journal, TokenizedCounts, TokensRecord, read_journal
from build_index.staging import Staging, final_place, kept_shards
from rest_store.datastore.manifest import ShardRecord
from rest_store.errors import OutputError, ResumeError
from tests.shared.builds import contents

OLD = {"manifest.json": '{"format": "rest-store"}', "shard-00000.tokens": "old", "tokenizer.json": "{}"}
NEW = {"manifest.json": '{"format": "rest-store", "new": 1}', "shard-00000.tokens": "new"}


def fill(directory: Path, files: dict[str, str]) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name).write_text(text)
    return directory


def texts(directory: Path) -> dict[str, str]:
    return {name: data.decode() for name, data in contents(directory).items()}


# --- The journal -----------------------------------------------------------------------------------------------------

CURSOR = Cursor(7, "ab" * 32, 3, 6, (TokenizedCounts(1, 0), TokenizedCounts(0, 2)))
TOKENS = TokensRecord("shard-00000", 12, "cd" * 32, CURSOR)
SHARD = ShardRecord("shard-00000", 12, 10, 2, 288, "cd" * 32, 300, "ef" * 32)
DONE = Completion("01" * 32, {"documents": 6})


def write_journal(path: Path) -> None:
    journal = Journal(path)
    for kind, record in (("plan", {"a": 1}), ("tokens", TOKENS), ("suffixes", SHARD), ("complete", DONE)):
        journal.append(kind, record)
    journal.close()


def test_a_journal_is_read_back(tmp_path):
    path = tmp_path / "journal.jsonl"
    assert read_journal(path) is None
    write_journal(path)
    state = read_journal(path)
    assert state is not None
    assert (state.plan, state.tokens, state.suffixes) == ({"a": 1}, [TOKENS], {"shard-00000": SHARD})
    assert state.completion == DONE


def test_a_journal_cut_short_anywhere_says_what_its_whole_lines_say(tmp_path):
    path = tmp_path / "journal.jsonl"
    write_journal(path)
    data = path.read_bytes()
    ends = [place + 1 for place, byte in enumerate(data) if byte == ord("\n")]
    for size in range(len(data)):
        path.write_bytes(data[:size])
        state = read_journal(path)
        whole = sum(end <= size for end in ends)
        assert (state is None) == (whole == 0)
        if state is not None:
            assert (len(state.tokens), len(state.suffixes)) == (whole >= 2, whole >= 3)
            assert state.completion is None


@pytest.mark.parametrize("damage", [b'{"tok', b"\0\0\0\0\n", b"12\n", b'{"a": 1, "b": 2}\n', b"{}"])
def test_a_journal_goes_on_after_its_last_whole_line(tmp_path, damage):
    path = tmp_path / "journal.jsonl"
    write_journal(path)
    whole = path.read_bytes()
    path.write_bytes(whole + damage)
    journal = Journal(path)
    journal.append("suffixes", SHARD)
    journal.close()
    assert path.read_bytes().startswith(whole + b'{"suffixes"')
    assert len(path.read_bytes().splitlines()) == 5


def test_a_journal_without_a_plan_is_none(tmp_path):
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.append("tokens", TOKENS)
    journal.close()
    assert read_journal(path) is None


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "[1]",
        "5",
        '{"plan": 5}',
        '{"a": {}}',
        '{"tokens": {}}',
        '{"tokens": 3}',
        '{"suffixes": {"a": 1}}',
        "\0" * 99,
    ],
)
def test_a_damaged_line_ends_the_journal(tmp_path, damage):
    path = tmp_path / "journal.jsonl"
    path.write_text(damage + "\n")
    assert read_journal(path) is None
    Journal(path).close()
    write_journal(path)
    whole = path.read_bytes()
    path.write_bytes(whole + damage.encode() + b"\n" + whole)
    state = read_journal(path)
    assert state is not None
    assert len(state.tokens) == 1
    Journal(path).close()
    assert path.read_bytes() == whole


def test_a_line_that_was_only_written_in_part_is_removed(tmp_path):
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.append("plan", {"a": 1})
    size = path.stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, limits[1]))  # stands for a full disk
    try:
        with pytest.raises(OutputError, match=r"journal.jsonl: the datastore cannot be written \(No space left"):
            journal.append("tokens", TOKENS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.stat().st_size == size + 20
    journal.append("tokens", TOKENS)
    journal.close()
    state = read_journal(path)
    assert state is not None
    assert state.tokens == [TOKENS]


# --- Where a datastore may be put ------------------------------------------------------------------------------------


def test_a_new_an_empty_and_a_datastore_directory_are_fine(tmp_path):
    (tmp_path / "empty").mkdir()
    fill(tmp_path / "old", OLD)
    for name in ("new", "empty", "old", "above/new"):
        assert final_place(tmp_path / name) == tmp_path / name


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"notes.txt": ""}, "directory is one with other content ('notes.txt')"),
        ({"manifest.json": '{"name": "an extension of a browser"}'}, "one with other content ('manifest.json')"),
        ({"manifest.json": "not JSON"}, "one with other content ('manifest.json')"),
        ({"manifest.json": "[]"}, "one with other content ('manifest.json')"),
        ({**OLD, "notes.txt": ""}, "a datastore with other files in it ('notes.txt')"),
    ],
)
def test_a_directory_with_anything_else_in_it_is_left_alone(tmp_path, files, found):
    out = fill(tmp_path / "out", files)
    with pytest.raises(OutputError) as error:
        Staging(out)
    assert str(error.value).startswith(f"{out}: ")
    assert found in str(error.value)
    assert texts(tmp_path / "out") == files
    assert list(tmp_path.iterdir()) == [out]


def test_a_file_and_a_mount_point_are_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="directory is a file, expected a new one, an empty one or a datastore"):
        final_place(tmp_path / "file")
    with pytest.raises(OutputError, match="directory is a mount point, which cannot be renamed"):
        final_place(Path("/"))
    with pytest.raises(OutputError, match=r"the datastore cannot be written \(Not a directory\)"):
        Staging(tmp_path / "file" / "below")


def test_the_root_directory_is_refused():
    assert kept_shards(Path("/")) == 0
    with pytest.raises(OutputError, match=r"^/: directory is (a mount point|one with other content)"):
        final_place(Path("/"))


def test_a_link_is_followed(tmp_path):
    old = fill(tmp_path / "disk" / "old", OLD)
    (tmp_path / "link").symlink_to(old)
    with Staging(tmp_path / "link") as staging:
        assert staging.out == old
        assert staging.path.parent == tmp_path / "disk"
        staging.start()
        fill(staging.datastore, NEW)
        staging.put_in_place()
    assert (tmp_path / "link").is_symlink()
    assert texts(tmp_path / "link") == NEW


# --- The lock --------------------------------------------------------------------------------------------------------


def test_only_one_build_at_a_time(tmp_path):
    message = r"\.ds\.building: another process is building this datastore"
    with Staging(tmp_path / "ds") as staging:
        staging.start()
        with pytest.raises(OutputError, match=message):
            Staging(tmp_path / "ds")
        script = f"from build_index.staging import *\nStaging(Path({str(tmp_path / 'ds')!r}))"
        other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert other.returncode == 1
        assert "another process is building this datastore" in other.stderr
        assert staging.datastore.is_dir()
    with Staging(tmp_path / "ds"):
        pass


def test_a_directory_that_was_renamed_before_it_was_locked_is_not_taken(tmp_path, monkeypatch):
    """Another build finishes between the opening of the directory and the lock."""
    lock = module.fcntl.flock
    calls = []

    def flock(descriptor, operation):
        if not calls:
            (tmp_path / ".ds.building").rmdir()
        calls.append(operation)
        lock(descriptor, operation)

    monkeypatch.setattr(module.fcntl, "flock", flock)
    with Staging(tmp_path / "ds") as staging:
        assert staging.path.is_dir()
    assert len(calls) == 2


def test_a_file_system_without_locks_will_do(tmp_path, monkeypatch):
    def flock(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(module.fcntl, "flock", flock)
    with Staging(tmp_path / "ds") as staging:
        staging.start()
        assert staging.datastore.is_dir()


# --- Into place ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", ["nothing", "an empty directory", "a datastore"])
@pytest.mark.parametrize("exchange", [True, False])
def test_a_datastore_is_put_in_place(tmp_path, monkeypatch, before, exchange):
    out = tmp_path / "ds"
    if before != "nothing":
        fill(out, OLD if before == "a datastore" else {})
    if not exchange:
        monkeypatch.setattr(module, "exchange_directories", lambda first, second: False)
    with Staging(out) as staging:
        staging.start()
        fill(staging.datastore, NEW)
        assert texts(out) == (OLD if before == "a datastore" else {})
        staging.put_in_place()
    assert texts(out) == NEW
    assert list(tmp_path.iterdir()) == [out]


def test_directories_are_exchanged_where_that_is_supported(tmp_path, monkeypatch):
    first, second = fill(tmp_path / "a", OLD), fill(tmp_path / "b", NEW)
    assert module.exchange_directories(first, second)
    assert (texts(first), texts(second)) == (NEW, OLD)
    with pytest.raises(FileNotFoundError):
        module.exchange_directories(first, tmp_path / "absent")
    monkeypatch.setattr(module, "RENAME_EXCHANGE", 1 << 20)  # a flag that no kernel knows
    assert not module.exchange_directories(first, second)
    monkeypatch.setattr(module.ctypes, "CDLL", lambda *_, **__: object())  # an old C library
    assert not module.exchange_directories(first, second)


def test_a_datastore_taken_away_before_a_crash_is_brought_back(tmp_path):
    """Where directories cannot be exchanged, a build may be killed between its two renames."""
    replaced = fill(tmp_path / ".ds.building" / "replaced", OLD)
    with Staging(tmp_path / "ds") as staging:
        assert texts(staging.out) == OLD
        assert not replaced.exists()


def test_a_directory_that_appeared_meanwhile_is_left_alone(tmp_path):
    with Staging(tmp_path / "ds") as staging:
        staging.start()
        fill(staging.datastore, NEW)
        fill(tmp_path / "ds", {"notes.txt": "mine"})
        with pytest.raises(OutputError, match=r"one with other content \('notes\.txt'\)"):
            staging.put_in_place()
    assert texts(tmp_path / "ds") == {"notes.txt": "mine"}
    assert texts(tmp_path / ".ds.building" / "datastore") == NEW


def test_starting_removes_what_an_earlier_build_left(tmp_path):
    fill(tmp_path / ".ds.building" / "datastore", NEW)
    write_journal(tmp_path / ".ds.building" / "journal.jsonl")
    assert kept_shards(tmp_path / "ds") == 1
    with Staging(tmp_path / "ds") as staging:
        staging.start()
        assert texts(staging.path) == {}
    assert kept_shards(tmp_path / "ds") == 0


def test_nothing_to_resume(tmp_path):
    with Staging(tmp_path / "ds") as staging:
        message = r"ds: unfinished build is absent, expected one that was interrupted; build without --resume"
        with pytest.raises(ResumeError, match=message):
            staging.unfinished()
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_an_output_error(tmp_path):
    message = r"ds: the datastore cannot be written \(No space left on device\)"
    with pytest.raises(OutputError, match=message), output_errors(tmp_path / "ds"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(ResumeError), output_errors(tmp_path):
        raise ResumeError("ours")


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write anywhere")
def test_a_place_without_write_permission(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(OutputError, match="Permission denied"):
        Staging(tmp_path / "ds")


def test_a_new_build_that_is_killed_while_it_clears_an_unfinished_one_leaves_nothing_to_resume(tmp_path, monkeypatch):
    with Staging(tmp_path / "ds") as unfinished:
        unfinished.start()
        (unfinished.path / "a-file").write_bytes(b"before the journal by name")
        unfinished.journal_path.write_bytes(b"{}\n")
    removed = []

    def remove_one(entry):
        removed.append(entry.name)
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_remove", remove_one)
    with pytest.raises(KeyboardInterrupt), Staging(tmp_path / "ds") as new:
        new.start()
    assert removed == [unfinished.journal_path.name]
