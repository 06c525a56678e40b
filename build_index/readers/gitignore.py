"""The files of a tree that Git ignores: `.gitignore` here and above, and `.git/info/exclude`.

As in Git, a deeper file decides before the files above it, and in each file the last pattern that
matches. Nothing below an ignored directory is looked at. As in ripgrep and ruff, it does not matter
whether Git tracks a file that a pattern matches, nor whether the tree is a repository; a user's own
patterns (`core.excludesFile`) do not count.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rest_store.datastore.mapped_file import regular_file
from rest_store.extras import named_extras

FILE_NAME = ".gitignore"
IGNORED = "ignored by .gitignore"  # a reason to leave out
_MAX_BYTES = 1 << 20  # of a file of patterns; Git has such a limit, too
_NAMED_GROUP = re.compile(r"\(\?P<\w+>")
_ANYWHERE = "^(?:.+/)?"  # how the expression of a pattern for names begins


@dataclass(frozen=True)
class _Rule:
    """One or several patterns.

    Attributes:
        pattern: matches a name or a path in full.
        ignores: whether matches are ignored; False: they are not, after all.
        matches_names: whether it matches names, in any directory, and no paths.
    """

    pattern: re.Pattern[str]
    ignores: bool
    matches_names: bool


@dataclass(frozen=True)
class IgnoreRules:
    """The patterns that hold in a directory.

    Attributes:
        levels: for each directory with patterns, from above: its path, which ends with a slash, and
            its rules.
    """

    levels: tuple[tuple[str, tuple[_Rule, ...]], ...] = ()

    def ignores(self, path: str, *, is_directory: bool) -> bool:
        """Return whether a file or directory is ignored; its directories have no other patterns."""
        end = "/" if is_directory else ""
        name = path.rpartition("/")[2] + end
        for top, rules in reversed(self.levels):
            relative = path.removeprefix(top) + end
            for rule in reversed(rules):
                if rule.pattern.fullmatch(name if rule.matches_names else relative):
                    return rule.ignores
        return False

    def inside(self, directory: str, names: set[str]) -> IgnoreRules:
        """Return the rules in a directory below.

        Args:
            directory: its path.
            names: names of its entries. With `.git`, it is a repository of its own, in which rules
                from above do not hold.
        """
        levels = () if ".git" in names else self.levels
        if ".git" in names:
            levels += _level(directory, _exclude_file(Path(directory) / ".git"))
        if FILE_NAME in names:
            levels += _level(directory, Path(directory) / FILE_NAME)
        return IgnoreRules(levels)


def rules_above(top: str) -> IgnoreRules:
    """Return the rules of the directories above one, as far as its repository reaches.

    No rules hold if the directory is ignored itself: a user who names it wants it.
    """
    rules = IgnoreRules()
    directories = [*_above_in_the_repository(Path(top)), Path(top)]
    for directory, below in itertools.pairwise(directories):
        names = {name for name in (".git", FILE_NAME) if (directory / name).exists()}
        rules = rules.inside(os.fspath(directory), names)
        if rules.ignores(os.fspath(below), is_directory=True):
            return IgnoreRules()
    return rules


def _above_in_the_repository(top: Path) -> list[Path]:
    """Return the directories above `top`, from the top of its repository on.

    The list is empty if `top` is the top of a repository, or in none.
    """
    if (top / ".git").exists():
        return []
    for number, directory in enumerate(top.parents, 1):
        if (directory / ".git").exists():
            return list(reversed(top.parents[:number]))
    return []


def _level(directory: str, path: Path) -> tuple[tuple[str, tuple[_Rule, ...]], ...]:
    """Return the level of a file of patterns, or none if it cannot be read or has none."""
    try:
        with regular_file(path) as file:
            text = file.read(_MAX_BYTES).decode("utf-8-sig", "replace")
    except OSError:
        return ()
    rules = tuple(_rules(text.split("\n")))
    return ((f"{directory.rstrip('/')}/", rules),) if rules else ()


def _rules(lines: list[str]) -> Iterator[_Rule]:
    """Yield the rules of patterns.

    A rule matches the path of a file or directory in full, and not the paths below it.
    """
    with named_extras(FILE_NAME):
        import pathspec

    patterns = []
    for line in lines:
        entry_line = _entry_pattern(line.rstrip("\r"))
        try:
            (pattern,) = pathspec.GitIgnoreSpec.from_lines([entry_line]).patterns
        except (ValueError, re.error):
            continue  # malformed: Git matches nothing with it either
        if pattern.include is not None and pattern.regex is not None:
            matches_names = "/" not in line.rstrip().rstrip("/")
            text = _NAMED_GROUP.sub("(?:", pattern.regex.pattern)
            if matches_names:
                text = text.replace(_ANYWHERE, "^", 1)
            patterns.append((pattern.include, matches_names, f"(?:{text})"))
    # Neighbours of one kind become one expression, which is matched many times as fast.
    for (ignores, matches_names), group in itertools.groupby(patterns, lambda pattern: pattern[:2]):
        expression = "|".join(text for _, _, text in group)
        yield _Rule(re.compile(expression), ignores, matches_names)


def _entry_pattern(line: str) -> str:
    """Return a pattern whose last name stands for one name.

    `pathspec` also matches the files below a match.
    """
    head, slash, name = line.rstrip("/").rpartition("/")
    if line.startswith("#") or name not in ("*", "**", "!*", "!**"):
        return line
    sign = "!" if name[0] == "!" else ""
    end = line[len(line.rstrip("/")) :]
    above = "**/" if name.endswith("**") and slash else ""
    return f"{head}{slash}{sign}{above}?*{end}"


def _exclude_file(git: Path) -> Path:
    """Return the file of patterns of a repository, which all its work trees share."""
    if git.is_file():
        try:
            text = git.read_text(encoding="utf-8", errors="surrogateescape")[:_MAX_BYTES]
            git = git.parent / text.removeprefix("gitdir:").strip()
        except OSError:
            return git
    try:
        common = (git / "commondir").read_text(encoding="utf-8", errors="surrogateescape").strip()
    except OSError:
        common = "."
    return git / common / "info" / "exclude"
