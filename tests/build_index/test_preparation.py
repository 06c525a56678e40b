"""Drafts of frequent sequences as a part of builds."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from build_index import builder, pipeline, preparation
from build_index.cli import summary_text
from build_index.memory import WORK_BYTES, MemoryPlan
from build_index.options import BuildSummary
from build_index.progress import StageProgress
from rest_store.datastore.check import check_datastore
from rest_store.datastore.datastore import Datastore
from rest_store.datastore.kernel import native_kernel
from rest_store.datastore.manifest import FILE_NAME as MANIFEST_NAME
from rest_store.datastore.manifest import Manifest
from rest_store.datastore.prepared import FILE_NAME, PreparedFile
from rest_store.datastore.shard import Shard
from rest_store.errors import MemoryBudgetError, OutputError
from tests.shared.builds import build_quick, contents, documents, leftovers, options, run_build, write_jsonl
from tests.shared.strategies import refused

pytestmark = pytest.mark.skipif(native_kernel() is None, reason="without the native kernel nothing is prepared")


@pytest.fixture
def small_heavy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "LEAST", 50)
    monkeypatch.setattr(preparation, "BYTES_A_TOKEN", 100)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "corpus.jsonl", documents(400))


@pytest.mark.usefixtures("small_heavy")
def test_a_build_prepares_drafts(tmp_path: Path, corpus: Path, tokenizer: Path) -> None:
    told: list[list[Any]] = []
    asked = options(corpus, tokenizer, tmp_path / "ds", shard_tokens=5_000)
    summary = builder.build(asked, lambda stages: told.append(list(stages)))
    store = Datastore.open(tmp_path / "ds")
    assert len(store.shards) > 1
    assert store.prepared is not None
    assert summary.prepared_drafts == store.prepared.header.draft_count == store.info().prepared_count > 20
    assert summary.size == store.info().size == sum(file.path.stat().st_size for file in store.files)
    assert summary.stage_seconds["prepare"] > 0
    assert [(stage.stage, stage.done, stage.total) for stage in told[-1]][3:] == [
        ("preparing", summary.prepared_drafts, summary.prepared_drafts)
    ]
    check_datastore(tmp_path / "ds", full=True)
    in_one = build_quick(corpus, tokenizer, tmp_path / "one")
    assert in_one.prepared_drafts == summary.prepared_drafts
    first, second = (PreparedFile.open(tmp_path / name / FILE_NAME).payload for name in ("ds", "one"))
    assert np.array_equal(first, second)  # however the corpus is cut into shards
    build_quick(corpus, tokenizer, tmp_path / "ds")  # replaces one that has such a file
    assert contents(tmp_path / "ds") == contents(tmp_path / "one")


@pytest.mark.usefixtures("small_heavy")
def test_how_much_is_left_to_prepare_is_told(
    tmp_path: Path, corpus: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "_SECONDS_BETWEEN_REPORTS", 0)
    told: list[StageProgress] = []
    builder.build(options(corpus, tokenizer, tmp_path / "ds"), lambda stages: told.extend(stages[3:]))
    *before, end = told
    assert end.done == end.total == before[-1].done > 20
    for progress in before:
        assert progress.total is not None
        assert progress.done <= progress.total < 20 * end.done
    halfway = before[len(before) // 2]
    assert halfway.share == pytest.approx(0.5, abs=0.3)


@pytest.mark.usefixtures("small_heavy")
def test_pages_are_given_back_where_memory_is_short(
    tmp_path: Path, corpus: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it is where the shards do not fit, but what drafts read of them does; with still less nothing is prepared."""
    summary = build_quick(corpus, tokenizer, tmp_path / "ds")
    assert summary.prepared_drafts > 0
    assert summary.drafts_fit
    shard_size = sum((tmp_path / "ds" / f"shard-00000.{kind}").stat().st_size for kind in ("tokens", "suffixes"))
    released = []
    release = Shard.release_pages
    monkeypatch.setattr(Shard, "release_pages", lambda shard: (released.append(shard), release(shard)))

    def built(room: int, resident: int) -> BuildSummary:
        plan = MemoryPlan(WORK_BYTES + 100 + room, 50, 50, 1 << 20)
        assert plan.for_shards == room
        with monkeypatch.context() as patch:
            patch.setattr(builder, "plan_memory", lambda *_: plan)
            patch.setattr(builder, "resident_bytes", lambda field="VmRSS": plan.budget - room + resident)
            return build_quick(corpus, tokenizer, tmp_path / "again")

    assert built(shard_size, shard_size).prepared_drafts == summary.prepared_drafts
    assert not released
    monkeypatch.setattr(preparation, "PAGES_OF_A_DRAFT", shard_size // 4)
    room = shard_size // 4 * 2
    assert built(room, room // 2).prepared_drafts == summary.prepared_drafts
    assert not released
    assert built(room, room // 2 + 1).prepared_drafts == summary.prepared_drafts
    assert released
    assert contents(tmp_path / "again") == contents(tmp_path / "ds")
    without = built(room - 1, 0)
    assert without.prepared_drafts == 0
    assert not without.drafts_fit
    assert Datastore.open(tmp_path / "again").prepared is None
    assert "none prepared: the memory allowed is too little for the shards" in summary_text(without)


@pytest.mark.usefixtures("small_heavy")
def test_what_memory_a_build_began_with_decides_when_it_is_resumed(
    tmp_path: Path, corpus: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(builder, "plan_memory", lambda *_: MemoryPlan(WORK_BYTES + 101, 50, 50, 1 << 20))
        patch.setattr(builder._Build, "_complete", interrupted)
        with pytest.raises(KeyboardInterrupt):
            build_quick(corpus, tokenizer, tmp_path / "ds")
    summary = build_quick(corpus, tokenizer, tmp_path / "ds", resume=True)
    assert summary.prepared_drafts == 0
    assert not summary.drafts_fit


@pytest.mark.usefixtures("small_heavy")
def test_a_build_that_fails_while_preparing_goes_on_to_the_same_bytes(
    tmp_path: Path, corpus: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_quick(corpus, tokenizer, tmp_path / "whole")

    def exhausted(*arguments: Any, **others: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(preparation, "write_prepared", exhausted)
        expected = "memory for preparing drafts is exhausted"
        refused(MemoryBudgetError, lambda: build_quick(corpus, tokenizer, tmp_path / "ds"), expected)

    def full(path: Path, *arguments: Any, **others: Any) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(preparation, "write_prepared", full)
        refused(OutputError, lambda: build_quick(corpus, tokenizer, tmp_path / "ds"), FILE_NAME, "No space left")
    assert not (tmp_path / "ds").exists()
    summary = build_quick(corpus, tokenizer, tmp_path / "ds", resume=True)
    assert summary.prepared_drafts > 0
    assert contents(tmp_path / "ds") == contents(tmp_path / "whole")
    assert ".ds.building" not in leftovers(tmp_path / "ds")


def test_nothing_is_prepared_of_a_small_corpus(tmp_path: Path, tokenizer: Path) -> None:
    out = tmp_path / "ds"
    corpus = write_jsonl(tmp_path / "corpus.jsonl", documents(5))
    done = run_build("--corpus", corpus, "--tokenizer", tokenizer, "--out", out)
    assert done.returncode == 0, done.stderr
    assert "0 of frequent sequences prepared" in done.stdout
    assert not (out / FILE_NAME).exists()
    assert Manifest.read(out).prepared is None
    assert "prepared" not in json.loads((out / MANIFEST_NAME).read_text())


@pytest.mark.usefixtures("small_heavy")
def test_without_the_native_kernel_nothing_is_prepared_and_what_is_there_is_not_needed(
    tmp_path: Path, corpus: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_quick(corpus, tokenizer, tmp_path / "ds")
    native = Datastore.open(tmp_path / "ds")
    assert native.prepared is not None
    monkeypatch.setenv("REST_STORE_KERNEL", "reference")
    assert build_quick(corpus, tokenizer, tmp_path / "without").prepared_drafts == 0
    reference = Datastore.open(tmp_path / "ds")
    for place in range(0, native.prepared.header.draft_count, 40):
        tokens, _ = native.prepared.draft(place)
        assert reference.draft(tokens) == native.draft(tokens)
