"""The staging directory of a build, beside the final directory.

The complete datastore is renamed out of it.

    ds/                     the old datastore, if there is one; untouched until the very end
    .ds.building/
        lock                held (flock) as long as a build runs
        plan.json           the plan of the build; written first (build_index/build_plan.py)
        slices/             tokens of slices of the corpora (build_index/slices.py)
        datastore/          the files of the new datastore

Every file in slices/ and datastore/ is complete: it is written under a temporary name and renamed.
A build that was killed is resumed by making the files that are absent. If some of its corpora have
changed, the slices of the others are kept.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import json
import os
import re
import shutil
import uuid
from collections.abc import Collection, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from build_index.output_errors import output_errors
from rest_store.datastore.durable_files import publish, sync
from rest_store.datastore.file_lock import take_lock
from rest_store.datastore.manifest import FILE_NAME as MANIFEST_NAME
from rest_store.datastore.manifest import MAX_SIZE as MAX_MANIFEST_SIZE
from rest_store.datastore.manifest import TOKENIZER_FILE_NAME, Manifest
from rest_store.datastore.mapped_file import regular_file
from rest_store.datastore.render import counted
from rest_store.errors import OutputError, describe
from rest_store.loading.local_path import local_path

PLAN_NAME = "plan.json"
_LOCK_NAME = "lock"
_OUR_FILES = re.compile(
    "|".join(map(re.escape, (MANIFEST_NAME, TOKENIZER_FILE_NAME)))
    + r"|shard-\d+\.(tokens|suffixes)|\.nfs.*"
)
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


class Staging:
    """The locked staging directory of one build.

    Args:
        out: the final directory of the datastore.

    Attributes:
        out: the same, with links resolved.
        path: the staging directory.
        datastore: the directory of the new datastore's files.
        slices: the directory of the slices' files.

    Raises:
        OutputError: `out` must not be replaced (a file, a directory with other content, a mount
            point), the directory cannot be made or locked, or another process is building there.

    A context manager: entering it removes files that a kill left incomplete, and leaving it
    releases the lock. Not thread-safe. All methods raise OutputError if the directory cannot be
    read or written.
    """

    def __init__(self, out: Path) -> None:
        self.out = final_place(out)
        self.path = building_directory(self.out)
        self.datastore = self.path / "datastore"
        self.slices = self.path / "slices"
        self._plan = self.path / PLAN_NAME
        with output_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            release = take_lock(self.path / _LOCK_NAME)
        if release is None:
            raise OutputError(f"{self.path}: another process is building this datastore")
        self._release = release

    def __enter__(self) -> Staging:
        with suppress(OSError):
            for temporary in self.path.rglob(".*.tmp"):  # of a process that was killed
                temporary.unlink()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release the lock, and remove the directory if there is nothing to resume."""
        if not self._plan.exists():
            with suppress(OSError):
                self._remove_files()
                (self.path / _LOCK_NAME).unlink()
                self.path.rmdir()
        self._release()

    def start(
        self, plan: dict[str, Any] | None = None, unchanged: Mapping[int, int] | None = None
    ) -> None:
        """Remove the files of an earlier build, make the directories of a new one, write its plan.

        Args:
            plan: the plan of the new build.
            unchanged: numbers of the corpora whose slices of an earlier build are still right, each
                with its number there. If there are any, suffix arrays stay, too: the sorter
                compares them with the tokens.
        """
        with output_errors(self.path):
            # The plan goes first: a kill from here on leaves nothing to resume.
            self._plan.unlink(missing_ok=True)
            before = self.path / "before"
            if unchanged:
                shutil.rmtree(before, ignore_errors=True)
                before.mkdir()
                numbers = {f"{old:04}": f"{new:04}" for new, old in unchanged.items()}
                for path in self.slices.iterdir():
                    corpus, _, number = path.name.partition("-")
                    if corpus in numbers:
                        path.rename(before / f"{numbers[corpus]}-{number}")
                for path in self.datastore.glob("*.suffixes"):
                    path.rename(before / path.name)
            self._remove_files({before} if unchanged else set())
            self.datastore.mkdir()
            self.slices.mkdir()
            if unchanged:
                for path in before.iterdir():  # suffix arrays have an ending, slices have none
                    directory = self.datastore if path.suffix else self.slices
                    path.rename(directory / path.name)
            if plan is not None:
                with whole_file(self._plan) as path:
                    path.write_text(json.dumps(plan, sort_keys=True), encoding="utf-8")

    def unfinished_plan(self) -> dict[str, Any] | None:
        """Return the plan of the build that can be resumed, or None."""
        with output_errors(self.path), suppress(FileNotFoundError):
            plan: dict[str, Any] = json.loads(self._plan.read_bytes())
            return plan
        return None

    def write(self, name: str, text: str) -> None:
        """Write a file of the new datastore and sync it to disk."""
        with whole_file(self.datastore / name) as path:
            path.write_text(text, encoding="utf-8", newline="")

    def remove_other_shards(self, names: Collection[str]) -> None:
        """Remove the suffix arrays of an earlier build that belong to no shard of this one."""
        with output_errors(self.datastore):
            for path in self.datastore.glob("*.suffixes"):
                if path.stem not in names:
                    path.unlink()

    def put_in_place(self) -> None:
        """Put the new datastore, whose manifest is written, at `out` in one step.

        Leaving this context removes the old datastore.

        Raises:
            OutputError: that is not possible, or `out` must not be replaced any more.
        """
        with output_errors(self.out):
            require_replaceable(self.out)
            for temporary in self.datastore.glob(".*.tmp"):  # of a process that was killed
                temporary.unlink()
            done = self.path / "done.json"
            if self._plan.exists():
                self._plan.rename(done)  # the old datastore, which comes here, cannot be resumed
                sync(self.path)
            try:
                if not (self.out / MANIFEST_NAME).exists():
                    self.datastore.rename(self.out)  # over an empty directory, if there is one
                elif not _exchanged(self.datastore, self.out):
                    self._replace_files()
            except OSError:
                if done.exists():
                    done.rename(self._plan)
                raise
            sync(self.out.parent)

    def _replace_files(self) -> None:
        """Turn the old datastore into the new one.

        One rename replaces the manifest, which names the shards. The new shards get names that are
        free in the directory. So nothing of the old datastore changes before that rename, but for
        the file of its tokenizer, which may be the new one.
        """
        manifest = Manifest.read(self.datastore)
        free_names = (
            name
            for name in map(shard_name, itertools.count())
            if not any(self.out.glob(f"{name}.*"))
        )
        shards = tuple(replace(shard, name=next(free_names)) for shard in manifest.shards)
        self.write(MANIFEST_NAME, replace(manifest, shards=shards).to_json())
        new_names = {MANIFEST_NAME, TOKENIZER_FILE_NAME}
        for before, after in zip(manifest.shards, shards, strict=True):
            for kind in ("tokens", "suffixes"):
                (self.datastore / f"{before.name}.{kind}").rename(self.out / f"{after.name}.{kind}")
                new_names.add(f"{after.name}.{kind}")
        if (self.datastore / TOKENIZER_FILE_NAME).exists():
            (self.datastore / TOKENIZER_FILE_NAME).rename(self.out / TOKENIZER_FILE_NAME)
        sync(self.out)
        (self.datastore / MANIFEST_NAME).rename(self.out / MANIFEST_NAME)
        sync(self.out)
        for entry in self.out.iterdir():
            if entry.name not in new_names:
                with suppress(OSError):  # the next build removes it
                    entry.unlink()

    def discard_if_empty(self) -> None:
        """Leave nothing to resume if nothing was made."""
        with output_errors(self.path):
            if not any(self.slices.iterdir()) and not any(self.datastore.iterdir()):
                self.discard()

    def discard(self) -> None:
        """Leave nothing to resume."""
        with output_errors(self.path):
            self._plan.unlink(missing_ok=True)

    def _remove_files(self, excluded: Set[Path] = frozenset()) -> None:
        """Remove all but the lock and `excluded`, as far as possible."""
        for entry in self.path.iterdir():
            if entry in excluded:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name != _LOCK_NAME:
                entry.unlink(missing_ok=True)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write a file at; at the end, sync and rename the file.

    After an error in the block, the temporary file is removed instead.

    Raises:
        OutputError: the file cannot be written.
    """
    temporary = temporary_path(path)
    try:
        with output_errors(path):
            yield temporary
            publish(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def temporary_path(path: Path) -> Path:
    """Return a path for a file of the staging directory until it is complete."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")


