"""The unfinished build on disk: its lock, and how a datastore comes to its place."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from build_index import staging as module
from build_index.staging import Staging, final_place, finished_shards
from rest_store.datastore.check import check_datastore
from rest_store.errors import OutputError
from tests.shared.builds import build_here, command, contents, run_build, write_jsonl
from tests.shared.corpora import write_files
from tests.shared.live import until

OLD = {
    "manifest.json": '{"format": "rest-store"}',
    "shard-00000.tokens": "old",
    "tokenizer.json": "{}",
}
NEW = {"manifest.json": '{"format": "rest-store", "new": 1}', "shard-00000.tokens": "new"}


def texts(directory: Path) -> dict[str, str]:
    return {name: data.decode() for name, data in contents(directory).items()}


# --- Where a datastore may be put -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"notes.txt": ""}, "directory is one with other content ('notes.txt')"),
        (
            {"manifest.json": '{"name": "an extension of a browser"}'},
            "one with other content ('manifest.json')",
        ),
        ({"manifest.json": "not JSON"}, "one with other content ('manifest.json')"),
        ({"manifest.json": "[]"}, "one with other content ('manifest.json')"),
        ({**OLD, "notes.txt": ""}, "a datastore with other files in it ('notes.txt')"),
    ],
)
def test_a_directory_with_anything_else_in_it_is_left_alone(tmp_path, files, problem):
    out = write_files(tmp_path / "out", files)
    with pytest.raises(OutputError) as error:
        Staging(out)
    assert str(error.value).startswith(f"{out}: ")
    assert problem in str(error.value)
    assert texts(tmp_path / "out") == files
    assert list(tmp_path.iterdir()) == [out]


def test_a_file_and_a_mount_point_are_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        OutputError, match="directory is a file, expected a new one, an empty one or a datastore"
    ):
        final_place(tmp_path / "file")
    with pytest.raises(OutputError, match="directory is a mount point, which cannot be renamed"):
        final_place(Path("/"))
    with pytest.raises(OutputError, match=r"the datastore cannot be written \(Not a directory\)"):
        Staging(tmp_path / "file" / "below")


def test_a_link_is_followed(tmp_path):
    old = write_files(tmp_path / "disk" / "old", OLD)
    (tmp_path / "link").symlink_to(old)
    with Staging(tmp_path / "link") as staging:
        assert staging.out == old
        assert staging.path.parent == tmp_path / "disk"
        staging.start()
        write_files(staging.datastore, NEW)
        staging.put_in_place()
    assert (tmp_path / "link").is_symlink()
    assert texts(tmp_path / "link") == NEW


# --- The lock -------------------------------------------------------------------------------------


NO_LOCKS = """
import errno, fcntl
def flock(descriptor, operation):
    raise OSError(errno.ENOLCK, "No locks available")
fcntl.flock = flock
"""

LOCKS_OF_NFS = """
import errno, fcntl, os
lock = fcntl.flock
# Linux turns it into a lock of a range, for which the file is open for writing.
def flock(descriptor, operation):
    if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDWR:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    lock(descriptor, operation)
fcntl.flock = flock
"""

WAITING = """
import sys
from pathlib import Path
from build_index import staging
put_in_place = staging.Staging.put_in_place
def placing(self):
    Path({mark!r}).touch()
    sys.stdin.read()
    put_in_place(self)
