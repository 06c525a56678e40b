"""Processes that follow a tree while it changes at random, and are killed at random moments.

What must hold: once the last process has looked, the memory holds the texts of the tree's files, of
its transcripts and of its last commits, each once, and nothing else; and a datastore that was
killed is intact.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path

from rest_store.live.live_check import check_live
from rest_store.live.live_datastore import LiveDatastore
from tests.fuzz import campaign
from tests.shared.agents import git, texts_in, transcript, tree_texts, write_tokenizer
from tests.shared.models import CHATML

_NAMES = ("a.py", "b.py", "c.txt", "d e.md", "é.py")
_DIRECTORIES = ("", "src", "src/deep", "lib", "new")
_COMMITS = 5


class Fuzzer(campaign.Fuzzer):
    """Follows one tree by one process after the other."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        super().__init__(directory, stack)
        self._tokenizer = write_tokenizer(directory)

    def run(self, chance: random.Random) -> Counter[str]:
        """Run one case: a few processes."""
        outcomes: Counter[str] = Counter()
        top = self.directory / "tree"
        place = self.directory / "memory"
        top.mkdir()
        tree = _Tree(top, chance)
        try:
            for number in range(chance.choice([1, 2, 3])):
                self.case = f"process {number}"
                process = self._start(top, place)
                is_killed = self._change(chance, tree, process)
                outcomes["killed" if is_killed else "ended"] += 1
            self.case = "the last process"
            done = subprocess.run(self._command(top, place), capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            require_equal(tree, place)
        finally:
            shutil.rmtree(top)
            shutil.rmtree(place, ignore_errors=True)
        return outcomes

    def _command(self, top: Path, place: Path) -> list[str]:
        options = [
            "--git",
            str(_COMMITS),
            "--tokenizer",
            self._tokenizer,
            "--chat-template",
            CHATML,
        ]
        into = ["--into", str(place), "--json"]
        return [sys.executable, "-m", "rest_store", "remember", str(top), *into, *options]

    def _start(self, top: Path, place: Path) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self._command(top, place), "--follow"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )

    def _change(self, chance: random.Random, tree: _Tree, process: subprocess.Popen[str]) -> bool:
        """Change the tree while it is followed; return whether the process was killed."""
        is_killed = chance.random() < 0.7
        with process, ExitStack() as stack:
            stack.callback(process.kill)
            assert process.stdout is not None
            if chance.random() < 0.7:
                process.stdout.readline()
            for _ in range(chance.choice([0, 3, 20])):
                tree.change()
                time.sleep(chance.choice([0, 0, 0, 0.01, 0.1]))
            if is_killed:
                time.sleep(chance.choice([0, 0.02, 0.2]))
                process.kill()
            else:
                time.sleep(chance.choice([0, 0.5]))
                process.terminate()
            _, said = process.communicate()
        assert process.returncode in ((-9,) if is_killed else (0, -15)), said
        assert "Traceback" not in said, said
        return is_killed


class _Tree:
    """A tree that changes at random.

    Args:
        top: an empty directory.
        chance: what happens.
    """

    def __init__(self, top: Path, chance: random.Random) -> None:
        self.top = top
        self.sessions: dict[str, list[str]] = {}
        self._chance = chance
        self._number = 0
        git(top, "init", "-q", "-b", "main")
        (top / ".gitignore").write_text("*.log\n")
        for _ in range(5):
            self.save()
        self.commit()

    def change(self) -> None:
        """Change something."""
        acts = (
            [self.save] * 6 + [self.speak] * 2 + [self.move, self.remove, self.commit, self.switch]
        )
        with suppress(OSError, subprocess.CalledProcessError):  # there is no such file to change
            self._chance.choice(acts)()

    def save(self) -> None:
        """Write a file, in place or by another one in its place."""
        self._number += 1
        path = self._path()
        path.parent.mkdir(parents=True, exist_ok=True)
        text = f"x = {self._number}\n" * self._chance.choice([1, 1, 30])
        if self._chance.random() < 0.1:
            text = "same\n"
        if self._chance.random() < 0.5:
            path.write_text(text)
        else:
            other = path.with_suffix(".log")
            other.write_text(text)
            other.replace(path)

    def speak(self) -> None:
        """Have a session go on, or begin one."""
        session = self._chance.choice("rst")
        self._number += 1
        answers = self.sessions.setdefault(session, [])
        answers.append(f"Answer {self._number}.")
        path = self.top / f"{session}.jsonl"
        path.write_text(transcript(*answers, session=session))

    def move(self) -> None:
        """Move a file or a directory."""
        path = self._path()
        other = self._path()
        path = self._chance.choice([path, path.parent])
        if path != self.top and not other.exists() and path not in other.parents:
            other.parent.mkdir(parents=True, exist_ok=True)
            path.rename(other)

    def remove(self) -> None:
        """Remove a file or a directory."""
        path = self._path()
        if path.parent != self.top and self._chance.random() < 0.3:
            shutil.rmtree(path.parent)
        elif path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()

    def commit(self) -> None:
        """Commit all but the sessions."""
        git(self.top, "add", "-A", "--", ".", ":!*.jsonl")
        git(self.top, "commit", "-q", "--allow-empty", "-m", "c")

    def switch(self) -> None:
        """Commit, and go to another branch or an earlier commit."""
        self.commit()
        name = f"b{self._chance.randrange(3)}"
        known = name in git(self.top, "branch", "--list", name)
        git(self.top, "checkout", "-q", *([] if known else ["-b"]), name)

    def _path(self) -> Path:
        return self.top / self._chance.choice(_DIRECTORIES) / self._chance.choice(_NAMES)


def require_equal(tree: _Tree, place: Path) -> None:
    """Compare a memory with what it is to hold."""
    with LiveDatastore.open(place, read_only=True) as live:
        files = {text for text in tree_texts(tree.top) if '"sessionId"' not in text}
        assert texts_in(live, "files") == sorted(files), "other files"
        said = sorted({answer for answers in tree.sessions.values() for answer in answers})
        written = sorted(
            text.rpartition("assistant\n")[2].removesuffix("<|im_end|>\n")
            for text in texts_in(live, "written")
        )
        assert written == said, f"other answers: {written} {said}"
        commits = git(tree.top, "rev-list", f"-n{_COMMITS}", "HEAD").split()
        shown = git(tree.top, "-c", "core.quotePath=off", "log", f"-n{_COMMITS}", "-p", "--format=")
        assert len(texts_in(live, "history")) == shown.count("\n+++ "), commits
        assert not json.loads(json.dumps(live.info().failure))
    check_live(place)
