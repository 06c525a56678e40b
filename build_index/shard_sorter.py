"""Threads that sort shards while the next one is being tokenized."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from build_index.errors import output_errors
from build_index.memory import shard_bytes
from build_index.size import size_text
from build_index.suffix_array import suffix_array
from rest_store.datastore.manifest import ShardRecord
from rest_store.datastore.shard import Shard, TokensFile, write_suffixes
from rest_store.errors import MemoryBudgetError, describe

_SECONDS_BETWEEN_TICKS = 0.2
_USUAL_RATE = 5e6  # positions sorted a second, to estimate the progress of the first shard


@dataclass(frozen=True)
class SortSeconds:
    """The time that a shard took: to sort it, and to write its suffix array."""

    sort: float
    write: float


def sort_shard(
    directory: Path, name: str, vocabulary_size: int, is_wanted: Callable[[float], bool] = lambda seconds: True
) -> SortSeconds:
    """Sort the suffixes of a complete tokens file and write the suffix array.

    Args:
        directory: where the shard is.
        name: of the shard.
        vocabulary_size: `V`.
        is_wanted: called with the time that sorting took; whether the suffix array is written.
    """
    start = time.perf_counter()
    path, output = directory / f"{name}.tokens", directory / f"{name}.suffixes"
    with output_errors(path):
        tokens = TokensFile.open(path)
    payload = tokens.payload.reshape(-1, tokens.header.width)
    order = suffix_array(payload, vocabulary_size=vocabulary_size)
    sorted_at = time.perf_counter()
    if is_wanted(sorted_at - start):
        with output_errors(output):
            write_suffixes(output, tokens, order)
    return SortSeconds(sorted_at - start, time.perf_counter() - sorted_at)


class ShardSorter:
    """Sorts the suffixes of complete tokens files, each in a thread of its own.

    Sorting releases the GIL, so other threads run meanwhile. A thread ends with its shard. It is a daemon, so that an
    interrupted process need not wait for it.

    Args:
        directory: where the shards are.
        vocabulary_size: `V`.
        record: called in the thread when a shard is complete and on the disk.
        most: shards sorted at once.
        elsewhere: sorts a shard in the place of `sort_shard`, on another machine; the thread waits for it.

    Attributes:
        sort_seconds: time spent sorting, over all shards so far.
        write_seconds: time spent writing suffix arrays.
        sorted_positions: positions of the shards that have been sorted.
        written_positions: positions of the shards whose suffix array has been written.

    One thread submits and waits; others may read the attributes.
    """

    def __init__(
        self,
        directory: Path,
        vocabulary_size: int,
        record: Callable[[ShardRecord], None],
        *,
        most: int,
        elsewhere: Callable[[Path, str, int], SortSeconds] | None = None,
    ) -> None:
        self.sort_seconds = self.write_seconds = 0.0
        self.sorted_positions = self.written_positions = 0
        self._directory = directory
        self._vocabulary_size = vocabulary_size
        self._record = record
        self._elsewhere = elsewhere
        self._lock = threading.Lock()  # for the attributes, and:
        self._sorting: dict[str, tuple[int, float]] = {}  # positions of shards being sorted, and when that began
        self._free = threading.Semaphore(most)
        self._threads: list[threading.Thread] = []
        self._error: BaseException | None = None
        self._abandoned = False

    def progress(self) -> tuple[int, float]:
        """Return the positions sorted, and the seconds spent on it.

        The sorter does not report its progress, so that of the current shards is an estimate from the elapsed time.
        """
        with self._lock:
            positions, seconds, sorting = self.sorted_positions, self.sort_seconds, list(self._sorting.values())
        rate = positions / seconds if seconds else _USUAL_RATE
        now = time.perf_counter()
        for size, began in sorting:
            positions += round(min(0.95 * size, (now - began) * rate))
            seconds += now - began
        return positions, seconds

    def submit(self, name: str, positions: int, tick: Callable[[], None]) -> None:
        """Begin to sort a shard; wait first while as many as allowed are being sorted.

        Args:
            name: of the shard.
            positions: tokens and separators in it.
            tick: called now and then meanwhile.

        Raises:
            RestStoreError: an earlier one has failed.
        """
        while not self._free.acquire(timeout=_SECONDS_BETWEEN_TICKS):
            tick()
        self.require_success()
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(target=self._run, args=(name, positions), name=f"sort {name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def wait(self, tick: Callable[[], None]) -> None:
        """Wait for all shards.

        Args:
            tick: called now and then meanwhile.

        Raises:
            RestStoreError: sorting or writing has failed.
        """
        for thread in self._threads:
            while thread.is_alive():
                thread.join(_SECONDS_BETWEEN_TICKS)
                tick()
        self.require_success()

    def require_success(self) -> None:
        """Raise the error of a shard that failed."""
        if self._error is not None:
            raise self._error

    def abandon(self) -> None:
        """Do not write the shards that are being sorted."""
        self._abandoned = True

    def finish(self) -> None:
        """Wait for all shards, whether they succeed or fail."""
        for thread in self._threads:
            thread.join()

    def _run(self, name: str, positions: int) -> None:
        error: BaseException | None = None
        try:
            self.sort(name, positions)
        except MemoryError as cause:
            expected = f"{size_text(shard_bytes(positions, self._vocabulary_size))} free; choose a smaller --memory"
            error = MemoryBudgetError(describe(name, "memory for sorting", "exhausted", expected))
            error.__cause__ = error.__context__ = cause
        except BaseException as cause:
            error = cause
        if error is not None and self._error is None:
            self._error = error
        while error is not None:  # or the arrays would live as long as the error and its causes
            traceback.clear_frames(error.__traceback__)
            error = error.__context__
        with self._lock:
            self._sorting.pop(name, None)
        self._free.release()

    def sort(self, name: str, positions: int) -> None:
        """Sort a shard and write its suffix array; called in the thread."""

        def is_wanted(seconds: float) -> bool:
            with self._lock:
                del self._sorting[name]
                self.sort_seconds += seconds
                self.sorted_positions += positions
            return not self._abandoned

        with self._lock:
            self._sorting[name] = positions, time.perf_counter()
        if self._elsewhere is None:
            seconds = sort_shard(self._directory, name, self._vocabulary_size, is_wanted)
        else:
            seconds = self._elsewhere(self._directory, name, self._vocabulary_size)
            is_wanted(seconds.sort)
        if self._abandoned:
            return
        with output_errors(self._directory / name):
            self._record(ShardRecord.of(name, Shard.open(self._directory, name)))
        with self._lock:
            self.write_seconds += seconds.write
            self.written_positions += positions