staging.Staging.put_in_place = placing
"""


@pytest.fixture
def arguments(tmp_path, tokenizer, out):
    corpus = write_jsonl(tmp_path / "corpus.jsonl", ["some text", "and more"])
    return ["--corpus", corpus, "--tokenizer", tokenizer, "--out", out]


def test_a_file_system_without_locks_is_refused_by_name(arguments, out):
    process = run_build(*arguments, before=NO_LOCKS)
    message = (
        f"{out.parent}/.ds.building: the datastore cannot be written (its file system has no locks:"
        " No locks avai"
    )
    assert (process.returncode, process.stdout) == (1, "")
    assert process.stderr.startswith(f"Error: {message}")
    assert not out.exists()


def test_the_second_of_two_builds_is_refused_on_nfs(arguments, out, tmp_path):
    mark = tmp_path / "mark"
    before = LOCKS_OF_NFS + WAITING.format(mark=str(mark))
    first = subprocess.Popen(
        command(*arguments, before=before), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    until(mark.exists)
    second = run_build(*arguments, before=LOCKS_OF_NFS)
    assert (second.returncode, second.stdout) == (1, "")
    assert "another process is building this datastore" in second.stderr
    first.communicate(b"")
    assert first.returncode == 0
    check_datastore(out)


# --- Into place -----------------------------------------------------------------------------------


@pytest.mark.parametrize("before", ["nothing", "an empty directory", "a datastore"])
def test_a_datastore_is_put_in_place(tmp_path, before):
    out = tmp_path / "above" / "ds"
    if before != "nothing":
        write_files(out, OLD if before == "a datastore" else {})
    with Staging(out) as staging:
        staging.start()
        write_files(staging.datastore, NEW)
        assert texts(out) == (OLD if before == "a datastore" else {})
        staging.put_in_place()
    assert texts(out) == NEW
    assert list(out.parent.iterdir()) == [out]


def test_directories_are_exchanged_where_that_is_supported(tmp_path, monkeypatch):
    first, second = write_files(tmp_path / "a", OLD), write_files(tmp_path / "b", NEW)
    assert module._exchanged(first, second)
    assert (texts(first), texts(second)) == (NEW, OLD)
    with pytest.raises(FileNotFoundError):
        module._exchanged(first, tmp_path / "absent")
    monkeypatch.setattr(module, "_RENAME_EXCHANGE", 1 << 20)  # a flag that no kernel knows
    assert not module._exchanged(first, second)
    monkeypatch.setattr(module.ctypes, "CDLL", lambda *_, **__: object())  # an old C library
    assert not module._exchanged(first, second)
    assert (texts(first), texts(second)) == (NEW, OLD)


def test_what_is_renamed_is_on_the_disk_first(arguments, out, monkeypatch):
    """After a loss of power, a name stands for all that was written under it.

    No old shard stands for a new one.
    """
    synced = set()
    early = []
    fsync = os.fsync
    rename = Path.rename

    def syncing(descriptor):
        synced.add(os.path.realpath(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def renaming(path, target):
        if str(path) not in synced:
            early.append(str(path))
        synced.discard(str(path.parent))  # whose entries change
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", syncing)
    monkeypatch.setattr(Path, "rename", renaming)
    exchange = module._exchanged
    monkeypatch.setattr(
        module, "_exchanged", lambda *places: early.extend(unsynced(places[0])) or exchange(*places)
    )

    def unsynced(datastore):
        return [str(path) for path in (datastore, datastore.parent) if str(path) not in synced]

    for _ in range(2):
        assert build_here(*arguments).exit_code == 0
    assert [path for path in early if not path.endswith("plan.json")] == []


def test_a_directory_that_appeared_meanwhile_is_left_alone(tmp_path):
    with Staging(tmp_path / "ds") as staging:
        staging.start({})
        write_files(staging.datastore, NEW)
        write_files(tmp_path / "ds", {"notes.txt": "mine"})
        with pytest.raises(OutputError, match=r"one with other content \('notes\.txt'\)"):
            staging.put_in_place()
    assert texts(tmp_path / "ds") == {"notes.txt": "mine"}
    assert texts(tmp_path / ".ds.building" / "datastore") == NEW


def test_a_new_build_that_is_killed_while_it_clears_an_unfinished_one_leaves_nothing_to_resume(
    tmp_path, monkeypatch
):
    write_files(tmp_path / ".ds.building" / "datastore", {**NEW, "../plan.json": "{}"})
    assert finished_shards(tmp_path / "ds") == 1

    def killed(self, shard):
        raise KeyboardInterrupt

    monkeypatch.setattr(Staging, "_remove_files", killed)
    with pytest.raises(KeyboardInterrupt):
        Staging(tmp_path / "ds").start()
    assert finished_shards(tmp_path / "ds") == 0
