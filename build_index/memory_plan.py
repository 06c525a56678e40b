"""The memory of a build, and the size of shard that fits into it.

Resident at the peak are: the process with its packages and tokenizer; documents being read and
tokenized; digests of documents already read; shards being sorted, whose bytes are known
(`suffix_array.peak_bytes`); and worker processes, each with its own packages, tokenizer and
documents. The size of shards does not depend on the number of workers that are wanted, which take
the rest; but it is a half or a quarter where that makes room for two. A document is held whole;
documents larger than `MAX_DOCUMENT_BYTES` are refused, and so are parquet and Arrow files of which
more than `decoder_bytes` must be held at once.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from build_index.size import MIB, size_text
from rest_store.datastore.header import MAX_POSITIONS
from rest_store.datastore.suffix_array import max_positions, peak_bytes
from rest_store.errors import BuildError, MemoryBudgetError, describe

MIN_SHARD_POSITIONS = 1 << 20  # positions, unless the user sets the size
WORK_BYTES = 320 * MIB  # reading, tokenizing a batch, and freed memory in the allocator
# The work of all but large compressed files, if not even the smallest shard fits beside WORK_BYTES.
MIN_WORK_BYTES = 160 * MIB
# The process is rounded up to such steps, so that a few pages do not change the shards.
_PROCESS_STEP = 64 * MIB
_BUDGET_STEP = 256 * MIB
_DIGESTS_SHARE = 32
_M_ARENA_MAX = -8  # malloc.h
_ARENAS = 8


@dataclass(frozen=True)
class MemoryPlan:
    """The division of the memory budget; all in bytes except `shard_positions`.

    Attributes:
        budget: bound on the peak of resident memory.
        digests: digests of documents already read; further ones go to disk.
        decoder_bytes: bound on the memory of a file's decoder in each process: its share of the
            work, and of the rest.
        shard_positions: tokens and separators of a shard.
        shard: bytes that sorting a shard takes.
        sorts: shards sorted at once.
        workers: worker processes; 0: this process reads and tokenizes.
    """

    budget: int
    digests: int
    decoder_bytes: int
    shard_positions: int
    shard: int
    sorts: int
    workers: int


def plan_memory(
    budget: int,
    process_bytes: int,
    vocabulary_size: int,
    shard_positions: int | None = None,
    sorts: int = 1,
    workers: int = 0,
) -> MemoryPlan:
    """Choose the size of shards, the number of worker processes, and of shards sorted at once.

    Args:
        budget: bound on the peak of resident memory, in bytes.
        process_bytes: resident memory now, packages and tokenizer loaded; each worker has as much.
        vocabulary_size: `V`.
        shard_positions: tokens and separators of a shard; None: the largest power of two that fits,
            or the most that can be sorted, so that small changes of the budget do not change the
            shards; a half or a quarter of it where that makes room for two workers.
        sorts: bound on the shards sorted at once; the size of shards does not depend on it or on
            the workers.
        workers: bound on the worker processes; a single one would be useless, and becomes none.

    Raises:
        BuildError: `shard_positions` is below 2, or more than the sorter can sort.
        MemoryBudgetError: the shard, by default one of 2^20 positions, does not fit.
    """
    process = -(-process_bytes // _PROCESS_STEP) * _PROCESS_STEP
    digests = budget // _DIGESTS_SHARE
    largest = max_positions(vocabulary_size)
    if shard_positions is None:
        bits = range(MAX_POSITIONS.bit_length() - 1, MIN_SHARD_POSITIONS.bit_length() - 2, -1)
        sizes = [min(1 << bit, largest) for bit in bits]
    elif 2 <= shard_positions <= largest:
        sizes = [shard_positions]
    else:
        expected = f"2..{largest}"
        raise BuildError(describe("shard", "the number of tokens", shard_positions, expected))
    fitting = _fitting_shard(budget - digests, process, sizes, vocabulary_size)
    if fitting is not None:
        positions, work = fitting
        shard = peak_bytes(positions, vocabulary_size)
        spare = budget - digests - process - work - shard
        affordable = min(workers, spare // (process + work))
        processes = affordable if affordable > 1 else 0
        spare -= processes * (process + work)
        more_sorts = min(sorts - 1, spare // shard)
        spare -= more_sorts * shard
        return MemoryPlan(
            budget=budget,
            digests=digests,
            decoder_bytes=2 * work // 5 + spare // (processes + 1),
            shard_positions=positions,
            shard=shard,
            sorts=1 + more_sorts,
            workers=processes,
        )
    needed = process + MIN_WORK_BYTES + peak_bytes(sizes[-1], vocabulary_size)
    needed = -(-needed * _DIGESTS_SHARE // (_DIGESTS_SHARE - 1))
    expected = (
        f"at least {size_text(needed)} for shards of {sizes[-1]} tokens (--memory, --shard-tokens)"
    )
    raise MemoryBudgetError(describe("build", "the memory budget", size_text(budget), expected))


def _fitting_shard(
    available: int, process: int, sizes: list[int], vocabulary_size: int
) -> tuple[int, int] | None:
    """Return the positions of a shard and the bytes of the work beside it; None if none fits.

    Args:
        available: bytes without digests.
        process: bytes of the process.
        sizes: positions to choose from, the largest first.
        vocabulary_size: `V`.
    """

    def spare(positions: int, work: int) -> int:
        return available - process - work - peak_bytes(positions, vocabulary_size)

    fitting = [positions for positions in sizes if spare(positions, WORK_BYTES) >= 0]
    for positions in fitting[:3]:  # the largest, half and a quarter of it
        if spare(positions, WORK_BYTES) >= 2 * (process + WORK_BYTES):
            return positions, WORK_BYTES
    if fitting:
        return fitting[0], WORK_BYTES
    if spare(sizes[-1], MIN_WORK_BYTES) >= 0:
        return sizes[-1], MIN_WORK_BYTES
    return None


MemoryPlanner: TypeAlias = Callable[[int, int | None], MemoryPlan]
"""Divides a budget for shards of so many positions; None: as many as fit."""


def sufficient_budget(
    planned: MemoryPlanner, budget: int, shard_positions: int | None, decoder_bytes: int
) -> int:
    """Return the smallest budget, in steps of 256 MiB, with which a decoder may keep so much.

    Args:
        planned: divides a budget.
        budget: one that does not suffice.
        shard_positions: see `plan_memory`.
        decoder_bytes: memory that the decoder needs.
    """
    # A larger budget may not suffice: with room for them, shards are larger.
    while planned(budget, shard_positions).decoder_bytes < decoder_bytes:
        budget = (budget // _BUDGET_STEP + 1) * _BUDGET_STEP
    return budget


def resident_bytes(field: str = "VmRSS") -> int:
    """Return the resident memory of this process in bytes; 0 if it is unknown.

    Args:
        field: `"VmRSS"`: now; `"VmHWM"`: at its peak.
    """
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    for line in status.splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return 0


def limit_arenas() -> None:
    """Limit the allocator of glibc to eight arenas, unless MALLOC_ARENA_MAX is set.

    By default each thread has its own arena, up to eight a core, and keeps freed memory there: 250
    MB more with 16 tokenizing threads.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and "MALLOC_ARENA_MAX" not in os.environ:
        mallopt(_M_ARENA_MAX, _ARENAS)
