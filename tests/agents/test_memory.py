"""What a memory holds of files: changes, moves, deletions, transcripts that grow, and histories."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rest_store.agents.history import repository_of, sync_history
from rest_store.agents.memory import AgentMemory
from rest_store.drafting.session import DraftSession
from rest_store.errors import CorpusError, StorageError, TokenizerLoadError
from rest_store.live.agent_memory import RECORD_NAME
from rest_store.live.live_datastore import LiveDatastore
from tests.shared.agents import (
    QUESTION,
    git,
    open_memory,
    texts_in,
    transcript,
    tree_texts,
    write_tokenizer,
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    top = tmp_path / "tree"
    for name, text in {
        "a.py": "def a():\n    return 1\n",
        "src/b.py": "def b():\n    return 2\n",
        "src/deep/c.py": "def c():\n    return 3\n",
        "run.log": "not read\n",
        ".gitignore": "*.log\n",
    }.items():
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return top


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "memory"


@pytest.fixture
def tokenizer(tmp_path: Path) -> str:
    return write_tokenizer(tmp_path)


def remember(place: Path, tokenizer: str | None, *paths: Path, **reading: object) -> AgentMemory:
    """Open the memory, and have it hold what is in paths."""
    memory = open_memory(place, tokenizer)
    for path in paths:
        memory.sync(memory.place(str(path), **reading))
    memory.discard()
    return memory


def test_a_tree_is_held_without_what_git_ignores(tree, place, tokenizer):
    with remember(place, tokenizer, tree) as memory:
        assert texts_in(memory.live, "files") == tree_texts(tree)
        assert memory.sizes() == {"files": (4, 4)}
        encode = memory.live.backend.text_encoder._tokenizer.encode
        assert memory.live.namespace("files").count(encode("def b")) == 1


def test_a_second_run_reads_only_what_has_changed(tree, place, tokenizer):
    remember(place, tokenizer, tree).close()
    old = (tree / "a.py").stat()
    (tree / "src/b.py").write_text("def b():\n    return 22\n")
    with remember(place, None, tree) as memory:
        assert (memory.added, memory.discarded) == (1, 1)
        assert texts_in(memory.live, "files") == tree_texts(tree)
    os.utime(tree / "a.py", ns=(old.st_atime_ns, old.st_mtime_ns + 10**9))
    with remember(place, None, tree) as memory:
        assert (memory.added, memory.discarded) == (0, 0)


def test_files_are_read_while_others_are_stored(tree, place, tokenizer, monkeypatch):
    monkeypatch.setattr("rest_store.agents.memory._BATCH_FILES", 1)
    store = AgentMemory._store
    stored: list[str] = []

    def failing(memory, batch):
        if len(stored) == 2:
            raise StorageError("full")
        stored.extend(texts.name for texts in batch)
        return store(memory, batch)

    with open_memory(place, tokenizer) as memory:
        monkeypatch.setattr(AgentMemory, "_store", failing)
        with pytest.raises(StorageError, match="full"):
            memory.sync(memory.place(str(tree)))
        monkeypatch.setattr(AgentMemory, "_store", store)
        assert len(texts_in(memory.live, "files")) == len(stored) == 2
    with remember(place, None, tree) as memory:
        assert memory.added == 2, "the others"
        assert texts_in(memory.live, "files") == tree_texts(tree)


def test_moves_deletions_and_equal_files_are_followed(tree, place, tokenizer):
    shutil.copy(tree / "a.py", tree / "same.py")
    remember(place, tokenizer, tree).close()
    (tree / "src").rename(tree / "lib")
    (tree / "a.py").unlink()
    with remember(place, None, tree) as memory:
        assert (memory.added, memory.discarded) == (0, 0)
        assert texts_in(memory.live, "files") == tree_texts(tree)
    (tree / "same.py").unlink()
    shutil.rmtree(tree / "lib")
    with remember(place, None, tree) as memory:
        assert memory.discarded == 3
        assert texts_in(memory.live, "files") == ["*.log\n"]


def test_a_document_that_comes_back_before_it_is_discarded_stays(tree, place, tokenizer):
    text = (tree / "a.py").read_text()
    with remember(place, tokenizer, tree) as memory:
        here = memory.place(str(tree))
        (tree / "a.py").write_text("x = 1\n")
        memory.sync(here)
        (tree / "a.py").write_text(text)
        memory.sync(here)
        memory.discard()
        assert texts_in(memory.live, "files") == tree_texts(tree)


@pytest.mark.parametrize(
    "relative", ["a.py", "src", "src/deep", "src/deep/c.py", "gone", "gone/x.py"]
)
def test_one_path_can_be_looked_at(tree, place, tokenizer, relative):
    with remember(place, tokenizer, tree) as memory:
        here = memory.place(str(tree))
        for path in (tree / "a.py", tree / "src/b.py", tree / "src/deep/c.py"):
            path.write_text(f"# {path.name}\n")
        memory.sync(here, [relative])
        changed = {"a.py": 1, "src": 2, "src/deep": 1, "src/deep/c.py": 1}.get(relative, 0)
        assert memory.added == 4 + changed
        memory.sync(here)
        memory.discard()
        assert texts_in(memory.live, "files") == tree_texts(tree)


@pytest.mark.parametrize(
    "relative", ["run.log", "logs", "logs/x.py", ".git/config", "node_modules/x.js"]
)
def test_one_path_that_is_left_out_stays_so(tree, place, tokenizer, relative):
    (tree / ".gitignore").write_text("*.log\nlogs/\n")
    with remember(place, tokenizer, tree) as memory:
        path = tree / relative
        path.parent.mkdir(exist_ok=True)
        if not path.suffix and path.name != "config":
            path.mkdir()
            path = path / "y.py"
        path.write_text("y = 2\n")
        memory.sync(memory.place(str(tree)), [relative])
        assert memory.added == 4


def test_an_absent_place_keeps_what_is_known_of_it(tree, place, tokenizer):
    with remember(place, tokenizer, tree) as memory:
        here = memory.place(str(tree))
        tree.rename(tree.with_name("away"))
        memory.sync(here)
        assert len(texts_in(memory.live, "files")) == 4


def test_a_transcript_that_grows_brings_what_is_new(tmp_path, place, tokenizer):
    file = tmp_path / "s.jsonl"
    file.write_text(transcript("One."))
    with remember(place, tokenizer, file) as memory:
        assert memory.sizes() == {"read": (1, 1), "written": (1, 1)}
        file.write_text(transcript("One.", "Two."))
        memory.sync(memory.place(str(file)))
        written = texts_in(memory.live, "written")
        assert [text.rpartition("assistant\n")[2] for text in written] == [
            "One.<|im_end|>\n",
            "Two.<|im_end|>\n",
        ]
        assert texts_in(memory.live, "read") == [f"{QUESTION} 0", f"{QUESTION} 1"]
        documents = [*memory.live.namespace("written").documents()]
        assert [(one.group, one.epoch) for one in documents] == [("s1", 0), ("s1", 1)]
        assert (memory.added, memory.discarded) == (4, 0)
        latest = memory.live.namespace("written").documents(group="s1", latest=1)
        assert [one.epoch for one in latest] == [1]


def test_transcripts_in_a_tree_and_its_files_are_kept_apart(tree, place, tokenizer):
    (tree / "s.jsonl").write_text(transcript("One."))
    with remember(place, tokenizer, tree) as memory:
        assert set(memory.sizes()) == {"files", "read", "written"}


def test_secrets_are_left_out_of_files_and_transcripts_unless_they_are_to_be_kept(
    tree, place, tokenizer
):
    pytest.importorskip("detect_secrets", reason="detect-secrets of [build] is not installed")
    token = "ghp" + "_a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
    (tree / "env").write_text(f"A=1\nTOKEN={token}\n")
    (tree / "s.jsonl").write_text(transcript(f"Use it:\n{token}\n"))
    with remember(place, tokenizer, tree) as memory:
        every = [
            text for name in ("files", "written", "read") for text in texts_in(memory.live, name)
        ]
        assert not any(token in text for text in every)
        assert memory.counts.left_out["lines with secrets"] == 2
    with open_memory(place.with_name("other"), tokenizer, keep_secrets=True) as memory:
        memory.sync(memory.place(str(tree)))
        assert any(token in text for text in texts_in(memory.live, "files"))


def test_the_diffs_of_the_last_commits_are_held(tree, place, tokenizer):
    git(tree, "init", "-q", "-b", "main")
    for number in range(5):
        (tree / "a.py").write_text(f"def a():\n    return {number}\n")
        (tree / "bin").write_bytes(bytes([0, number]))
        git(tree, "add", "-A")
        git(tree, "commit", "-q", "-m", f"c{number}")
    assert repository_of(str(tree / "src")) == str(tree)
    with remember(place, tokenizer) as memory:
        sync_history(memory, str(tree), 3)
        diffs = texts_in(memory.live, "history")
        assert len(diffs) == 3
        hunk = "--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n def a():\n-    return 3\n+    return 4\n"
        assert hunk in diffs
        added = memory.added
        sync_history(memory, str(tree), 3)
        assert memory.added == added
        git(tree, "reset", "-q", "--hard", "HEAD~1")
        sync_history(memory, str(tree), 3)
        memory.discard()
        diffs = texts_in(memory.live, "history")
        assert len(diffs) == 3
        assert hunk not in diffs
        assert (memory.added, memory.discarded) == (added + 1, 1)


def test_a_repository_without_commits_has_no_history(tree, place, tokenizer):
    git(tree, "init", "-q")
    with remember(place, tokenizer) as memory:
        sync_history(memory, str(tree), 3)
        assert memory.added == 0
        shutil.rmtree(tree / ".git")
        with pytest.raises(CorpusError, match="git cannot read the history"):
            sync_history(memory, str(tree), 3)


def test_what_cannot_be_read_now_is_counted_and_what_is_known_of_it_stays(
    tmp_path, place, tokenizer
):
    file = tmp_path / "s.jsonl"
    file.write_text(transcript("One.") * 2)
    with open_memory(place, tokenizer) as memory:
        here = memory.place(str(file))
        memory.sync(here)
        file.write_text(transcript("Two.") + "[1]\n")
        memory.sync(here)
        assert memory.counts.skipped["unreadable now"] == 1
        assert len(texts_in(memory.live, "written")) == 1


_OPEN = """
import sys
from pathlib import Path
from rest_store.agents.memory import AgentMemory
with AgentMemory(Path(sys.argv[1]), tokenizer=sys.argv[2]):
    print(*sorted({"torch", "transformers"} & sys.modules.keys()))
