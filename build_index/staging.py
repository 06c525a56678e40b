"""The staging directory of a build, beside the final place; the complete datastore is renamed out of it.

    ds/                     the old datastore, if there is one; untouched until the very end
    .ds.building/
        plan.json           what is built; written first (build_index/build_plan.py)
        slices/             tokens of parts of the corpora (build_index/slices.py)
        datastore/          the files of the new datastore
        complete            the checksum of its manifest, as soon as it is complete
        replaced/           for a moment, where directories cannot be exchanged: the old datastore

Every file in slices/ and datastore/ is complete: it is written under another name and renamed. A build that was killed
is resumed by making what is not there. A build holds a lock (flock) on `.ds.building` as long as it runs.
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
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from build_index.errors import output_errors
from build_index.path import local_path
from rest_store.datastore.manifest import DOCUMENTS_FILE_NAME, TOKENIZER_FILE_NAME
from rest_store.datastore.manifest import FILE_NAME as MANIFEST_NAME
from rest_store.datastore.manifest import MAX_SIZE as MAX_MANIFEST_SIZE
from rest_store.datastore.mapped_file import open_regular
from rest_store.datastore.render import counted
from rest_store.errors import OutputError, ResumeError, describe

PLAN_NAME = "plan.json"
_OUR_FILES = re.compile(
    "|".join(map(re.escape, (MANIFEST_NAME, TOKENIZER_FILE_NAME))) + r"|shard-\d+\.(tokens|suffixes)"
)
_LIVE_FILES = (DOCUMENTS_FILE_NAME, "writer.lock")
_BUILDING_NAME = re.compile(r"\..*\.building", re.DOTALL)
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


class Staging:
    """The locked staging directory of one build.

    Args:
        out: the final place of the datastore.

    Attributes:
        out: the same, with links resolved.
        path: the staging directory.
        datastore: the directory of the new datastore's files.
        slices: the directory of what is tokenized.

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
        self.slices = self.path / "slices"
        self._plan = self.path / PLAN_NAME
        self._complete = self.path / "complete"
        self._replaced = self.path / "replaced"
        with output_errors(self.path):
            self._lock = self._locked()
            if self._complete.exists():  # a build that was killed when it had only to rename
                self._replace()
                os.close(self._lock)
                self._lock = self._locked()

    def __enter__(self) -> Staging:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._lock)

    def _locked(self) -> int:
        self.path.mkdir(parents=True, exist_ok=True)
        lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise OutputError(f"{self.path}: another process is building this datastore") from None
        except OSError:
            pass  # a file system without locks
        return lock

    def require_nothing_unfinished(self) -> None:
        """Raise ResumeError if an unfinished build has shards that `start` would remove: they may have taken hours."""
        if count := kept_shards(self.out):
            found = f"present, with {counted(count, 'finished shard')}"
            expected = f"none: continue it with --resume, or remove {self.path}"
            raise ResumeError(describe(self.out, "unfinished build", found, expected))

    def start(self, plan: dict[str, Any] | None = None) -> None:
        """Remove the files of an earlier build, make the directories of a new one, and write its plan."""
        with output_errors(self.path):
            # The plan first: a build that is killed meanwhile leaves nothing that claims to be resumable.
            for entry in sorted(self.path.iterdir(), key=lambda entry: entry != self._plan):
                _remove(entry)
            self.datastore.mkdir()
            self.slices.mkdir()
            if plan is not None:
                with whole_file(self._plan) as path:
                    path.write_text(json.dumps(plan, sort_keys=True), encoding="utf-8")

    def unfinished_plan(self) -> dict[str, Any]:
        """Return the plan of the build to resume.

        Raises:
            ResumeError: there is nothing to resume.
        """
        with output_errors(self.path):
            try:
                plan: dict[str, Any] = json.loads(self._plan.read_bytes())
                for part in self.path.glob("*.part"):  # cut short by a kill
                    part.unlink()
                return plan
            except FileNotFoundError:
                self.discard()
        expected = "one that was interrupted; build without --resume"
        raise ResumeError(describe(self.out, "unfinished build", "absent", expected))

    def write(self, name: str, text: str) -> None:
        """Write a file of the new datastore and sync it to disk."""
        with whole_file(self.datastore / name) as path:
            path.write_text(text, encoding="utf-8", newline="")

    def put_in_place(self) -> None:
        """Put the new datastore, whose manifest is written, at `out` in one step, and remove the old one.

        Raises:
            OutputError: that is not possible, or `out` must not be replaced any more.
        """
        with output_errors(self.out):
            require_replaceable(self.out)
            with whole_file(self._complete) as path:
                path.write_text(_sha256(self.datastore / MANIFEST_NAME))
            self._replace()

    def _replace(self) -> None:
        """Put the complete datastore in place, unless it is there, and discard the rest."""
        digest = self._complete.read_text()
        if _sha256(self.out / MANIFEST_NAME) != digest:
            if not (self.out / MANIFEST_NAME).exists():
                self.datastore.rename(self.out)  # over an empty directory, if there is one
            elif not _exchanged(self.datastore, self.out):
                self.out.rename(self._replaced)
                self.datastore.rename(self.out)
            _sync(self.out.parent)
        self.discard()

    def abandon(self) -> None:
        """After a failure, remove the directory, unless it has what can be resumed or must be put in place."""
        if not self._complete.exists() and not kept_shards(self.out):
            self.discard()

    def discard(self) -> None:
        """Remove the directory as far as possible: the build is done, or there is nothing to resume."""
        with suppress(OSError):
            # Last what says that the datastore is in place: until then, the directory may hold the old one.
            for entry in sorted(self.path.iterdir(), key=lambda entry: entry == self._complete):
                _remove(entry)
            self.path.rmdir()


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give another path to write a file at; it is synced and renamed when the block is left without an error.

    Raises:
        OutputError: it cannot be written.
    """
    part = part_of(path)
    try:
        with output_errors(path):
            yield part
            put(part, path)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def part_of(path: Path) -> Path:
    """Return where to write a file of the staging directory until it is complete: outside the datastore."""
    top = next((parent for parent in path.parents if _BUILDING_NAME.fullmatch(parent.name)), path.parent)
    return top / f"{path.name}.{uuid.uuid4().hex}.part"


def put(part: Path, path: Path) -> None:
    """Sync a complete file to disk, and rename it."""
    _sync(part)
    part.rename(path)
    _sync(path.parent)


def kept_shards(out: Path) -> int:
    """Return the number of tokenized shards of an unfinished build of this datastore."""
    place = building_place(_resolved(out))
    if not (place / PLAN_NAME).is_file() or (place / "complete").exists():
        return 0
    return sum(1 for _ in (place / "datastore").glob("shard-*.tokens"))


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
    return _BUILDING_NAME.fullmatch(directory.name) is not None and (directory / "slices").is_dir()


def building_place(place: Path) -> Path:
    """Return the staging directory of the datastore at `place`, a path without links."""
    return place.parent / f".{place.name}.building"


def _resolved(out: Path) -> Path:
    try:
        return Path(os.path.realpath(local_path(out)))
    except ValueError as error:  # a NUL in the path
        raise OutputError(describe(out, "path", f"invalid ({error})", "one of a directory")) from None


def _exchanged(first: Path, second: Path) -> bool:
    """Exchange two directories in one step (renameat2(2)); return False where that is not supported."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    if renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number), str(second))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(entry: Path) -> None:
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry)
    else:
        entry.unlink()


def _sha256(path: Path) -> str:
    """Return the checksum of a file; empty if there is none."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except (FileNotFoundError, NotADirectoryError):
        return ""
