"""Who works for a build: this process, processes beside it, or (ray_workers.py) a Ray cluster.

with closing(workers):
future = workers.submit(part)          # tokenize a slice
future = workers.sort(directory, name, vocabulary_size)
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Protocol

from build_index.corpus import Corpus
from build_index.errors import first_line
from build_index.memory import limit_arenas
from build_index.shard_sorter import SortSeconds, sort_shard
from build_index.slices import Setup, Slice, SliceReport, tokenize
from build_index.target_tokenizer import EncoderError
from rest_store.errors import BuildError, RestStoreError, WorkerError

# A pool of one thread encodes by half as fast again as the main thread, which is what `TOKENIZERS_PARALLELISM=false`
# asks for: the allocator gives the pool's thread an arena that Python's objects are not in.
ONE_THREAD = {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "true"}
"""Variables of a process that is one worker of several; packages read them when they first encode."""

# Bytes of corpora for each worker process, of which two at least are started: it takes a second to start, in which the
# build reads and tokenizes about as much, by `fastokens` or by `tokenizers`.
_ACCELERATED_SHARE = 32 << 20
_SHARE = 4 << 20


class Workers(Protocol):
    """What does the work of a build, several pieces at once.

    Attributes:
        count: slices that are tokenized at once.
        sorts: shards that are sorted at once.
    """

    count: int
    sorts: int

    def submit(self, part: Slice) -> Future[SliceReport]:
        """Tokenize a slice; the future raises what `tokenize` does, and WorkerError if a worker ends."""

    def sort(self, directory: Path, name: str, vocabulary_size: int) -> Future[SortSeconds]:
        """Sort a shard (`sort_shard`)."""

    def close(self) -> None:
        """End all work."""


class OwnProcess:
    """This process: it tokenizes at once, and sorts in threads.

    Args:
        setup: of the build.
        sorts: shards sorted at once.
    """

    count = 1

    def __init__(self, setup: Setup, sorts: int) -> None:
        self._setup = setup
        self.sorts = sorts
        self._is_open = True

    def submit(self, part: Slice) -> Future[SliceReport]:
        """See `Workers.submit`; the slice is tokenized before this returns."""
        future: Future[SliceReport] = Future()
        try:
            future.set_result(tokenize(self._setup, part))
        except Exception as error:
            future.set_exception(error)
        return future

    def sort(self, directory: Path, name: str, vocabulary_size: int) -> Future[SortSeconds]:
        """See `Workers.sort`; sorting releases the GIL."""
        future: Future[SortSeconds] = Future()

        def run() -> None:
            try:
                future.set_result(sort_shard(directory, name, vocabulary_size, lambda: self._is_open))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=run, name=f"sort {name}", daemon=True).start()  # a daemon: an interrupt does not wait
        return future

    def close(self) -> None:
        """See `Workers.close`; what is being sorted is not written."""
        self._is_open = False


class Processes(OwnProcess):
    """Processes on this machine that tokenize; they end with this process, even when it is killed.

    Args:
        setup: of the build.
        count: how many.
        sorts: shards sorted at once, in threads of this process.
    """

    def __init__(self, setup: Setup, count: int, sorts: int) -> None:
        super().__init__(setup, sorts)
        self.count = count
        self._pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), _begin, (setup,))

    def submit(self, part: Slice) -> Future[SliceReport]:
        """See `Workers.submit`."""
        try:
            return self._pool.submit(_tokenize, part)
        except BrokenProcessPool as error:
            raise worker_error(part) from error

    def close(self) -> None:
        """See `Workers.close`."""
        super().close()
        for process in list((self._pool._processes or {}).values()):
            process.kill()
        self._pool.shutdown(wait=False, cancel_futures=True)


def useful_processes(most: int, corpora: Sequence[Corpus], is_accelerated: bool) -> int:
    """Return how many worker processes are worth their start; 0: none.

    Args:
        most: how many the user wants.
        corpora: what there is to read; what is read in part does not count.
        is_accelerated: whether `fastokens` encodes.
    """
    known = sum(corpus.size_hint or 0 for corpus in corpora if corpus.spec.max_documents is None)
    return min(most, known // (_ACCELERATED_SHARE if is_accelerated else _SHARE)) if most > 1 else 0


def worker_error(part: Slice) -> WorkerError:
    """Return the error for a process that has ended while a slice was waited for."""
    return WorkerError(
        f"{part.where}: a process that reads and tokenizes has ended, perhaps for want of memory (--memory, "
        "--workers); a program that builds needs `if __name__ == '__main__':`"
    )


# --- In the processes -------------------------------------------------------------------------------------------------

_setup: Setup | None = None


def _begin(setup: Setup) -> None:
    global _setup
    for number in (signal.SIGINT, signal.SIGTERM):  # which are for the build, and may be sent to all its processes
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    prepare(setup)
    _setup = setup


def prepare(setup: Setup) -> None:
    """Prepare a process that is one worker of several."""
    os.environ.update(ONE_THREAD)
    limit_arenas()
    if setup.is_accelerated:
        setup.tokenizer.accelerate()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _tokenize(part: Slice) -> SliceReport:
    assert _setup is not None
    return tokenize_elsewhere(_setup, part)


def tokenize_elsewhere(setup: Setup, part: Slice) -> SliceReport:
    """Tokenize a slice for another process, to which all errors can be sent."""
    try:
        return tokenize(setup, part)
    except (RestStoreError, EncoderError):
        raise
    except Exception as error:
        raise BuildError(f"{part.where}: {type(error).__name__}: {first_line(error)}") from None