"""


def test_the_directory_of_a_tokenizer_is_loaded_without_torch(
    tmp_path: Path, place: Path, tokenizer: str
) -> None:
    """It would take 300 MiB of a process that follows files for days."""
    directory = tmp_path / "tokenizer"
    directory.mkdir()
    shutil.copy(tokenizer, directory / "tokenizer.json")
    config = directory / "tokenizer_config.json"
    config.write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    command = [sys.executable, "-c", _OPEN, str(place), str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


def test_a_memory_without_a_tokenizer_says_so(place):
    with pytest.raises(TokenizerLoadError, match="tokenizer is unknown, expected --tokenizer"):
        AgentMemory(place)


def test_a_transcript_without_a_chat_template_says_so(tmp_path, place, tokenizer):
    file = tmp_path / "s.jsonl"
    file.write_text(transcript("One."))
    with AgentMemory(place, tokenizer=tokenizer) as memory:
        here = memory.place(str(file))
        with pytest.raises(CorpusError, match=r"has no chat template; pass --chat-template"):
            memory.sync(here)


def test_an_address_is_refused(place, tokenizer):
    with open_memory(place, tokenizer) as memory, pytest.raises(CorpusError):
        memory.place("s3://bucket/x")


def test_a_damaged_record_is_named(tree, place, tokenizer):
    remember(place, tokenizer, tree).close()
    for path in place.glob(f"{RECORD_NAME}-*"):
        path.unlink()
    (place / RECORD_NAME).write_bytes(b"no database" * 999)
    with pytest.raises(StorageError, match=f"{RECORD_NAME}: the record is unusable"):
        open_memory(place, None)
    (place / RECORD_NAME).unlink()
    with remember(place, tokenizer, tree) as memory:
        assert memory.added == 0
        assert texts_in(memory.live, "files") == tree_texts(tree)


def test_others_read_the_memory_meanwhile(tree, place, tokenizer):
    with remember(place, tokenizer, tree), LiveDatastore.open(place, read_only=True) as reader:
        assert texts_in(reader, "files") == tree_texts(tree)


def test_each_kind_of_text_is_a_source_of_a_session(tmp_path, tree, place, tokenizer):
    file = tmp_path / "s.jsonl"
    file.write_text(transcript("The answer is in b.py, which returns two."))
    with (
        remember(place, tokenizer, tree, file) as memory,
        LiveDatastore.open(place, read_only=True) as live,
    ):
        encode = memory.live.backend.text_encoder._tokenizer.encode
        for name, context, rest in (
            ("written", "The answer is in b.py,", " which returns"),
            ("files", "def b():", "\n    return 2"),
        ):
            prompt = encode(context).tolist()
            with DraftSession(sources=[live.namespace(name)], prompt=prompt) as session:
                drafted = {*session.draft(max_nodes=16).tokens.tolist()}
            whole = encode(context + rest).tolist()
            assert whole[len(prompt)] in drafted


def test_earlier_versions_of_a_file_are_kept_if_asked_for(tree, place, tokenizer):
    def save(memory: AgentMemory, *texts: str) -> list[str]:
        """Save a file with one text after the other; return what the memory holds of it."""
        for text in texts:
            (tree / "a.py").write_text(text)
            memory.sync(memory.place(str(tree)))
        memory.discard()
        return [text for text in texts_in(memory.live, "files") if text.startswith("v = ")]

    with open_memory(place, tokenizer, keep_versions=3) as memory:
        assert save(memory, "v = 1\n") == ["v = 1\n"]
        assert save(memory, "v = 2\n", "v = 3\n", "v = 4\n") == ["v = 2\n", "v = 3\n", "v = 4\n"]
        assert save(memory, "v = 2\n") == ["v = 2\n", "v = 3\n", "v = 4\n"], "as it was before"
        assert save(memory, "v = 5\n") == ["v = 2\n", "v = 4\n", "v = 5\n"]
        (tree / "b.py").write_text("v = 4\n")
    with open_memory(place, None, keep_versions=2) as memory:
        assert save(memory, "v = 6\n") == ["v = 4\n", "v = 5\n", "v = 6\n"], "4 is another file's"
        (tree / "a.py").unlink()
        memory.sync(memory.place(str(tree)))
        memory.discard()
        held = [text for text in texts_in(memory.live, "files") if text.startswith("v = ")]
        assert held == ["v = 4\n"], "no version of a file that is gone"
