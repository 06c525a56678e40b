"""Which files of a tree Git ignores: `.gitignore` files, those of
directories above, and `.git/info/exclude`.

As in Git, a deeper file decides before those above it, in each file the last pattern that matches,
and nothing below an ignored directory is looked at. As in ripgrep and ruff, it does not matter
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
    """What some patterns say.

    Attributes:
        pattern: matches in full what they are about.
        ignores: whether that is ignored.
        is_of_names: whether it matches names, in whatever directory, and no paths.
    """

    pattern: re.Pattern[str]
    ignores: bool
    is_of_names: bool


@dataclass(frozen=True)
class IgnoreRules:
    """The patterns that hold in a directory.

    Attributes:
        levels: of each directory with patterns, from above: its path, which ends with a slash, and
            its rules.
    """

    levels: tuple[tuple[str, tuple[_Rule, ...]], ...] = ()

    def ignores(self, path: str, *, is_directory: bool) -> bool:
        """Whether a file or directory is ignored, in none of whose
        directories there are patterns but these.
        """
        end = "/" if is_directory else ""
        name = path.rpartition("/")[2] + end
        for top, rules in reversed(self.levels):
            relative = path.removeprefix(top) + end
            for rule in reversed(rules):
                if rule.pattern.fullmatch(name if rule.is_of_names else relative):
                    return rule.ignores
        return False

    def inside(self, directory: str, names: set[str]) -> IgnoreRules:
        """Return the rules in a directory below.

        Args:
            directory: its path.
            names: of what is in it. With `.git`, it is a repository of its own, in which rules from
                above do not hold.
        """
        levels = () if ".git" in names else self.levels
        if ".git" in names:
            levels += _level(directory, _exclude_file(Path(directory) / ".git"))
        if FILE_NAME in names:
            levels += _level(directory, Path(directory) / FILE_NAME)
        return IgnoreRules(levels)


def rules_above(top: str) -> IgnoreRules:
    """Return the rules that hold in a directory from those above
    it, as far as its repository reaches.

    None hold if it is ignored itself: whoever names it wants it.
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
    """Return the directories above `top` from that of its repository on.

    None if it is the top of one, or in none.
    """
    if (top / ".git").exists():
        return []
    places = (
        number for number, directory in enumerate(top.parents, 1) if (directory / ".git").exists()
    )
    return list(reversed(top.parents[: next(places, 0)]))


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

    A rule matches the path of what it is about in full, and not what is below that.
    """
    with named_extras(FILE_NAME):
        import pathspec

    patterns = []
    for line in lines:
        try:
            (pattern,) = pathspec.GitIgnoreSpec.from_lines(
                [_of_entries(line.rstrip("\r"))]
            ).patterns
        except (ValueError, re.error):
            continue  # malformed: Git matches nothing with it either
        if pattern.include is not None and pattern.regex is not None:
            patterns.append(
                (pattern.include, "/" not in line.rstrip().rstrip("/"), pattern.regex.pattern)
            )
    # Patterns that do the same one after another are one expression, which is matched many times as
    # fast.
    for (ignores, is_of_names), some in itertools.groupby(patterns, lambda pattern: pattern[:2]):
        texts = [_NAMED_GROUP.sub("(?:", text) for _, _, text in some]
        texts = [text.replace(_ANYWHERE, "^", 1) if is_of_names else text for text in texts]
        yield _Rule(re.compile("|".join(f"(?:{text})" for text in texts)), ignores, is_of_names)


def _of_entries(line: str) -> str:
    """Return a pattern whose last name stands for one name:
    `pathspec` is about files anywhere below a match.
    """
    head, slash, name = line.rstrip("/").rpartition("/")
    if line.startswith("#") or name not in ("*", "**", "!*", "!**"):
        return line
    sign, end = ("!" if name[0] == "!" else ""), line[len(line.rstrip("/")) :]
    above = "**/" if name.endswith("**") and slash else ""
    return f"{head}{slash}{sign}{above}?*{end}"


def _exclude_file(git: Path) -> Path:
    """Return the file of patterns of a repository, which a
    work tree shares with the others of it.
    """
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
