"""The history of a working tree: the hunks of its last commits, as `git log -p` writes them."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from build_index.documents import MAX_DOCUMENT_BYTES, Document
from rest_store.agents.memory import AgentMemory, Texts, name_of
from rest_store.agents.record import Key
from rest_store.errors import CorpusError, describe
from rest_store.live.agent_memory import HISTORY

_COMMITS_AT_ONCE = 32
_SAFE = ("-c", "core.quotePath=off", "-c", "diff.noprefix=false", "-c", "diff.mnemonicPrefix=false")
_DIFF = ("--patch", "--no-color", "--no-ext-diff", "--no-textconv", "--unified=3", "--no-notes")
_FILE = re.compile(r"^diff --git .*$", re.MULTILINE)
_HUNK = re.compile(r"^@@ ", re.MULTILINE)


def repository_of(path: str) -> str | None:
    """Return the directory of the repository that a path is in, or None."""
    start = Path(path)
    for directory in (start, *start.parents):
        if (directory / ".git").exists():
            return os.fspath(directory)
    return None


def sync_history(memory: AgentMemory, repository: str, number: int, *, below: str = "") -> None:
    """Make a memory hold the diffs of the last commits; those of earlier ones are discarded.

    Args:
        memory: that holds them, one document a file and commit.
        repository: the directory of the working tree.
        number: of commits.
        below: a directory or file of it, whose diffs alone are taken; "": all.

    Raises:
        CorpusError: git is not installed, or cannot read the repository.
        StorageError: the memory cannot be written.
    """
    top = f"{name_of(repository)}/.git commits {below}".rstrip()
    paths = ["--", below] if below else []
    commits: list[str] = []
    if _git(repository, "rev-parse", "--verify", "--quiet", "HEAD", ok=(0, 1)):
        limit = f"--max-count={number}"
        listed = _git(repository, "rev-list", limit, "--no-merges", "HEAD", *paths)
        commits = listed.decode().split()
    known = memory.known(top)
    wanted = [f"{top}/{commit}" for commit in commits]
    new = [commit for commit in commits if f"{top}/{commit}" not in known]
    memory.store(_texts(memory, repository, top, new, paths))
    memory.store(Texts(name, "", {}) for name in known.keys() - {*wanted})


def _texts(
    memory: AgentMemory, repository: str, top: str, commits: Sequence[str], paths: Sequence[str]
) -> Iterator[Texts]:
    for begin in range(0, len(commits), _COMMITS_AT_ONCE):
        some = commits[begin : begin + _COMMITS_AT_ONCE]
        options = ("--no-walk=unsorted", "--format=%x00%H %ct", *_DIFF)
        shown = _git(repository, "log", *options, *some, *paths).decode("utf-8", "replace")
        for part in shown.split("\0")[1:]:
            head, _, patch = part.partition("\n")
            commit, _, seconds = head.partition(" ")
            documents = {
                Key(HISTORY, f"{commit}-{index}"): memory.clean(document)
                for index, document in enumerate(_documents(patch, commit, int(seconds)))
            }
            yield Texts(f"{top}/{commit}", "1", documents)


def _documents(patch: str, commit: str, seconds: int) -> Iterator[Document]:
    """Yield the diff of each file of a commit, from its two names on; binary ones have none."""
    begins = [match.start() for match in _FILE.finditer(patch)]
    for begin, end in itertools.pairwise([*begins, len(patch)]):
        diff = patch[begin:end]
        names = diff.find("\n--- ")
        if _HUNK.search(diff) is None or names < 0 or len(diff) > MAX_DOCUMENT_BYTES:
            continue
        yield Document(text=diff[names + 1 :], session=commit, order=seconds, kind=HISTORY)


def _git(repository: str, *arguments: str, ok: tuple[int, ...] = (0,)) -> bytes:
    """Run git in a repository, and return its output; `ok`: statuses that are no errors."""
    environment = {**os.environ, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", "GIT_PAGER": "cat"}
    command = ["git", "-C", repository, *_SAFE, *arguments]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, check=False, stdin=subprocess.DEVNULL
        )
        if done.returncode not in ok:
            done.check_returncode()
    except FileNotFoundError as error:
        raise CorpusError(describe(repository, "git", "not installed", "there")) from error
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode("utf-8", "replace").strip().splitlines()
        reason = said[-1] if said else f"status {error.returncode}"
        raise CorpusError(f"{repository}: git cannot read the history ({reason})") from error
    return done.stdout