def finished_shards(out: Path) -> int:
    """Return the number of tokenized shards of an unfinished build of this datastore."""
    staging = building_directory(_resolved(out))
    if not (staging / PLAN_NAME).is_file():
        return 0
    return len(list((staging / "datastore").glob("shard-*.tokens")))


def resume_hint(out: Path) -> str:
    """Return a hint for the message of a failure: the way to resume the build, if there is one."""
    if not (building_directory(_resolved(out)) / PLAN_NAME).is_file():
        return ""
    shards = finished_shards(out)
    if not shards:
        return " (continue with --resume)"
    return f" ({counted(shards, 'finished shard')} kept: continue with --resume)"


def shard_name(number: int) -> str:
    """Return the name of a shard, counted from 0."""
    return f"shard-{number:05}"


def final_place(out: Path) -> Path:
    """Return the path of a new datastore with links resolved.

    Raises:
        OutputError: the datastore cannot be put there.
    """
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", os.fspath(out)):  # Path has joined the slashes
        raise OutputError(describe(out, "location", "an address", "a directory of this machine"))
    directory = _resolved(out)
    with output_errors(directory):
        require_replaceable(directory)
    return directory


def require_replaceable(directory: Path) -> None:
    """Raise OutputError unless nothing, an empty directory or a datastore is there.

    Errors of the operating system pass through.
    """

    def refuse(problem: str, expected: str = "a new one, an empty one or a datastore") -> None:
        raise OutputError(describe(directory, "directory", problem, expected))

    if not os.path.lexists(directory):
        return
    if not directory.is_dir():
        refuse("a file")
    if directory.is_mount():
        refuse("a mount point, which cannot be renamed", "a directory below it")
    names = sorted(entry.name for entry in directory.iterdir())
    if not names:
        return
    if not is_datastore(directory):
        refuse(f"one with other content ('{names[0]}')")
    foreign = [name for name in names if not _OUR_FILES.fullmatch(name)]
    if foreign:
        expected = "one without, since it will be replaced"
        refuse(f"a datastore with other files in it ('{foreign[0]}')", expected)


def is_datastore(directory: Path) -> bool:
    """Return whether a directory has the manifest of a datastore, of any release."""
    try:
        with regular_file(directory / MANIFEST_NAME) as file:
            text = file.read(MAX_MANIFEST_SIZE + 1)
        fields = json.loads(text) if len(text) <= MAX_MANIFEST_SIZE else None
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(fields, dict) and fields.get("format") == "rest-store"


def is_staging(directory: Path) -> bool:
    """Return whether a directory is that of an unfinished build: it has the lock of one."""
    name = directory.name
    return (
        name.startswith(".") and name.endswith(".building") and (directory / _LOCK_NAME).is_file()
    )


def building_directory(directory: Path) -> Path:
    """Return the staging directory of the datastore at `directory`, a path without links."""
    return directory.parent / f".{directory.name}.building"


def _resolved(out: Path) -> Path:
    try:
        return Path(os.path.realpath(local_path(out)))
    except ValueError as error:  # a NUL in the path
        raise OutputError(describe(out, "path", f"invalid ({error})", "a directory")) from None


def _exchanged(first: Path, second: Path) -> bool:
    """Exchange two directories in one step (renameat2(2)); False: that is not supported."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    paths = (_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second))
    if renameat2(*paths, _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number), str(second))
