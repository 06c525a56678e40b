"""A thread that sorts one shard at a time, while the next one is being tokenized."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from build_index.errors import output_errors
from build_index.memory import shard_bytes
from build_index.size import size_text
from build_index.suffix_array import suffix_array
from rest_store.datastore.manifest import ShardRecord
from rest_store.datastore.shard import Shard, TokensFile, write_suffixes
from rest_store.errors import MemoryBudgetError, describe

_USUAL_RATE = 5e6  # positions sorted a second, to estimate the progress of the first shard


class ShardSorter:
    """Sorts the suffixes of complete tokens files.

    Sorting releases the GIL, so other threads run meanwhile. The thread ends with the shard. It is a daemon, so that an
    interrupted process need not wait for it.

    Args:
        directory: where the shards are.
        vocabulary_size: `V`.
        record: called in the thread when a shard is complete and on the disk.

    Attributes:
        sort_seconds: time spent sorting, over all shards so far.
        write_seconds: time spent writing suffix arrays.
        sorted_positions: positions of the shards that have been sorted.
        written_positions: positions of the shards whose suffix array has been written.

    One thread submits and waits; others may read the attributes.
    """

    def __init__(self, directory: Path, vocabulary_size: int, record: Callable[[ShardRecord], None]) -> None:
        self.sort_seconds = self.write_seconds = 0.0
        self.sorted_positions = self.written_positions = 0
        self._directory = directory
        self._vocabulary_size = vocabulary_size
        self._record = record
        self._sorting: tuple[int, float] | None = None  # positions of the shard being sorted, and when that began
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._abandoned = False

    def progress(self) -> tuple[int, float]:
        """Return the positions sorted, and the seconds spent on it.

        The sorter does not report its progress, so that of the current shard is an estimate from the elapsed time.
        """
        positions, seconds, sorting = self.sorted_positions, self.sort_seconds, self._sorting
        if sorting is None:
            return positions, seconds
        elapsed = time.perf_counter() - sorting[1]
        rate = positions / seconds if seconds else _USUAL_RATE
        return positions + round(min(0.95 * sorting[0], elapsed * rate)), seconds + elapsed

    def submit(self, name: str, positions: int) -> None:
        """Begin to sort a shard; the previous one must be done (`wait`).

        Raises:
            RestStoreError: the previous one has failed.
        """
        assert self._thread is None or not self._thread.is_alive(), "one shard at a time"
        self.require_success()
        self._thread = threading.Thread(target=self._run, args=(name, positions), name=f"sort {name}", daemon=True)
        self._thread.start()

    def wait(self, tick: Callable[[], None], interval: float = 0.2) -> None:
        """Wait for the current shard, if there is one.

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
        """Raise the error of a shard that failed."""
        if self._error is not None:
            raise self._error

    def abandon(self) -> None:
        """Do not write the shard that is being sorted."""
        self._abandoned = True

    def finish(self) -> None:
        """Wait for the current shard, whether it succeeds or fails."""
        if self._thread is not None:
            self._thread.join()

    def _run(self, name: str, positions: int) -> None:
        try:
            self.sort(name, positions)
        except MemoryError as cause:
            expected = f"{size_text(shard_bytes(positions, self._vocabulary_size))} free; choose a smaller --memory"
            self._error = MemoryBudgetError(describe(name, "memory for sorting", "exhausted", expected))
            self._error.__cause__ = self._error.__context__ = cause
        except BaseException as cause:
            self._error = cause
        finally:
            self._sorting = None
        error = self._error
        while error is not None:  # or the arrays would live as long as the error and its causes
            traceback.clear_frames(error.__traceback__)
            error = error.__context__

    def sort(self, name: str, positions: int) -> None:
        """Sort a shard and write its suffix array; called in the thread."""
        start = time.perf_counter()
        self._sorting = positions, start
        path, output = self._directory / f"{name}.tokens", self._directory / f"{name}.suffixes"
        with output_errors(path):
            tokens = TokensFile.open(path)
        payload = tokens.payload.reshape(-1, tokens.header.width)
        order = suffix_array(payload, vocabulary_size=self._vocabulary_size)
        sorted_at = time.perf_counter()
        self._sorting = None
        self.sort_seconds += sorted_at - start
        self.sorted_positions += positions
        if self._abandoned:
            return
        with output_errors(output):
            write_suffixes(output, tokens, order)
            del order
            if not self._abandoned:
                self._record(ShardRecord.of(name, Shard.open(self._directory, name)))
        self.write_seconds += time.perf_counter() - sorted_at
        self.written_positions += positions
