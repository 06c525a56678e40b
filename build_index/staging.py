"""The staging directory of a build, beside the final place; the complete datastore is renamed out of it.

    ds/                     the old datastore, if there is one; untouched until the very end
    .ds.building/
        journal.jsonl       state of the build (build_index/journal.py)
        datastore/          the files of the new datastore
        batches/            what workers have tokenized and is not stored yet (build_index/token_batches.py)
        replaced/           for a moment, where directories cannot be exchanged: the old datastore

A build holds a lock (flock) on `.ds.building` as long as it runs.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from build_index.errors import output_errors
from build_index.journal import FILE_NAME as JOURNAL_NAME
from build_index.journal import BuildState, Journal, read_journal
from build_index.path import local_path
from rest_store.datastore.manifest import DOCUMENTS_FILE_NAME, TOKENIZER_FILE_NAME
from rest_store.datastore.manifest import FILE_NAME as MANIFEST_NAME
from rest_store.datastore.manifest import MAX_SIZE as MAX_MANIFEST_SIZE
from rest_store.datastore.regular_file import open_regular
from rest_store.datastore.render import counted
from rest_store.errors import OutputError, ResumeError, describe

_OLD_FILE_NAME = "prepared.drafts"  # in datastores of older builds
_OUR_FILES = re.compile(
    "|".join(map(re.escape, (MANIFEST_NAME, TOKENIZER_FILE_NAME, _OLD_FILE_NAME))) + r"|shard-\d+\.(tokens|suffixes)"
)
_LIVE_FILES = (DOCUMENTS_FILE_NAME, "writer.lock")
_BUILDING_NAME = re.compile(r"\..*\.building", re.DOTALL)
_AT_FDCWD = -100
RENAME_EXCHANGE = 2


class Staging:
    """The locked staging directory of one build.

    Args:
        out: the final place of the datastore.

    Attributes:
        out: the same, with links resolved.
        path: the staging directory.
        datastore: the directory of the new datastore's files.
        batches: the directory of what workers write.
        journal_path: the journal's file.

    Raises:
        OutputError: `out` must not be replaced (a file, a directory with other content, a mount point), the directory
            cannot be made, or another process is building there.

    A context manager: leaving it releases the lock. Not thread-safe. All methods raise OutputError if the directory
    cannot be read or written.
    """

    def __init__(self, out: Path) -> None:
        self.out = final_place(out)
        self.path = building_place(self.out)
        self.datastore = self.path / "datastore"
        self.batches = self.path / "batches"
        self.journal_path = self.path / JOURNAL_NAME
        self._replaced = self.path / "replaced"
        with output_errors(self.path):
            self._lock = self._locked()
            self._restore_replaced()

    def __enter__(self) -> Staging:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._lock)

    def _locked(self) -> int:
        while True:
            self.path.mkdir(parents=True, exist_ok=True)
            try:
                lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            except FileNotFoundError:
                continue  # another build finished just now
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                raise OutputError(f"{self.path}: another process is building this datastore") from None
            except OSError:
                return lock  # a file system without locks
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(lock), self.path.stat()):
                    return lock
            os.close(lock)

    def require_nothing_unfinished(self) -> None:
        """Raise ResumeError if an unfinished build has shards that `start` would remove: they may have taken hours."""
        with output_errors(self.path):
            state = read_journal(self.journal_path)
        if state is not None and state.tokens:
            found = f"present, with {counted(len(state.tokens), 'finished shard')}"
            expected = f"none: continue it with --resume, or remove {self.path}"
            raise ResumeError(describe(self.out, "unfinished build", found, expected))

    def start(self) -> None:
        """Remove the files of an earlier build, and make the directory of a new datastore."""
        with output_errors(self.path):
            # The journal first: a build that is killed meanwhile leaves nothing that claims to be resumable.
            for entry in sorted(self.path.iterdir(), key=lambda entry: entry != self.journal_path):
                _remove(entry)
            self.datastore.mkdir()
            sync_directory(self.path)

    @contextmanager
    def open_batches(self) -> Iterator[Path]:
        """Make the directory of what workers write, empty; it is removed in the end."""
        with output_errors(self.batches):
            if self.batches.exists():
                _remove(self.batches)  # of a build that was killed
            self.batches.mkdir()
        try:
            yield self.batches
        finally:
            shutil.rmtree(self.batches, ignore_errors=True)

    def open_journal(self) -> Journal:
        """Open the journal for appending."""
        with output_errors(self.journal_path):
            journal = Journal(self.journal_path)
            sync_directory(self.path)
            return journal

    def unfinished(self) -> BuildState:
        """Return the state of an earlier build.

        Raises:
            ResumeError: there is nothing to resume.
        """
        with output_errors(self.path):
            state = read_journal(self.journal_path)
        if state is None:
            self.discard()
            expected = "one that was interrupted; build without --resume"
            raise ResumeError(describe(self.out, "unfinished build", "absent", expected))
        return state

    def keep_only(self, names: set[str]) -> None:
        """Remove from the new datastore's directory every file but those of `names`."""
        with output_errors(self.path):
            self.datastore.mkdir(exist_ok=True)
            for entry in self.datastore.iterdir():
                if entry.name not in names:
                    _remove(entry)

    def write(self, name: str, text: str) -> None:
        """Write a file of the new datastore and sync it to disk."""
        with output_errors(self.datastore / name), (self.datastore / name).open("wb") as file:
            file.write(text.encode("utf-8"))
            file.flush()
            os.fsync(file.fileno())

    def sync(self) -> None:
        """Sync the names of the new datastore's files to disk."""
        with output_errors(self.datastore):
            sync_directory(self.datastore)

    def put_in_place(self) -> None:
        """Put the new datastore at `out` in one step, and remove the old one.

        Raises:
            OutputError: that is not possible, or `out` must not be replaced any more.
        """
        with output_errors(self.out):
            require_replaceable(self.out)
            if not (self.out / MANIFEST_NAME).exists():
                self.datastore.rename(self.out)  # over an empty directory, if there is one
            elif not exchange_directories(self.datastore, self.out):
                self.out.rename(self._replaced)
                self.datastore.rename(self.out)
            sync_directory(self.out.parent)
        self.discard()

    def is_in_place(self, manifest_sha256: str) -> bool:
        """Whether the datastore with this manifest is at `out`."""
        return _file_sha256(self.out / MANIFEST_NAME) == manifest_sha256

    def is_complete(self, manifest_sha256: str) -> bool:
        """Whether the datastore with this manifest is in the staging directory."""
        return _file_sha256(self.datastore / MANIFEST_NAME) == manifest_sha256

    def discard(self) -> None:
        """Remove the directory as far as possible: the build is done, or there is nothing to resume."""
        with suppress(OSError):
            # The journal last: until then the build can be resumed, to find that it was complete.
            for entry in sorted(self.path.iterdir(), key=lambda entry: entry == self.journal_path):
                _remove(entry)
            self.path.rmdir()

    def _restore_replaced(self) -> None:
        """Restore the old datastore if a build was killed between two renames."""
        if self._replaced.exists() and not self.out.exists():
            self._replaced.rename(self.out)


