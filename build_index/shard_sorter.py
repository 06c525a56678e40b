"""A thread that sorts one shard at a time, while the next one is being tokenized."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from build_index.memory import shard_bytes, size_text
from build_index.staging import output_errors
from rest_store.datastore.header import SuffixesHeader, entry_bits
from rest_store.datastore.manifest import ShardRecord
from rest_store.datastore.shard import Shard, TokensFile, write_suffixes
from rest_store.errors import MemoryBudgetError, describe

_USUAL_RATE = 5e6  # positions sorted a second, to guess how far the first shard is


@dataclass(frozen=True)
class ShardInProgress:
    """The shard that is being sorted, or whose suffix array is being written.

    Attributes:
        positions: its tokens and separators.
        since: when that began, in seconds of `time.perf_counter`.
        output: the suffixes file while it is being written, otherwise None.
    """

    positions: int
    since: float
    output: Path | None = None

    @property
    def is_writing(self) -> bool:
        """Whether it has been sorted."""
        return self.output is not None

    def written_positions(self) -> int:
        """Return how much of the suffix array is written, in positions, told by the size of the file."""
        try:
            size = 0 if self.output is None else self.output.stat().st_size
        except OSError:
            size = 0
        whole = SuffixesHeader(entry_bits(self.positions), self.positions, b"", b"").file_size
        return min(self.positions, self.positions * size // whole)


class ShardSorter:
    """Sorts the suffixes of complete tokens files.

    Sorting releases the GIL, so it takes place beside whatever else is done. The thread ends with the shard; it is a
    daemon, so that an interrupted process need not wait for it.

    Args:
        directory: where the shards are.
        vocabulary_size: `V`.
        record: called, in the thread, when a shard is complete and on the disk.

    Attributes:
        sort_seconds: time spent sorting, over all shards so far.
        write_seconds: time spent writing suffix arrays.
        sorted_positions: positions of the shards that have been sorted.
        written_positions: positions of the shards whose suffix array has been written.
        in_progress: the shard at work, or None.

    One thread submits and waits; others may read the attributes.
    """

    def __init__(self, directory: Path, vocabulary_size: int, record: Callable[[ShardRecord], None]) -> None:
        self.sort_seconds = self.write_seconds = 0.0
        self.sorted_positions = self.written_positions = 0
        self.in_progress: ShardInProgress | None = None
        self._directory = directory
        self._vocabulary_size = vocabulary_size
        self._record = record
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._abandoned = False

    @property
    def is_busy(self) -> bool:
        """Whether a shard is at work."""
        return self._thread is not None and self._thread.is_alive()

    def progress(self) -> tuple[int, int, float, float]:
        """Return positions sorted and written, and seconds spent on each, the shard at work included.

        How far sorting is can only be guessed, from the time that it takes.
        """
        in_progress = self.in_progress
        sorted_, sort_seconds = self.sorted_positions, self.sort_seconds
        written, write_seconds = self.written_positions, self.write_seconds
        if in_progress is not None:
            spent = time.perf_counter() - in_progress.since
            if in_progress.is_writing:
                written += in_progress.written_positions()
                write_seconds += spent
            else:
                rate = sorted_ / sort_seconds if sort_seconds else _USUAL_RATE
                sorted_ += round(min(0.95 * in_progress.positions, spent * rate))
                sort_seconds += spent
        return sorted_, written, sort_seconds, write_seconds

    def submit(self, name: str, positions: int) -> None:
        """Begin to sort a shard; the one before must be done (`wait`).

        Raises:
            RestStoreError: the one before has failed.
        """
        assert not self.is_busy, "one shard at a time"
        self.require_success()
        self.in_progress = ShardInProgress(positions, time.perf_counter())
        self._thread = threading.Thread(target=self._run, args=(name, positions), name=f"sort {name}", daemon=True)
        self._thread.start()

    def wait(self, tick: Callable[[], None], interval: float = 0.2) -> None:
        """Wait for the shard at work, if there is one.

        Args:
            tick: called now and then meanwhile.
            interval: seconds between calls.

        Raises:
            RestStoreError: sorting or writing has failed.
        """
        while self._thread is not None and self._thread.is_alive():
            self._thread.join(interval)
            tick()
        self.require_success()

    def require_success(self) -> None:
        """Raise what a shard failed with, if one did."""
        if self._error is not None:
            raise self._error

    def abandon(self) -> None:
        """Let the shard at work come to nothing: what is being sorted is not written."""
        self._abandoned = True

    def finish(self) -> None:
        """Wait for the shard at work without minding whether it succeeds."""
        if self._thread is not None:
            self._thread.join()

    def _run(self, name: str, positions: int) -> None:
        try:
            self._sort(name, positions)
        except MemoryError as cause:
            expected = f"{size_text(shard_bytes(positions, self._vocabulary_size))} free; choose a smaller --memory"
            self._error = MemoryBudgetError(describe(name, "memory for sorting", "exhausted", expected))
            self._error.__cause__ = self._error.__context__ = cause
        except BaseException as cause:
            self._error = cause
        finally:
            self.in_progress = None
        error = self._error
        while error is not None:  # or the arrays would live as long as the error and its causes do
            traceback.clear_frames(error.__traceback__)
            error = error.__context__

    def _sort(self, name: str, positions: int) -> None:
        from build_index.suffix_array import suffix_array

        start = time.perf_counter()
        path, output = self._directory / f"{name}.tokens", self._directory / f"{name}.suffixes"
        with output_errors(path):
            tokens = TokensFile.open(path)
        payload = tokens.payload.reshape(-1, tokens.header.width)
        order = suffix_array(payload, vocabulary_size=self._vocabulary_size)
        sorted_at = time.perf_counter()
        self.sort_seconds += sorted_at - start
        self.sorted_positions += positions
        if self._abandoned:
            return
        self.in_progress = ShardInProgress(positions, sorted_at, output)
        with output_errors(output):
            write_suffixes(output, tokens, order)
            del order
            if not self._abandoned:
                self._record(ShardRecord.of(name, Shard.open(self._directory, name)))
        self.write_seconds += time.perf_counter() - sorted_at
        self.written_positions += positions
