"""Files that Git ignores are left out of a tree; the others are the files that Git lists."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from build_index.corpus import open_corpus
from build_index.corpus_spec import CorpusSpec
from rest_store.errors import MissingExtraError
from tests.shared.corpora import read_corpus, write_files

NAMES = ["a", "b", "ab", "build", "x.py", "k.log", "a.b", "[a]", "c d", "!z", "#h"]
SEGMENTS = [
    "a",
    "b",
    "ab",
    "*",
    "a*",
    "*.py",
    "*.log",
    "**",
    "build",
    "?",
    "[ab]",
    "[!a]",
    "[^b]",
    "x.py",
    "a?b",
    "\\[a\\]",
]
ODD = [
    "\\!z",
    "\\#h",
    "/",
    "**/",
    "//a",
    "a//b",
    "[a-",
    "a\\",
    "*/",
    "/*",
    "/**",
    "x.py ",
    "x.py\\ ",
    "# a comment",
    "",
]


def listed_files(root: Path, **options) -> list[str]:
    """The files that are read, by their paths from the top."""
    corpus = open_corpus(CorpusSpec(str(root), **options))
    return sorted(file.relative for file in corpus.files(corpus.counts))


def git(*arguments: object) -> str:
    done = subprocess.run(["git", *map(str, arguments)], capture_output=True, text=True, check=True)
    return done.stdout


def listed_by_git(root: Path) -> list[str]:
    """The files of a new repository that Git does not ignore."""
    command = (
        "-C",
        root,
        "-c",
        "core.excludesFile=/dev/null",
        "ls-files",
        "-z",
        "--others",
        "--exclude-standard",
    )
    return sorted(filter(None, git(*command).split("\0")))


# --- As Git does ----------------------------------------------------------------------------------


def some_pattern(source: random.Random) -> str:
    if source.random() < 0.1:
        return source.choice(ODD)
    pattern = "/".join(source.choice(SEGMENTS) for _ in range(source.randint(1, 3)))
    pattern = (
        ("/" if source.random() < 0.25 else "") + pattern + ("/" if source.random() < 0.3 else "")
    )
    return ("!" if source.random() < 0.3 else "") + pattern


def some_tree(root: Path, source: random.Random) -> None:
    """A repository with random files and patterns."""
    for _ in range(source.randint(3, 25)):
        path = root.joinpath(*(source.choice(NAMES) for _ in range(source.randint(1, 4))))
        if not any(parent.is_file() for parent in path.parents) and not path.exists():
            write_files(path.parent, {path.name: path.name})
    places = [
        root,
        *(path for path in sorted(root.rglob("*")) if path.is_dir() and source.random() < 0.3),
    ]
    for place in places:
        lines = [some_pattern(source) for _ in range(source.randint(1, 5))]
        (place / ".gitignore").write_text("\n".join(lines), newline=source.choice(["\n", "\r\n"]))
    git("init", "-q", root)
    if source.random() < 0.5:
        (root / ".git/info/exclude").write_text("\n".join(some_pattern(source) for _ in range(2)))


@pytest.mark.skipif(shutil.which("git") is None, reason="compares with Git")
@pytest.mark.parametrize("seed", range(60))
def test_random_trees_are_read_as_git_lists_them(tmp_path, seed):
    some_tree(tmp_path, random.Random(seed))
    assert listed_files(tmp_path) == listed_by_git(tmp_path)


# --- Files that are left out ----------------------------------------------------------------------

TREE = {
    ".gitignore": "*.env\nbuild/\n*.min.js\n!keep.min.js\n",
    "secret.env": "KEY=1",
    "build/deep/x.py": "x" * 999,
    "a.min.js": "x" * 500,
    "keep.min.js": "kept",
    "src/.gitignore": "/generated.py\n!local.env\n",
    "src/generated.py": "g",
    "src/local.env": "kept",
    "src/deep/generated.py": "kept",
}
KEPT = [".gitignore", "keep.min.js", "src/.gitignore", "src/deep/generated.py", "src/local.env"]


def test_what_is_ignored_is_left_out_and_counted_with_the_largest_file(tmp_path):
    write_files(tmp_path, TREE)
    corpus, documents = read_corpus(tmp_path)
    assert sorted(document.origin.removeprefix(f"{tmp_path}/") for document in documents) == KEPT
    assert corpus.counts.skipped == {"ignored by .gitignore": 4}
    assert corpus.counts.largest["ignored by .gitignore"] == (500, f"{tmp_path}/a.min.js")
    assert corpus.counts.lost_share() == 0, "it was asked for"
    assert corpus.size == sum(len(TREE[name]) for name in KEPT)


def test_a_switch_reads_it(tmp_path):
    write_files(tmp_path, TREE)
    corpus, documents = read_corpus(tmp_path, gitignore=False)
    assert len(documents) == len(TREE)
    assert corpus.counts.skipped == {}
    assert corpus.provenance()["gitignore"] == "not looked at"
    assert "gitignore" not in read_corpus(tmp_path)[0].provenance()


def test_includes_do_not_bring_back_what_is_ignored(tmp_path):
    write_files(tmp_path, TREE)
    assert listed_files(tmp_path, include=("*.env",)) == ["src/local.env"]
    assert listed_files(tmp_path, include=("*.env",), gitignore=False) == [
        "secret.env",
        "src/local.env",
    ]


# --- Directories above ----------------------------------------------------------------------------


def repository(root: Path, files: dict[str, str]) -> Path:
    write_files(root, {".git/info/exclude": "", **files})
    return root


def test_patterns_above_the_corpus_hold_as_far_as_its_repository_reaches(tmp_path):
    write_files(tmp_path, {".gitignore": "*.py"})  # outside of the repository
    repository(
        tmp_path / "r",
        {".gitignore": "*.log\n", "src/.gitignore": "/a/*.c\n", ".git/info/exclude": "*.tmp"},
    )
    write_files(
        tmp_path / "r/src/a", dict.fromkeys(["x.py", "x.log", "x.c", "x.tmp", "deep/x.c"], "x")
    )
    assert listed_files(tmp_path / "r/src/a") == ["deep/x.c", "x.py"]


def test_a_directory_that_is_ignored_itself_is_read_if_it_is_the_corpus(tmp_path):
    root = repository(tmp_path, {".gitignore": "build/\n*.log\n"})
    write_files(root / "build/deep", {"x.log": "x", "x.py": "x", ".gitignore": "x.py"})
    assert listed_files(root / "build") == ["deep/.gitignore", "deep/x.log"]
    assert listed_files(root / "build/deep") == [".gitignore", "x.log"]
    assert listed_files(root) == [".gitignore"]


def test_a_repository_inside_a_tree_has_patterns_of_its_own(tmp_path):
    root = repository(tmp_path, {".gitignore": "*.log\n"})
    repository(root / "inner", {"x.log": "x", "x.txt": "x", ".git/info/exclude": "*.txt\n"})
    assert listed_files(root) == [".gitignore", "inner/x.log"]


def test_a_tree_that_is_no_repository_has_patterns_too(tmp_path):
    write_files(
        tmp_path,
        {
            ".gitignore": "*.log\n",
            "a/x.log": "x",
            "a/.gitignore": "*.txt",
            "a/x.txt": "x",
            "x.txt": "x",
        },
    )
    assert listed_files(tmp_path) == [".gitignore", "a/.gitignore", "x.txt"]
    assert listed_files(tmp_path / "a") == [".gitignore", "x.log"], "nothing above it belongs to it"


@pytest.mark.skipif(shutil.which("git") is None, reason="asks Git for a work tree")
def test_a_work_tree_shares_the_patterns_of_its_repository(tmp_path):
    git("init", "-q", tmp_path / "main")
    name = ("-c", "user.name=x", "-c", "user.email=x@x")
    git("-C", tmp_path / "main", *name, "commit", "-q", "--allow-empty", "-m", "x")
    git("-C", tmp_path / "main", "worktree", "add", "-q", tmp_path / "other")
    (tmp_path / "main/.git/info/exclude").write_text("*.log\n")
    write_files(tmp_path / "other", {"x.log": "x", "x.py": "x"})
    assert listed_files(tmp_path / "other") == ["x.py"]


# --- Unusual trees --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content", [b"\xef\xbb\xbf*.log\n", b"*.log\r\n", b"*.log", b"\xff\n*.log\n", b"[z-a]\n*.log"]
)
def test_files_of_patterns_are_read_as_git_reads_them(tmp_path, content):
    write_files(tmp_path, {".gitignore": content, "x.log": "x", "x.py": "x"})
    assert listed_files(tmp_path) == [".gitignore", "x.py"]


def test_a_directory_of_that_name_holds_no_patterns(tmp_path):
    write_files(tmp_path, {".gitignore/x.py": "x", "x.py": "x"})
    assert listed_files(tmp_path) == [".gitignore/x.py", "x.py"]


def test_the_package_is_needed_only_where_there_are_patterns(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pathspec", None)
    write_files(tmp_path, {"x.py": "x"})
    assert listed_files(tmp_path) == ["x.py"]
    write_files(tmp_path, {".gitignore": "*.log"})
    with pytest.raises(
        MissingExtraError, match=r".gitignore: the package 'pathspec' .* 'rest-store\[build\]'"
    ):
        listed_files(tmp_path)
    assert listed_files(tmp_path, gitignore=False) == [".gitignore", "x.py"]


def test_a_bare_repository_is_named_and_not_read(tmp_path):
    write_files(
        tmp_path / "r.git",
        {"HEAD": "ref", "config": "", "objects/x": "x", "refs/x": "x", "hooks/a.sample": "x"},
    )
    write_files(tmp_path, {"HEAD": "x", "x.py": "x"})
    corpus, documents = read_corpus(tmp_path)
    assert len(documents) == 2
    assert corpus.counts.skipped == {"bare Git repository": 1}
    assert corpus.counts.largest["bare Git repository"] == (0, f"{tmp_path}/r.git")
