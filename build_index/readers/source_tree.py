"""The files of a directory, in a fixed order, and the globs that choose among them.

`*` and `?` match within one name, `**` across directories, `[...]` one character. A glob without a slash matches at any
depth, one with a slash from the top. Excluding a directory excludes what is in it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from build_index.documents import CorpusCounts
from build_index.errors import read_error

# What tools keep in a source tree and nobody wrote.
DEFAULT_EXCLUDES = (
    *(".git", ".hg", ".svn", ".bzr", ".DS_Store", "__pycache__", "node_modules", "bower_components"),
    *(".venv", "venv", ".tox", ".nox", ".eggs", ".ipynb_checkpoints"),
    *(".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis"),
)
_GLOB_PARTS = re.compile(r"\*\*/|\*\*|\*|\?|\[!?\]?[^\]]*\]|[^*?\[]+|\[")
_WILDCARDS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


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
    """Yield the regular files below a directory, sorted by name in each directory.

    Links to files are followed. Links to directories are not, so there are no loops. They and what is not a regular
    file (sockets, pipes, broken links) are skipped and counted.

    Args:
        root: the directory.
        include: globs; a file that matches none is left out, unless there are no globs.
        exclude: globs of files and directories to leave out, besides `DEFAULT_EXCLUDES`.
        where: name of the directory in messages.
        counts: counts what is skipped, but not what the globs leave out.

    Raises:
        CorpusError: a directory or the metadata of a file cannot be read.
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
                counts.skip("not a regular file")  # a link to itself, or into a directory that may not be entered

    return below(os.fspath(root), "")


def compile_globs(globs: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern whose `fullmatch` tells whether any of the globs matches a path.

    Paths are relative, with forward slashes and without a slash at the end. No globs match nothing.
    """
    return re.compile("|".join(f"(?:{_translate(glob)})" for glob in globs) or r"(?!)", re.DOTALL)


def _translate(glob: str) -> str:
    glob = glob.removeprefix("./").rstrip("/")
    translated = "" if "/" in glob else "(?:.*/)?"
    for part in _GLOB_PARTS.findall(glob.lstrip("/")):
        if part in _WILDCARDS:
            translated += _WILDCARDS[part]
        elif part.startswith("[") and len(part) > 2:
            inside = part[1:-1].replace("\\", "\\\\").replace("[", "\\[").replace("&&", "&\\&").replace("||", "|\\|")
            translated += f"[^{inside[1:]}]" if inside.startswith("!") else f"[{inside}]"
        else:
            translated += re.escape(part)
    return translated
