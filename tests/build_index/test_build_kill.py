"""Builds killed (SIGKILL) at chosen operations on files: what is at the place is whole, and the rest can be resumed."""

from __future__ import annotations

import random
import signal
import subprocess

import pytest

from rest_store.datastore.datastore import Datastore
from tests.shared.builds import (
    command,
    contents,
    documents,
    place_of,
    require_whole_and_resumable,
    run_build,
    signal_at_step,
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
