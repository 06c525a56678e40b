"""The files of a directory, in a fixed order, and the globs that choose among them.

`*` and `?` match within one name, `**` across directories, `[...]` one character. A glob without a
slash matches at any depth, one with a slash from the top. If a directory is excluded, so is its
content.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from build_index.documents import CorpusCounts, CorpusFile
from build_index.readers.dataset_folder import DatasetFolder
from build_index.readers.files import read_errors
from build_index.readers.gitignore import IGNORED, IgnoreRules, rules_above
from build_index.readers.unreadable_files import BARE_REPOSITORY, DAMAGED
from build_index.staging import is_datastore, is_staging
from rest_store.datastore.manifest import DOCUMENTS_FILE_NAME
from rest_store.datastore.manifest import FILE_NAME as MANIFEST_NAME
from rest_store.datastore.mapped_file import regular_file
from rest_store.errors import CorpusError, CorpusNotFoundError, describe
from rest_store.loading.local_path import local_path

# Files and directories of tools in a source tree.
DEFAULT_EXCLUDES = {
    ".git",
    ".hg",
    ".svn",
    ".bzr",
    ".DS_Store",
    "__pycache__",
    "node_modules",
    "bower_components",
    ".venv",
    "venv",
    ".tox",
    ".nox",
    ".eggs",
    ".ipynb_checkpoints",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    ".hypothesis",
}
LEFT_OUT = "left out by --include"
_LOCK_NAME = "writer.lock"  # of a live datastore
_BARE_REPOSITORY = {"HEAD", "config", "objects", "refs"}


class Globs:
    """The choice of files in a directory. Can be pickled.

    Args:
        include: globs; a file that matches none is left out, unless there are no globs.
        exclude: globs of files and directories to leave out, besides the names in
            `DEFAULT_EXCLUDES`.

    Raises:
        CorpusError: a glob is malformed.
    """

    def __init__(self, include: Sequence[str], exclude: Sequence[str]) -> None:
        self._included = compile_globs(include) if include else None
        self._excluded = compile_globs(exclude) if exclude else None

    def excludes(self, relative: str) -> bool:
        """Return whether a file or directory, by its path from the top, is left out."""
        if relative.rpartition("/")[2] in DEFAULT_EXCLUDES:
            return True
        return self._excluded is not None and self._excluded.fullmatch(relative) is not None

    def includes(self, relative: str, counts: CorpusCounts) -> bool:
        """Return whether a file is to be read; a file that is not is counted."""
        if self._included is None or self._included.fullmatch(relative):
            return True
        counts.leave_out(LEFT_OUT)
        return False

    def choose(self, relative: str, counts: CorpusCounts) -> bool:
        """Return whether a file is to be read; this looks at its directories, too."""
        names = relative.split("/")
        if any(self.excludes("/".join(names[:depth])) for depth in range(1, len(names) + 1)):
            return False
        return self.includes(relative, counts)


@dataclass(frozen=True, slots=True)
class LocalCorpus:
    """A file or directory on this machine; made by `at`. Can be pickled.

    Attributes:
        top: its absolute path.
        is_directory: whether it is a directory.
        gitignore: whether files that Git ignores are left out of a directory.
        etag: empty; a `RemoteCorpus` has one.
    """

    top: str
    is_directory: bool
    gitignore: bool = True
    etag: str = ""

    @classmethod
    def at(cls, where: str, *, gitignore: bool = True) -> LocalCorpus:
        """Look at a path as the user writes it.

        Args:
            where: the path.
            gitignore: see the attribute.

        Raises:
            CorpusNotFoundError: there is nothing.
            CorpusError: it cannot be read, or is neither a file nor a directory, or the path is
                empty.
        """
        if not where or "\0" in where:
            problem = "invalid (a NUL)" if where else "empty"
            raise CorpusError(describe(where or "corpus", "path", problem, "a file or a directory"))
        with read_errors(where):
            path = local_path(where).absolute()  # workers may run in other directories
            mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            expected = "a regular file or a directory"
            raise CorpusError(describe(where, "corpus", "a pipe, socket or device", expected))
        with read_errors(where):
            names = {
                name
                for name in (DOCUMENTS_FILE_NAME, _LOCK_NAME, MANIFEST_NAME)
                if (path / name).exists()
            }
        if kind := _datastore_kind(path, names):
            raise CorpusError(
                f"{where}: corpus is {kind}, which holds tokens alone; pass the texts that it was"
                " made of"
            )
        return cls(os.fspath(path), is_directory=stat.S_ISDIR(mode), gitignore=gitignore)

    def files(self, globs: Globs, counts: CorpusCounts) -> Iterator[CorpusFile]:
        """Yield the file, or the regular files below the directory, sorted in each directory.

        Links to files are followed. Skipped and counted are: links to directories (so there are no
        loops), sockets, pipes, broken links, datastores, bare Git repositories, files that vanish
        meanwhile, and files that Git ignores. The directories of unfinished builds are left out
        like `DEFAULT_EXCLUDES`: the output may be below the corpus.

        Args:
            globs: chooses the files of a directory.
            counts: counts the files that are skipped, and those that `globs` leaves out.

        Raises:
            CorpusError: a directory or the metadata of a file cannot be read.
        """
        if self.is_directory:
            rules = rules_above(self.top) if self.gitignore else None
            yield from self._walk(self.top, "", globs, rules, counts)
            return
        path = Path(self.top)
        with read_errors(self.top):
            status = path.stat()
        yield CorpusFile(self.top, path.name, status.st_size, str(status.st_mtime_ns))

    def below(self, relative: str, globs: Globs, counts: CorpusCounts) -> Iterator[CorpusFile]:
        """Yield those of `files` that one path is, or that are below it; none if it is absent.

        Args:
            relative: from the top, with forward slashes; "": the top itself.
            globs: as in `files`.
            counts: likewise.

        Raises:
            CorpusError: a directory or the metadata of a file cannot be read.
        """
        if not self.is_directory or not relative:
            yield from self.files(globs, counts)
            return
        rules = rules_above(self.top) if self.gitignore else None
        *above, name = relative.split("/")
        directory = self.top
        prefix = ""
        for part in (*above, None):
            try:
                names = set(os.listdir(directory))  # noqa: PTH208 - names alone
            except (FileNotFoundError, NotADirectoryError):
                return
            if _datastore_kind(Path(directory), names) or names >= _BARE_REPOSITORY:
                return
            rules = None if rules is None else rules.inside(directory, names)
            if part is None:
                break
            path = f"{directory}/{part}"
            is_link = Path(path).is_symlink()
            is_left_out = globs.excludes(prefix + part) or is_staging(Path(path))
            if is_link or is_left_out or (rules and rules.ignores(path, is_directory=True)):
                return
            directory = path
            prefix = f"{prefix}{part}/"
        if name not in names:
            return
        with read_errors(f"{self.top}/{relative}"), os.scandir(directory) as scan:
            entries = [entry for entry in scan if entry.name == name]
        folder = DatasetFolder.detect(names, lambda name, size: _head(Path(directory, name), size))
        for entry in entries:
            yield from self._entry(entry, prefix, directory, globs, rules, folder, counts)

    def _walk(
        self,
        directory: str,
        prefix: str,
        globs: Globs,
        rules: IgnoreRules | None,
        counts: CorpusCounts,
    ) -> Iterator[CorpusFile]:
        """Yield the files below a directory, whose path from the top is `prefix`."""
        where = f"{self.top}/{prefix}".rstrip("/")
        try:
            with read_errors(where), os.scandir(directory) as scan:
                entries = sorted(scan, key=lambda entry: entry.name)
        except CorpusNotFoundError:
            if not prefix:
                raise
            counts.leave_out("vanished", where)
            return
        names = {entry.name for entry in entries}
        if _datastore_kind(Path(directory), names):
            counts.leave_out("datastore", where)
            return
        if names >= _BARE_REPOSITORY:
            counts.skip_file(BARE_REPOSITORY, where, 0)
            return
        rules = None if rules is None else rules.inside(directory, names)
        folder = DatasetFolder.detect(names, lambda name, size: _head(Path(directory, name), size))
        for name in folder.missing if folder is not None else ():
            problem = "absent, though the metadata of the data set names it"
            counts.skip_file(DAMAGED, f"{where}/{name}: {problem}", 0)
        for entry in entries:
            yield from self._entry(entry, prefix, directory, globs, rules, folder, counts)

    def _entry(
        self,
        entry: os.DirEntry[str],
        prefix: str,
        directory: str,
        globs: Globs,
        rules: IgnoreRules | None,
        folder: DatasetFolder | None,
        counts: CorpusCounts,
    ) -> Iterator[CorpusFile]:
        """Yield the file that an entry of a directory is, or those below it."""
        relative = prefix + os.fsencode(entry.name).decode("utf-8", "replace")
        where = f"{self.top}/{relative}"
        if globs.excludes(relative):
            return
        is_directory = entry.is_dir(follow_symlinks=False)
        if rules is not None and rules.ignores(entry.path, is_directory=is_directory):
            size = 0 if is_directory else _size(entry)
            counts.leave_out(IGNORED, f"{where}/" if is_directory else where, size)
        elif is_directory:
            is_metadata = folder is not None and entry.name in folder.metadata
            if not is_staging(Path(entry.path)) and not is_metadata:
                yield from self._walk(entry.path, f"{relative}/", globs, rules, counts)
        elif globs.includes(relative, counts):
            for file in self._file(entry, relative, counts):
                if folder is None or folder.takes(entry.name, file.size, where, counts):
                    names = folder.row_files if folder is not None else ()
                    yield replace(file, row_files=tuple(f"{directory}/{name}" for name in names))

    def _file(
        self, entry: os.DirEntry[str], relative: str, counts: CorpusCounts
    ) -> Iterator[CorpusFile]:
        """Yield the file of a directory's entry, or count the reason that it is skipped."""
        where = f"{self.top}/{relative}"
        try:
            if entry.is_file():
                status = entry.stat()
                yield CorpusFile(entry.path, relative, status.st_size, str(status.st_mtime_ns))
            elif entry.is_dir():
                counts.leave_out("linked directory", where)
            else:
                counts.leave_out("not a regular file", where)
        except FileNotFoundError:
            counts.leave_out("vanished", where)
        except OSError:
            if not entry.is_symlink():
                with read_errors(where):
                    raise
            # A link to itself, or into a closed directory.
            counts.leave_out("not a regular file", where)


