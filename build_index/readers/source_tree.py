"""The files of a directory, in a fixed order, and the globs that choose among them.

`*` and `?` match within one name, `**` across directories, `[...]` one character. A glob without a slash matches at any
depth, one with a slash from the top. Excluding a directory excludes what is in it.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from build_index.documents import CorpusCounts, CorpusFile
from build_index.readers.files import read_errors
from build_index.staging import is_datastore, is_staging
from rest_store.datastore.manifest import DOCUMENTS_FILE_NAME
from rest_store.datastore.manifest import FILE_NAME as MANIFEST_NAME
from rest_store.errors import CorpusError, CorpusNotFoundError, describe
from rest_store.loading.path import local_path

# What tools keep in a source tree and nobody wrote.
DEFAULT_EXCLUDES = {
    *(".git", ".hg", ".svn", ".bzr", ".DS_Store", "__pycache__", "node_modules", "bower_components"),
    *(".venv", "venv", ".tox", ".nox", ".eggs", ".ipynb_checkpoints"),
    *(".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis"),
}


class Globs:
    """Which files of a directory are read. Can be pickled.

    Args:
        include: globs; a file that matches none is left out, unless there are no globs.
        exclude: globs of files and directories to leave out, besides the names in `DEFAULT_EXCLUDES`.

    Raises:
        CorpusError: a glob is malformed.
    """

    def __init__(self, include: Sequence[str], exclude: Sequence[str]) -> None:
        self._included = compile_globs(include) if include else None
        self._excluded = compile_globs(exclude) if exclude else None

    def excludes(self, relative: str) -> bool:
        """Whether a file or directory, by its path from the top, is left out."""
        if relative.rpartition("/")[2] in DEFAULT_EXCLUDES:
            return True
        return self._excluded is not None and self._excluded.fullmatch(relative) is not None

    def includes(self, relative: str, counts: CorpusCounts) -> bool:
        """Whether a file is to be read; count one that is not."""
        if self._included is None or self._included.fullmatch(relative):
            return True
        counts.skip("left out by --include")
        return False

    def choose(self, relative: str, counts: CorpusCounts) -> bool:
        """Whether a file is to be read, none of whose directories was looked at."""
        names = relative.split("/")
        if any(self.excludes("/".join(names[:depth])) for depth in range(1, len(names) + 1)):
            return False
        return self.includes(relative, counts)


@dataclass(frozen=True, slots=True)
class LocalCorpus:
    """A file or directory on this machine; made by `at`. Can be pickled.

    Attributes:
        top: its absolute path.
        is_directory: whether it is one.
        etag: of a file at an address; empty here.
    """

    top: str
    is_directory: bool
    etag: str = ""

    @classmethod
    def at(cls, where: str) -> LocalCorpus:
        """Look at a path as the user writes it.

        Raises:
            CorpusNotFoundError: there is nothing.
            CorpusError: it cannot be read, or is neither a file nor a directory, or the path is empty.
        """
        if not where or "\0" in where:
            problem = "invalid (a NUL)" if where else "empty"
            raise CorpusError(describe(where or "corpus", "path", problem, "one of a file or a directory"))
        with read_errors(where):
            path = local_path(where).absolute()  # workers may run in other directories
            mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            expected = "a regular file or a directory"
            raise CorpusError(describe(where, "corpus", "a pipe, socket or device", expected))
        return cls(os.fspath(path), is_directory=stat.S_ISDIR(mode))

    def files(self, globs: Globs, counts: CorpusCounts) -> Iterator[CorpusFile]:
        """Yield the file, or the regular files below the directory, sorted by name in each directory.

        Links to files are followed. Links to directories are not, so there are no loops. They, what is not a regular
        file (sockets, pipes, broken links), datastores, and files that vanish meanwhile are skipped and counted. The
        directories of unfinished builds are left out like `DEFAULT_EXCLUDES`: the output may be below the corpus.

        Args:
            globs: which files of a directory are read.
            counts: counts what is skipped, and what `globs` leaves out.

        Raises:
            CorpusError: a directory or the metadata of a file cannot be read.
        """
        if self.is_directory:
            yield from self._walk(self.top, "", globs, counts)
            return
        path = Path(self.top)
        with read_errors(self.top):
            status = path.stat()
        yield CorpusFile(self.top, path.name, status.st_size, str(status.st_mtime_ns))

    def _walk(self, directory: str, prefix: str, globs: Globs, counts: CorpusCounts) -> Iterator[CorpusFile]:
        """Yield the files below a directory, whose path from the top is `prefix`."""
        try:
            with read_errors(f"{self.top}/{prefix}".rstrip("/")), os.scandir(directory) as scan:
                entries = sorted(scan, key=lambda entry: entry.name)
        except CorpusNotFoundError:
            if not prefix:
                raise
            counts.skip("vanished")
            return
        names = {entry.name for entry in entries}
        if {DOCUMENTS_FILE_NAME, "writer.lock"} <= names or (MANIFEST_NAME in names and is_datastore(Path(directory))):
            counts.skip("datastore")
            return
        for entry in entries:
            relative = prefix + os.fsencode(entry.name).decode("utf-8", "replace")
            if globs.excludes(relative):
                continue
            if entry.is_dir(follow_symlinks=False):
                if not is_staging(Path(entry.path)):
                    yield from self._walk(entry.path, f"{relative}/", globs, counts)
            elif globs.includes(relative, counts):
                yield from self._file(entry, relative, counts)

    def _file(self, entry: os.DirEntry[str], relative: str, counts: CorpusCounts) -> Iterator[CorpusFile]:
        """Yield the file of a directory's entry, or count why it is skipped."""
        try:
            if entry.is_file():
                status = entry.stat()
                yield CorpusFile(entry.path, relative, status.st_size, str(status.st_mtime_ns))
            else:
                counts.skip("linked directory" if entry.is_dir() else "not a regular file")
        except FileNotFoundError:
            counts.skip("vanished")
        except OSError:
            if not entry.is_symlink():
                with read_errors(f"{self.top}/{relative}"):
                    raise
            counts.skip("not a regular file")  # a link to itself, or into a directory that may not be entered


def compile_globs(globs: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern whose `fullmatch` tells whether any of the globs matches a path.

    Paths are relative, with forward slashes and without a slash at the end.

    Raises:
        CorpusError: `**` stands beside other characters of a name.
    """
    from fsspec.utils import glob_translate

    patterns = []
    for glob in globs:
        parts = glob.removeprefix("./").rstrip("/")
        try:
            patterns.append(glob_translate(parts.lstrip("/") if "/" in parts else f"**/{parts}"))
        except (ValueError, re.error) as error:
            problem = f"'{glob}' ({error})"
            raise CorpusError(describe("corpus", "a glob", problem, "one with ** for whole names")) from None
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns))
