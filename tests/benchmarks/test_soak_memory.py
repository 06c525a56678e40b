"""The soak of an agent's memory: its tree, and the comparison with what is remembered."""

from __future__ import annotations

from pathlib import Path

import pytest
import soak_memory

from build_index.tokenization import load_tokenizer
from rest_store.live.live_datastore import LiveDatastore
from tests.shared.agents import git, open_memory, write_tokenizer


@pytest.fixture
def tree(tmp_path: Path) -> soak_memory.Tree:
    (tmp_path / "tree").mkdir()
    return soak_memory.Tree(tmp_path / "tree", 40, seed=1)


def test_a_tree_changes_in_each_way(tree: soak_memory.Tree) -> None:
    before = {path: path.read_text() for path in tree.files()}
    assert len(before) == 40
    for act in ("save", "move", "remove", "rename"):
        files = tree.files()
        getattr(tree, act)(files)
        after = {path: path.read_text() for path in tree.files()}
        assert after != before, act
        before = after
    assert len(before) == 39
    tree.switch(tree.files())
    assert git(tree.top, "branch", "--show-current").strip() == "main"
    tree.switch(tree.files())
    assert {path: path.read_text() for path in tree.files()} == before


def test_a_memory_that_differs_from_its_tree_is_seen(
    tree: soak_memory.Tree, tmp_path: Path
) -> None:
    tokenizer = write_tokenizer(tmp_path)
    contents = soak_memory.Contents(tree, tmp_path / "memory", load_tokenizer(tokenizer))
    with open_memory(tmp_path / "memory", tokenizer, keep_secrets=True) as memory:
        here = memory.place(str(tree.top))
        memory.sync(here)
        assert contents.differences() == 0
        tree.remove(tree.files())
        assert contents.differences() == 1
        tree.save(tree.files())
        assert contents.differences() == 3, "an old text is there, and a new one is not"
        memory.sync(here)
        memory.discard()
        assert contents.differences() == 0


def test_a_save_takes_until_the_old_text_is_gone(
    tree: soak_memory.Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = write_tokenizer(tmp_path)
    with open_memory(tmp_path / "memory", tokenizer, keep_secrets=True) as memory:
        here = memory.place(str(tree.top))
        memory.sync(here)
        naps: list[float] = []

        def following(seconds: float) -> None:
            """Take the new text at the second look, and the old one away at the fourth."""
            naps.append(seconds)
            if len(naps) == 2:
                memory.sync(here)
            elif len(naps) == 4:
                memory.discard()
            sleep(0.1)

        sleep = soak_memory.time.sleep
        monkeypatch.setattr(soak_memory.time, "sleep", following)
        target = load_tokenizer(tokenizer)
        with LiveDatastore.open(tmp_path / "memory", read_only=True) as live:
            assert soak_memory.seconds_of_a_save(tree, live, target) >= 0.4
        monkeypatch.undo()
        assert len(naps) >= 4