def kept_shards(out: Path) -> int:
    """Return the number of tokenized shards of an unfinished build of this datastore.

    Raises:
        OSError: its journal cannot be read.
    """
    state = read_journal(building_place(_resolved(out)) / JOURNAL_NAME)
    return 0 if state is None else len(state.tokens)


def final_place(out: Path) -> Path:
    """Return the path of a new datastore with links resolved, or raise OutputError if it cannot be put there."""
    place = _resolved(out)
    with output_errors(place):
        require_replaceable(place)
    return place


def require_replaceable(place: Path) -> None:
    """Raise OutputError unless nothing, an empty directory or a datastore is at `place`; let other OSErrors through."""

    def refuse(problem: str, expected: str = "a new one, an empty one or a datastore") -> None:
        raise OutputError(describe(place, "directory", problem, expected))

    if not os.path.lexists(place):
        return
    if not place.is_dir():
        refuse("a file")
    if place.is_mount():
        refuse("a mount point, which cannot be renamed", "a directory below it")
    names = sorted(entry.name for entry in place.iterdir())
    if not names:
        return
    if not is_datastore(place):
        refuse(f"one with other content ('{names[0]}')")
    foreign = [name for name in names if not _OUR_FILES.fullmatch(name)]
    if foreign:
        refuse(f"a datastore with other files in it ('{foreign[0]}')", "one without, since it will be replaced")


def is_datastore(directory: Path) -> bool:
    """Whether a directory has the manifest of a datastore, of whatever release."""
    try:
        with open_regular(directory / MANIFEST_NAME) as file:
            text = file.read(MAX_MANIFEST_SIZE + 1)
        fields = json.loads(text) if len(text) <= MAX_MANIFEST_SIZE else None
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(fields, dict) and fields.get("format") == "rest-store"


def is_live(directory: Path) -> bool:
    """Whether a directory has the files of a live datastore."""
    return all((directory / name).is_file() for name in _LIVE_FILES)


def is_staging(directory: Path) -> bool:
    """Whether a directory is that of an unfinished build."""
    return _BUILDING_NAME.fullmatch(directory.name) is not None and (directory / JOURNAL_NAME).is_file()


def _resolved(out: Path) -> Path:
    try:
        return Path(os.path.realpath(local_path(out)))
    except ValueError as error:  # a NUL in the path
        raise OutputError(describe(out, "path", f"invalid ({error})", "one of a directory")) from None


def building_place(place: Path) -> Path:
    """Return the staging directory of the datastore at `place`, a path without links."""
    return place.parent / f".{place.name}.building"


def exchange_directories(first: Path, second: Path) -> bool:
    """Exchange two directories in one step (renameat2(2)); return False where that is not supported."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    if renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number), str(second))


def sync_directory(path: Path) -> None:
    """Sync the names of a directory's files to disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(entry: Path) -> None:
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry)
    else:
        entry.unlink()


def _file_sha256(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except (FileNotFoundError, NotADirectoryError):
        return None
