"""Builds killed (SIGKILL) at chosen operations on files.

The datastore at its place is whole, and the build can be resumed.
"""

from __future__ import annotations

import random
import shutil
import signal
import subprocess

import pytest

from build_index import staging
from build_index.staging import finished_shards
from rest_store.datastore.check import check_datastore
from rest_store.datastore.datastore import Datastore
from tests.shared.builds import (
    build_here,
    command,
    contents,
    documents,
    leftovers,
    run_build,
    stored_documents,
    write_jsonl,
    write_tokenizer,
)

STEPS = 12

# A build does this first, to be killed at the n-th time that the interpreter reports an operation
# on files below a directory (PEP 578).
KILLED = """
import os, signal, sys
left = [{step}]
def hook(event, arguments):
    is_of_files = event == "open" or event.startswith("os.")
    if is_of_files and any({place!r} in str(part) for part in arguments):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
"""
AT_ONCE = "sys.addaudithook(hook)\n"
IN_PLACE = """
from build_index import staging
put_in_place = staging.Staging.put_in_place
def placing(self):
    sys.addaudithook(hook)
    put_in_place(self)
staging.Staging.put_in_place = placing
"""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Arguments of a build of ten shards, its datastore, and an older one."""
    directory = tmp_path_factory.mktemp("kill")
    tokenizer = write_tokenizer(directory / "tokenizer.json")
    texts = documents(60, seed=2)
    corpus = write_jsonl(directory / "corpus.jsonl", [*texts, *texts[:10]])
    arguments = [
        "--corpus",
        corpus,
        "--tokenizer",
        tokenizer,
        "--shard-tokens",
        500,
        "--memory",
        "64G",
        "--quiet",
    ]
    old = write_jsonl(directory / "old.jsonl", texts[:3])
    assert (
        run_build("--corpus", old, "--tokenizer", tokenizer, "--out", directory / "old").returncode
        == 0
    )
    assert run_build(*arguments, "--out", directory / "new").returncode == 0
    info = Datastore.open(directory / "new").info()
    assert info.shard_count >= 10
    return arguments, contents(directory / "new"), directory / "old"


def require_whole_and_resumable(arguments, out, old, expected):
    """After a kill, the datastore is the new one, the old one, or absent.

    Another build then makes the new one. It resumes, or begins anew if there is nothing to resume.
    Return the number of shards that it used again.
    """
    assert leftovers(out) in ([], [".ds.building"])
    files = contents(out)
    assert files in ([expected] if old is None else [expected, old]) or (
        not out.exists() and old is None
    )
    shards = finished_shards(out)
    run = build_here(*arguments, "--out", out, "--resume")
    if run.exit_code:
        assert "unfinished build is absent" in run.output, run.output
        assert shards == 0
        run = build_here(*arguments, "--out", out)
    assert run.exit_code == 0, run.output
    assert contents(out) == expected
    assert leftovers(out) == []
    return shards


@pytest.mark.parametrize("after_rename", [False, True])
@pytest.mark.parametrize("has_old", [False, True])
def test_killed_at_every_kind_of_step(inputs, tmp_path, has_old, after_rename):
    """No instant is left to chance: the process kills itself at chosen operations on files."""
    arguments, expected, old = inputs
    steps = (
        range(1, 20, 2) if after_rename else sorted(random.Random(3).sample(range(1, 90), STEPS))
    )
    shard_counts = set()
    killed = 0
    for step in steps:
        out = tmp_path / str(step) / "ds"
        out.parent.mkdir()
        if has_old:
            shutil.copytree(old, out)
        script = KILLED.format(place=str(out.parent), step=step) + (
            IN_PLACE if after_rename else AT_ONCE
        )
        build = command(*arguments, "--out", out, before=script)
        process = subprocess.run(build, capture_output=True, check=False)
        if process.returncode == 0:
            break
        assert process.returncode == -9, process.stderr
        killed += 1
        shard_counts.add(
            require_whole_and_resumable(
                arguments, out, contents(old) if has_old else None, expected
            )
        )
    assert killed >= 3
    if not after_rename:
        assert len(shard_counts) >= 3, "at different shards"


# --- Where directories cannot be exchanged --------------------------------------------------------

NO_FLAG = 1 << 20  # which no kernel knows
WITHOUT_EXCHANGE = f"from build_index import staging; staging._RENAME_EXCHANGE = {NO_FLAG}\n"


def test_without_exchange_a_kill_leaves_the_old_datastore_or_the_new_one(
    inputs, tmp_path, monkeypatch
):
    """Without an exchange of names, as on NFS, a kill leaves a whole datastore."""
    arguments, _, old = inputs
    assert build_here(*arguments, "--out", tmp_path / "new").exit_code == 0
    monkeypatch.setattr(staging, "_RENAME_EXCHANGE", NO_FLAG)
    documents_of = {"old": stored_documents(old), "new": stored_documents(tmp_path / "new")}
    states = []
    for step in range(1, 200, 9):
        out = shutil.copytree(old, tmp_path / str(step) / "ds")
        script = WITHOUT_EXCHANGE + KILLED.format(place=str(out.parent), step=step) + IN_PLACE
        status = run_build(*arguments, "--out", out, before=script).returncode
        assert status in (0, -signal.SIGKILL)
        check_datastore(out)
        states.append(
            next(name for name, stored in documents_of.items() if stored == stored_documents(out))
        )
        assert build_here(*arguments, "--out", out).exit_code == 0
        assert stored_documents(out) == documents_of["new"]
        assert len(contents(out)) == len(contents(tmp_path / "new"))
        assert leftovers(out) == []
        if status == 0:
            break
    assert states[0] == "old"
    assert states[-1] == "new"
    assert len(states) > 4
