"""The files of a directory, in a fixed order."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from build_index.counts import CorpusCounts
from build_index.globs import compile_globs
from build_index.readers.compression import read_error

DEFAULT_EXCLUDES = (
    ".git",
    ".hg",
    ".svn",
    ".bzr",
    "__pycache__",
    "node_modules",
    "bower_components",
    ".venv",
    "venv",
    ".tox",
    ".nox",
    ".eggs",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    ".hypothesis",
    ".ipynb_checkpoints",
    ".DS_Store",
)
"""Left out of every directory: what tools keep there and nobody wrote."""


@dataclass(frozen=True, slots=True)
class TreeFile:
    """A regular file below a directory.

    Attributes:
        path: where to open it.
        relative: its path from the top of the tree, with forward slashes; bytes that are not UTF-8 as U+FFFD.
        size: bytes.
    """

    path: Path
    relative: str
    size: int


def walk(
    root: Path, include: Sequence[str], exclude: Sequence[str], where: str, counts: CorpusCounts
) -> Iterator[TreeFile]:
    """Yield the regular files below a directory, by name, directories and files in one order.

    Links to files are followed, links to directories are not (so there are no loops); they and other things that are
    no regular files (sockets, pipes, broken links) are passed over and counted.

    Args:
        root: the directory.
        include: globs, see `build_index.globs`; files that match none are left out, unless there are no globs.
        exclude: globs of files and directories that are left out, besides `DEFAULT_EXCLUDES`.
        where: what messages call the directory.
        counts: counts links and special files passed over; not what the globs leave out.

    Yields:
        The files.

    Raises:
        CorpusError: a directory or a file's metadata cannot be read.
    """
    included = compile_globs(include)
    excluded = compile_globs((*DEFAULT_EXCLUDES, *exclude))

    def below(directory: str, prefix: str) -> Iterator[TreeFile]:
        try:
            with os.scandir(directory) as scan:
                entries = sorted(scan, key=lambda entry: entry.name)
        except OSError as error:
            raise read_error(f"{where}/{prefix}".rstrip("/"), error) from error
        for entry in entries:
            relative = prefix + os.fsencode(entry.name).decode("utf-8", "replace")
            if excluded.fullmatch(relative):
                continue
            try:
                if entry.is_dir(follow_symlinks=False):
                    yield from below(entry.path, f"{relative}/")
                elif include and not included.fullmatch(relative):
                    continue
                elif entry.is_file():
                    yield TreeFile(Path(entry.path), relative, entry.stat().st_size)
                else:
                    counts.skip("linked directory" if entry.is_dir() else "not a regular file")
            except OSError as error:
                if not entry.is_symlink():
                    raise read_error(f"{where}/{relative}", error) from error
                counts.skip("not a regular file")  # a link in a circle, or to where nobody may look

    return below(os.fspath(root), "")
