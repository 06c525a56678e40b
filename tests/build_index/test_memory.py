"""The memory budget: the available memory, and the shard that fits."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from build_index import builder
from build_index.memory_plan import (
    MIB,
    MIN_SHARD_POSITIONS,
    WORK_BYTES,
    plan_memory,
    resident_bytes,
)
from build_index.size import parse_size
from rest_store.datastore.available_memory import available_bytes
from rest_store.datastore.suffix_array import max_positions, peak_bytes
from rest_store.errors import BuildError, MemoryBudgetError
from tests.shared.builds import build_quick, write_jsonl
from tests.shared.corpora import write_files


@given(
    budget=st.integers(600 * MIB, 64 << 30),
    process=st.integers(0, 100 * MIB),
    vocabulary_size=st.sampled_from([400, 49_152, 65_536, 151_936]),
    sorts=st.integers(1, 40),
    workers=st.integers(0, 40),
)
def test_the_parts_fit_into_the_budget_and_the_shard_is_as_large_as_it_allows(
    budget, process, vocabulary_size, sorts, workers
):
    plan = plan_memory(budget, process, vocabulary_size, None, sorts, workers)
    limit = max_positions(vocabulary_size)
    fixed = process + plan.digests + WORK_BYTES
    assert fixed + plan.sorts * plan.shard + plan.workers * (process + WORK_BYTES) <= budget
    assert plan.shard == peak_bytes(plan.shard_positions, vocabulary_size)
    assert 1 <= plan.sorts <= sorts
    assert plan.workers == 0 or 2 <= plan.workers <= workers
    assert plan.decoder_bytes >= 128 * MIB
    assert plan.shard_positions == plan_memory(budget, process, vocabulary_size).shard_positions
    if plan.shard_positions < limit:
        assert plan.shard_positions & (plan.shard_positions - 1) == 0
        twice = peak_bytes(min(2 * plan.shard_positions, limit), vocabulary_size)
        rounding = 64 * MIB
        two_workers = 2 * (process + rounding + WORK_BYTES)
        assert fixed + rounding + twice + two_workers > budget


@pytest.mark.parametrize("gibibytes", [2, 2.5, 3, 4, 5, 8, 8.2, 8.4, 12, 16, 24, 32])
def test_a_default_shard_leaves_room_for_two_workers(gibibytes):
    budget = int(gibibytes * (1 << 30))
    plan = plan_memory(budget, 250 * MIB, 49_152, workers=2)
    assert plan.workers == 2
    assert 16 * plan.shard > budget


def test_a_shard_is_as_large_as_it_may_be_where_no_size_makes_room_for_two_workers():
    plan = plan_memory(5 << 28, 250 * MIB, 49_152, workers=2)
    assert (plan.shard_positions, plan.workers) == (1 << 25, 0)


def test_small_changes_of_the_budget_leave_the_shard_as_it_is():
    sizes = {
        plan_memory(budget, 100 * MIB, 49_152).shard_positions
        for budget in range(9 << 30, 11 << 30, 50 * MIB)
    }
    assert sizes == {1 << 29}


@pytest.mark.parametrize(
    ("vocabulary_size", "largest"), [(49_152, 2**30 - 1), (151_936, 715_827_882)]
)
def test_no_shard_is_larger_than_what_can_be_sorted(vocabulary_size, largest):
    assert plan_memory(1 << 50, 0, vocabulary_size).shard_positions == largest
    with pytest.raises(
        BuildError,
        match=f"shard: the number of tokens is {largest + 1}, expected 2..{largest}",
    ):
        plan_memory(1 << 50, 0, vocabulary_size, largest + 1)
    with pytest.raises(BuildError, match=f"the number of tokens is 1, expected 2..{largest}"):
        plan_memory(1 << 50, 0, vocabulary_size, 1)


def test_too_small_a_budget_says_what_suffices():
    with pytest.raises(
        MemoryBudgetError, match=r"the memory budget is 100\.0 MiB, expected at least .* MiB for"
    ) as error:
        plan_memory(100 * MIB, 90 * MIB, 49_152)
    enough = parse_size(str(error.value).split("at least ")[1].split(" for")[0])
    assert plan_memory(enough + MIB, 90 * MIB, 49_152).shard_positions == MIN_SHARD_POSITIONS


def test_a_shard_that_is_asked_for_must_fit():
    assert plan_memory(2 << 30, 0, 49_152, 1 << 20).shard_positions == 1 << 20
    assert plan_memory(2 << 30, 0, 49_152, 12_345).shard_positions == 12_345
    with pytest.raises(
        MemoryBudgetError, match=r"for shards of 1073741823 tokens \(--memory, --shard-tokens\)"
    ):
        plan_memory(2 << 30, 0, 49_152, 2**30 - 1)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8G", 8 << 30),
        ("512M", 512 << 20),
        ("1.5GiB", 3 << 29),
        ("2kb", 2048),
        ("1T", 1 << 40),
        ("1000", 1000),
    ],
)
def test_sizes_are_parsed(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "8X", "-1G", "0", "G", "1e9", "8 G G", "0.1", "9" * 400])
def test_text_that_is_not_a_size_is_refused(text):
    with pytest.raises(
        MemoryBudgetError, match=r"--memory: size is '.*', expected a size such as 8G or 512M"
    ):
        parse_size(text)


MEMINFO = "MemTotal:  2000 kB\nMemAvailable:  1000 kB\n"


def test_the_available_memory_is_that_of_the_system(tmp_path):
    write_files(tmp_path, {"proc/meminfo": MEMINFO})
    assert available_bytes(tmp_path) == 1000 * 1024
    assert resident_bytes("VmHWM") >= resident_bytes() > MIB
    assert resident_bytes("VmNone") == 0


def test_a_control_group_limits_what_is_available(tmp_path):
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "0::/a/b\n",
        "sys/fs/cgroup/a/b/memory.max": "max\n",
        "sys/fs/cgroup/a/b/memory.current": "300000\n",
        "sys/fs/cgroup/a/memory.max": "500000\n",
        "sys/fs/cgroup/a/memory.current": "400000\n",
        "sys/fs/cgroup/a/memory.stat": "anon 1\ninactive_file 50000\n",
    }
    write_files(tmp_path, files)
    assert available_bytes(tmp_path) == 150_000
    write_files(tmp_path, {"sys/fs/cgroup/a/memory.current": "900000\n"})
    assert available_bytes(tmp_path) == 0


def test_a_control_group_may_have_any_name(tmp_path):
    write_files(tmp_path, {"proc/meminfo": MEMINFO})
    group = tmp_path / "sys/fs/cgroup" / os.fsdecode(b"\xff")
    group.mkdir(parents=True)
    (group / "memory.max").write_text("500000\n")
    (group / "memory.current").write_text("400000\n")
    (tmp_path / "proc/self").mkdir()
    (tmp_path / "proc/self/cgroup").write_bytes(b"0::/\xff\n")
    assert available_bytes(tmp_path) == 100_000


@pytest.mark.parametrize("meminfo", [None, "MemTotal: 5 kB\n", "MemAvailable: many\n"])
def test_without_a_known_available_memory_it_must_be_set(
    tokenizer, out, tmp_path, meminfo, monkeypatch
):
    if meminfo is not None:
        write_files(tmp_path, {"proc/meminfo": meminfo})
    monkeypatch.setattr(builder, "available_bytes", lambda: available_bytes(tmp_path))
    with pytest.raises(
        MemoryBudgetError, match=r"the available memory is unknown .*; set --memory SIZE"
    ):
        build_quick(write_jsonl(tmp_path / "a.jsonl", ["text"]), tokenizer, out, memory=None)
