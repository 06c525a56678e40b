"""Builds killed (SIGKILL) at chosen operations on files: what is at the place is whole, and the rest can be resumed."""

from __future__ import annotations

import random
import signal
import subprocess

import pytest

from build_index import staging
from rest_store.datastore.check import check_datastore
from rest_store.datastore.datastore import Datastore
from tests.shared.builds import (
    build_here,
    command,
    contents,
    documents,
    leftovers,
    place_of,
    require_whole_and_resumable,
    run_build,
    signal_at_step,
    stored_documents,
    write_jsonl,
    write_tokenizer,
)

STEPS = 12


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Arguments of a build of ten shards, what it gives, and an older datastore."""
    directory = tmp_path_factory.mktemp("kill")
    tokenizer = write_tokenizer(directory / "tokenizer.json")
    texts = documents(60, seed=2)
    corpus = write_jsonl(directory / "corpus.jsonl", [*texts, *texts[:10]])
    arguments = ["--corpus", corpus, "--tokenizer", tokenizer, "--shard-tokens", 500, "--memory", "64G", "--quiet"]
    old = write_jsonl(directory / "old.jsonl", texts[:3])
    assert run_build("--corpus", old, "--tokenizer", tokenizer, "--out", directory / "old").returncode == 0
    assert run_build(*arguments, "--out", directory / "new").returncode == 0
    info = Datastore.open(directory / "new").info()
    assert info.shard_count >= 10
    return arguments, contents(directory / "new"), directory / "old"


@pytest.mark.parametrize("after_rename", [False, True])
@pytest.mark.parametrize("has_old", [False, True])
def test_killed_at_every_kind_of_step(inputs, tmp_path, has_old, after_rename):
    """No instant is left to chance: the process kills itself at chosen operations on files."""
    arguments, expected, old = inputs
    steps = range(1, 20, 2) if after_rename else sorted(random.Random(3).sample(range(1, 90), STEPS))
    kept, killed = set(), 0
    for step in steps:
        directory = tmp_path / str(step)
        directory.mkdir()
        out, before = place_of(directory, old if has_old else None)
        script = signal_at_step(directory, signal.SIGKILL, step, after_rename=after_rename)
        build = command(*arguments, "--out", out, before=script)
        process = subprocess.run(build, capture_output=True, check=False)
        if process.returncode == 0:
            break
        assert process.returncode == -9, process.stderr
        killed += 1
        kept.add(require_whole_and_resumable(arguments, out, before, expected))
    assert killed >= 3
    if not after_rename:
        assert len(kept) >= 3, "at different shards"


# --- Where directories cannot be exchanged ----------------------------------------------------------------------------

NO_FLAG = 1 << 20  # which no kernel knows
WITHOUT_EXCHANGE = f"from build_index import staging; staging._RENAME_EXCHANGE = {NO_FLAG}\n"


def test_without_exchange_a_kill_leaves_the_old_datastore_or_the_new_one(inputs, tmp_path, monkeypatch):
    """As on NFS and macOS: whenever the build is killed, the datastore is whole, and the next build succeeds."""
    arguments, _, old = inputs
    assert build_here(*arguments, "--out", tmp_path / "new").exit_code == 0
    monkeypatch.setattr(staging, "_RENAME_EXCHANGE", NO_FLAG)
    documents_of = {"old": stored_documents(old), "new": stored_documents(tmp_path / "new")}
    found = []
    for step in range(1, 200, 9):
        directory = tmp_path / str(step)
        directory.mkdir()
        out, _ = place_of(directory, old)
        script = WITHOUT_EXCHANGE + signal_at_step(directory, signal.SIGKILL, step, after_rename=True)
        status = run_build(*arguments, "--out", out, before=script).returncode
        assert status in (0, -signal.SIGKILL)
        check_datastore(out)
        found.append(next(name for name, stored in documents_of.items() if stored == stored_documents(out)))
        assert build_here(*arguments, "--out", out).exit_code == 0
        assert stored_documents(out) == documents_of["new"]
        assert len(contents(out)) == len(contents(tmp_path / "new"))
        assert leftovers(out) == []
        if status == 0:
            break
    assert found[0] == "old"
    assert found[-1] == "new"
    assert len(found) > 4