def _datastore_kind(directory: Path, names: set[str]) -> str | None:
    """Return the kind of the datastore in a directory, or None if there is no datastore."""
    if {DOCUMENTS_FILE_NAME, _LOCK_NAME} <= names:
        return "a live datastore"
    return "a datastore" if MANIFEST_NAME in names and is_datastore(directory) else None


def _head(path: Path, size: int) -> bytes:
    """Return the first bytes of a file, or none if it cannot be read."""
    try:
        with regular_file(path) as file:
            return file.read(size)
    except OSError:
        return b""


def _size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_size
    except OSError:
        return 0


def compile_globs(globs: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern whose `fullmatch` tells whether any of the globs matches a path.

    Paths are relative, with forward slashes and without a slash at the end.

    Raises:
        CorpusError: `**` stands beside other characters of a name.
    """
    from fsspec.utils import glob_translate

    patterns = []
    for glob in globs:
        path = glob.removeprefix("./").rstrip("/")
        path = path.lstrip("/") if "/" in path else f"**/{path}"
        try:
            patterns.append(glob_translate(path))
        except (ValueError, re.error) as error:
            problem = f"'{glob}' ({error})"
            raise CorpusError(
                describe("corpus", "a glob", problem, "one with ** for whole names")
            ) from None
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns))
