"""The workers of a build: this process, processes beside it, or (ray_workers.py) a Ray cluster."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path

from build_index.corpus import Corpus
from build_index.memory_plan import limit_arenas
from build_index.shard_sorter import sort_shard
from build_index.slices import Setup, Slice, SliceReport, tokenize
from rest_store.errors import WorkerError

# Bytes of corpora that are worth a worker: the build reads as much in the second of its start.
_SHARE = 32 << 20


class Workers:
    """This process, which tokenizes a slice as soon as it is submitted, and sorts in threads.

    Args:
        setup: the setup of the build.
        sorts: shards sorted at once.

    Attributes:
        count: slices that are tokenized at once.
    """

    count = 1

    def __init__(self, setup: Setup, sorts: int) -> None:
        self._setup = setup
        self.sorts = sorts
        self._is_open = True

    def submit(self, slice_: Slice) -> Future[SliceReport]:
        """Tokenize a slice.

        The future raises the errors of `tokenize`, and WorkerError if a worker ends.
        """
        future: Future[SliceReport] = Future()
        try:
            future.set_result(tokenize(self._setup, slice_))
        except Exception as error:
            future.set_exception(error)
        return future

    def sort(self, directory: Path, name: str, vocabulary_size: int) -> Future[float]:
        """Sort a shard (`sort_shard`); sorting releases the GIL."""
        future: Future[float] = Future()

        def run() -> None:
            try:
                future.set_result(
                    sort_shard(directory, name, vocabulary_size, lambda: self._is_open)
                )
            except BaseException as error:
                future.set_exception(error)

        # A daemon: an interrupt does not wait.
        threading.Thread(target=run, name=f"sort {name}", daemon=True).start()
        return future

    def close(self) -> None:
        """End all work; shards that are being sorted are not written."""
        self._is_open = False


class Processes(Workers):
    """Processes on this machine that tokenize; they end with this process, even when it is killed.

    Args:
        setup: the setup of the build.
        count: number of processes.
        sorts: shards sorted at once, in threads of this process.
    """

    def __init__(self, setup: Setup, count: int, sorts: int) -> None:
        super().__init__(setup, sorts)
        self.count = count
        self._pool = ProcessPoolExecutor(
            count, multiprocessing.get_context("spawn"), _begin, (setup,)
        )

    def submit(self, slice_: Slice) -> Future[SliceReport]:
        """See `Workers.submit`; starts a process, as long as there are too few."""
        try:
            with _interrupts_later():
                return self._pool.submit(_tokenize, slice_)
        except BrokenProcessPool as error:
            raise worker_error(slice_) from error

    def close(self) -> None:
        """See `Workers.close`."""
        super().close()
        for process in list((self._pool._processes or {}).values()):
            process.kill()
        self._pool.shutdown(wait=False, cancel_futures=True)


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """Hold SIGINT back from the processes that are started inside, and from this one meanwhile.

    A terminal sends it to all processes of a build. A starting process would print a traceback, and
    so would one whose parent is interrupted before it has sent the whole setup. Later they ignore
    the signal (`_begin`). This function blocks the signal for this thread, and so for the processes
    that it starts. A handler notes the signal for this process, because the system may deliver it
    to another thread. Where the signal is ignored, the started processes ignore it, too.
    """
    # Python runs handlers of signals in the main thread alone.
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield
        return
    signals: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: signals.append(number))
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        # A signal that was held back is delivered here, at once.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
        if signals:
            signal.raise_signal(signal.SIGINT)


def usable_cores() -> int:
    """Return the number of cores that this process may use.

    It is the number of all cores where the system does not tell, as on macOS.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def worker_count(max_workers: int, corpora: Sequence[Corpus]) -> int:
    """Return the number of worker processes that are worth their start, at most `max_workers`.

    With 0, this process reads and tokenizes, by as many threads. Corpora with `max_documents` do
    not count.
    """
    if max_workers == 1:
        return 0
    size = sum(corpus.size for corpus in corpora if corpus.spec.max_documents is None)
    return min(max_workers, size // _SHARE)


def worker_error(slice_: Slice) -> WorkerError:
    """Return the error for a process that has ended before its slice was complete."""
    return WorkerError(
        f"{slice_.where}: a process that reads and tokenizes has ended, perhaps for want of memory"
        " (--memory, --workers); a program that builds needs `if __name__ == '__main__':`"
    )


def limit_threads(number: int) -> None:
    """Let this process tokenize by so many threads.

    The packages read the setting once, so it has no effect after the first text.

    With one thread it is a pool of one. That pool encodes half as fast again as the main thread,
    which `TOKENIZERS_PARALLELISM=false` would use: the allocator gives the pool an arena without
    Python's objects.
    """
    os.environ.update(RAYON_NUM_THREADS=str(number), TOKENIZERS_PARALLELISM="true")


# --- In the processes -----------------------------------------------------------------------------

_setup: Setup | None = None


def _begin(setup: Setup) -> None:
    global _setup
    # These signals may go to all processes of a build; its main process acts on them.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # see `_interrupts_later`
    threading.Thread(target=_end_with_parent, daemon=True).start()
    prepare(setup)
    _setup = setup


def prepare(setup: Setup) -> None:
    """Prepare a process that is one worker of several."""
    limit_threads(1)
    limit_arenas()
    if setup.is_accelerated:
        setup.tokenizer.accelerate()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _tokenize(slice_: Slice) -> SliceReport:
    if _setup is None:
        raise RuntimeError("a worker process got a slice before its setup")
    return tokenize(_setup, slice_)
