"""Following: a process that goes on, and takes over what changes in files."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from rest_store.agents.follower import Follower
from rest_store.agents.history import sync_history
from rest_store.agents.memory import AgentMemory
from rest_store.cli import main
from rest_store.errors import MissingExtraError
from tests.shared.agents import git, open_memory, texts_in, transcript, tree_texts, write_tokenizer
from tests.shared.models import CHATML

needs_watchfiles = pytest.mark.skipif(
    not any((Path(entry) / "watchfiles").is_dir() for entry in sys.path if entry),
    reason="the package watchfiles of [agents] is not installed",
)


def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds; fail after two minutes."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("it never came to hold")


@contextmanager
def followed(memory: AgentMemory, *paths: Path, history: bool = False) -> Iterator[Follower]:
    """Follow paths by a thread; they are held from the beginning."""
    places = [memory.place(str(path)) for path in paths]

    def take_history() -> None:
        sync_history(memory, str(paths[0]), 3)

    follower = Follower(memory, places, sync_history=take_history if history else None)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            for place in places:
                memory.sync(place)
            follower.run()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield follower
    finally:
        follower.stop()
        thread.join()
    assert not failures, failures


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    top = tmp_path / "tree"
    (top / "src").mkdir(parents=True)
    (top / ".gitignore").write_text("*.log\n")
    for number in range(5):
        (top / "src" / f"{number}.py").write_text(f"x = {number}\n")
    return top


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[AgentMemory]:
    with open_memory(tmp_path / "memory", write_tokenizer(tmp_path)) as memory:
        yield memory


@needs_watchfiles
def test_saved_new_moved_and_deleted_files_are_taken_over(tree, memory):
    def is_equal() -> bool:
        return texts_in(memory.live, "files") == tree_texts(tree)

    with followed(memory, tree):
        until(is_equal)
        (tree / "src/0.py").write_text("x = 'saved'\n")
        until(is_equal)
        unfinished = tree / "src/.1.py.swp"
        unfinished.write_text("x = 'by another file'\n")
        unfinished.replace(tree / "src/1.py")
        (tree / "new").mkdir()
        (tree / "new/deep").mkdir()
        (tree / "new/deep/n.py").write_text("x = 'new'\n")
        until(is_equal)
        (tree / "src").rename(tree / "lib")
        (tree / "lib/2.py").unlink()
        shutil.rmtree(tree / "new")
        until(is_equal)
        (tree / "lib/run.log").write_text("not read\n")
        (tree / "lib/last.py").write_text("x = 'last'\n")
        until(is_equal)


@needs_watchfiles
def test_rules_of_git_that_change_are_taken_over(tree, memory):
    with followed(memory, tree):
        until(lambda: len(texts_in(memory.live, "files")) == 6)
        (tree / ".gitignore").write_text("src/\n")
        until(lambda: texts_in(memory.live, "files") == ["src/\n"])


@needs_watchfiles
def test_a_branch_switch_is_taken_over_with_the_history(tree, memory):
    git(tree, "init", "-q", "-b", "main")
    git(tree, "add", "-A")
    git(tree, "commit", "-q", "-m", "first")
    git(tree, "checkout", "-q", "-b", "other")
    for number in range(200):
        (tree / "src" / f"{number}.py").write_text(f"y = {number}\n")
    git(tree, "add", "-A")
    git(tree, "commit", "-q", "-m", "second")

    def is_equal() -> bool:
        return texts_in(memory.live, "files") == tree_texts(tree)

    with followed(memory, tree, history=True):
        until(is_equal)
        until(lambda: len(texts_in(memory.live, "history")) == 206)
        for branch, diffs in (("main", 6), ("other", 206)):
            git(tree, "checkout", "-q", branch)
            until(is_equal)
            until(lambda diffs=diffs: len(texts_in(memory.live, "history")) == diffs)


@needs_watchfiles
def test_a_transcript_is_followed_as_it_grows_and_where_it_is_written_anew(tmp_path, memory):
    file = tmp_path / "session.jsonl"
    file.write_text(transcript("Answer 0."))
    with followed(memory, file):
        for number in range(1, 4):
            answers = [f"Answer {one}." for one in range(number + 1)]
            text = transcript(*answers)
            with file.open("a") as opened:
                opened.write(text[len(file.read_text()) :])
            until(lambda number=number: len(texts_in(memory.live, "written")) == number + 1)
        other = file.with_suffix(".new")
        other.write_text(transcript("Anew."))
        other.replace(file)
        expected = ["Anew.<|im_end|>\n"]
        until(lambda: [text[-16:] for text in texts_in(memory.live, "written")] == expected)


@needs_watchfiles
def test_the_memory_may_lie_in_the_tree(tree, tmp_path):
    tokenizer = write_tokenizer(tmp_path)
    with open_memory(tree / "memory", tokenizer) as memory:
        with followed(memory, tree):
            (tree / "a.py").write_text("a = 1\n")
            until(lambda: len(texts_in(memory.live, "files")) == 7)
        added = memory.added
        memory.sync(memory.place(str(tree)))
        assert memory.added == added


@needs_watchfiles
def test_the_old_version_goes_from_a_segment_of_the_whole_tree(tree, memory):
    with followed(memory, tree):
        until(lambda: len(texts_in(memory.live, "files")) == 6)
        memory.live.compact()
        assert memory.live.info().shard_count == 1
        (tree / "src/0.py").write_text("x = 'saved'\n")
        until(lambda: texts_in(memory.live, "files") == tree_texts(tree))


@needs_watchfiles
def test_discarding_rests_for_as_long_as_it_takes(tree, memory, monkeypatch):
    monkeypatch.setattr("rest_store.agents.follower._DISCARDING_REST", 1e9)
    with followed(memory, tree):
        until(lambda: len(texts_in(memory.live, "files")) == 6)
        for number in range(3):
            (tree / "src/0.py").write_text(f"x = 'saved {number}'\n")
            until(lambda: f"x = 'saved {number}'\n" in texts_in(memory.live, "files"))
    assert len(texts_in(memory.live, "files")) > 7, "old versions are still there"
    memory.discard()
    assert texts_in(memory.live, "files") == tree_texts(tree)


def test_without_watchfiles_the_extra_is_named(memory, monkeypatch):
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    with pytest.raises(MissingExtraError, match=r"'watchfiles' .* 'rest-store\[agents\]'"):
        Follower(memory, [])


# --- The command ----------------------------------------------------------------------------------


def arguments(tmp_path: Path, *paths: Path) -> list[str]:
    tokenizer = write_tokenizer(tmp_path)
    into = ["--into", str(tmp_path / "memory"), "--tokenizer", tokenizer]
    return ["remember", *map(str, paths), *into, "--chat-template", CHATML]


def test_the_command_says_what_there_is(tree, tmp_path):
    (tree / "s.jsonl").write_text(transcript("One."))
    done = CliRunner().invoke(main, arguments(tmp_path, tree))
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines() == [
        f"{tmp_path}/memory: 8 added, 0 discarded; now there are",
        "  files    6 documents of 6 files",
        "  read     1 document of 1 file",
        "  written  1 document of 1 file",
    ]
    done = CliRunner().invoke(
        main, ["remember", str(tree), "--into", f"{tmp_path}/memory", "--json"]
    )
    assert json.loads(done.stdout)["added"] == 0


def test_the_command_takes_histories(tree, tmp_path):
    git(tree, "init", "-q")
    git(tree, "add", "-A")
    git(tree, "commit", "-q", "-m", "first")
    done = CliRunner().invoke(main, [*arguments(tmp_path, tree / "src"), "--git", "9", "--json"])
    assert json.loads(done.stdout)["namespaces"] == {
        "files": {"sources": 5, "documents": 5},
        "history": {"sources": 1, "documents": 6},
    }


def test_an_error_is_one_line(tmp_path):
    done = CliRunner().invoke(main, arguments(tmp_path, tmp_path / "absent"))
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert "absent" in done.stderr


@needs_watchfiles
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_follows_until_it_is_stopped_and_uses_no_time_at_rest(tree, tmp_path, number):
    command = [sys.executable, "-m", "rest_store", *arguments(tmp_path, tree), "--follow", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["added"] == 6
            (tree / "src/0.py").write_text("x = 'saved'\n")
            until(lambda: _seconds_of_work(process.pid, within=4) <= 0.05)
            process.send_signal(number)
            said, _ = process.communicate()
            assert process.returncode == 0
            assert json.loads(said)["added"] == 7
        finally:
            process.kill()


def _seconds_of_work(process: int, *, within: float) -> float:
    """The processor time that a process uses within some seconds."""
    before = _cpu_seconds(process)
    time.sleep(within)
    return _cpu_seconds(process) - before


def _cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
