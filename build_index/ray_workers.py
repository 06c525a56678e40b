"""Workers on a Ray cluster: the same tasks on any number of machines, which see the same files.

Ray carries tasks and results, which are small. Tokens and shards go through the directory of the
new datastore. If a node dies, Ray gives its tasks to another one.
"""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from build_index.fast_encoder import EncoderError
from build_index.shard_sorter import sort_shard
from build_index.size import size_text
from build_index.slices import Setup, Slice, SliceReport, tokenize
from build_index.workers import Workers, prepare
from rest_store.errors import MemoryBudgetError, RestStoreError, WorkerError, describe, first_line
from rest_store.loading.remote_files import scheme_of
from rest_store.version import __version__

_CONNECT_SECONDS = 10
_RETRIES = 5  # of a task whose node or process dies
_PACKAGES = ("tokenizers", "fastokens")  # other releases may give other tokens
_WHERE = "--ray"


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Connect to a Ray cluster, unless this process is connected to one already.

    Args:
        address: `HOST:PORT` of its head node, or "auto": that of RAY_ADDRESS, or the one on this
            machine.

    Raises:
        WorkerError: there is no such cluster, or it has other versions of Python or Ray.
    """
    import ray

    if ray.is_initialized():
        yield
        return
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS") or address
    try:
        _require_open(address)
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    except Exception as error:  # its errors have no common base
        raise WorkerError(
            f"{_WHERE}: the cluster at '{address}' cannot be used ({first_line(error)}); it has to"
            " run with this Python and Ray"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _require_open(address: str) -> None:
    """Raise OSError if nothing listens at `HOST:PORT`; Ray would wait minutes for it.

    Ray checks addresses of other forms itself.
    """
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()


class RayWorkers(Workers):
    """The CPUs of the cluster that this process is connected to.

    Args:
        setup: the setup of the build.
        max_tasks: bound on the tasks at once; None: the number of CPUs.
        shard_bytes: memory that sorting a shard takes.

    Raises:
        WorkerError: no node has a CPU.
        MemoryBudgetError: no node has the memory to sort a shard.
    """

    def __init__(self, setup: Setup, max_tasks: int | None, shard_bytes: int) -> None:
        import ray

        nodes = [
            node["Resources"]
            for node in ray.nodes()
            if node["Alive"] and node["Resources"].get("CPU", 0) >= 1
        ]
        if not nodes:
            raise WorkerError(describe(_WHERE, "the number of nodes with a CPU", 0, "at least 1"))
        largest = max(int(node.get("memory", 0)) for node in nodes)
        if largest < shard_bytes:
            expected = f"at least {size_text(shard_bytes)} for a shard (--memory, --shard-tokens)"
            raise MemoryBudgetError(
                describe(_WHERE, "the memory of the largest node", size_text(largest), expected)
            )
        cpus = sum(int(node["CPU"]) for node in nodes)
        super().__init__(setup, min(max_tasks or cpus, cpus))
        self.count = self.sorts
        self._tokenize = ray.remote(num_cpus=1, max_retries=_RETRIES)(_tokenize)
        self._sort = ray.remote(num_cpus=1, max_retries=_RETRIES, memory=shard_bytes)(sort_shard)
        # In a list, a reference is passed on as it is: the setup is fetched once in each process.
        self._shared = _versions(), [ray.put(setup)]
        self._running: set[Any] = set()

    def submit(self, slice_: Slice) -> Future[SliceReport]:
        """See `Workers.submit`."""
        return self._future(self._tokenize.remote(*self._shared, slice_), slice_.where)

    def sort(self, directory: Path, name: str, vocabulary_size: int) -> Future[float]:
        """See `Workers.sort`."""
        return self._future(
            self._sort.remote(directory, name, vocabulary_size), os.fspath(directory / name)
        )

    def close(self) -> None:
        """See `Workers.close`."""
        import ray

        for running in list(self._running):
            with suppress(Exception):  # the cluster may be gone
                ray.cancel(running, force=True)
        self._running.clear()

    def _future(self, running: Any, where: str) -> Future[Any]:
        """Return the future of a task; its error is one of ours."""
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()

        def pass_on(done: Future[Any]) -> None:
            self._running.discard(running)
            error = done.exception()
            if error is None:
                future.set_result(done.result())
                return
            cause = getattr(error, "cause", None)  # Ray wraps the error of a task
            if not isinstance(cause, RestStoreError | EncoderError):
                cause = WorkerError(f"{where}: Ray has not finished the task ({first_line(error)})")
            future.set_exception(cause)

        self._running.add(running)
        running.future().add_done_callback(pass_on)
        return future


# --- In the processes of the cluster --------------------------------------------------------------

_setups: dict[Any, Setup] = {}  # of the build that this process works for, by its reference


def _tokenize(versions: dict[str, str], setup: list[Any], slice_: Slice) -> SliceReport:
    import ray

    (reference,) = setup
    if reference not in _setups:
        _require_same_versions(versions)
        _setups.clear()
        _setups[reference] = ray.get(reference)
        _require_files(_setups[reference])
        prepare(_setups[reference])
    # --memory does not bound the processes of the cluster, so their peaks do not count.
    return replace(tokenize(_setups[reference], slice_), peak_memory=0)


def _versions() -> dict[str, str]:
    """Return the versions of the packages that may change the tokens."""
    versions = {
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "rest-store": __version__,
    }
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "absent"
    return versions


def _require_same_versions(expected: dict[str, str]) -> None:
    for package, installed in _versions().items():
        if installed != expected[package]:
            raise WorkerError(
                describe(_node(), package, installed, f"{expected[package]}, as in the build")
            )


def _require_files(setup: Setup) -> None:
    """Raise WorkerError unless this node sees the corpora and the new datastore.

    Otherwise the build would skip the files of the corpora as vanished.
    """
    if not setup.directory.is_dir():
        expected = "a directory that all nodes see, such as one on NFS"
        raise WorkerError(
            describe(_node(), f"the output {setup.directory}", "not visible", expected)
        )
    for path in (corpus.source.top for corpus in setup.corpora):
        if scheme_of(path) is None and not Path(path).exists():
            raise WorkerError(
                describe(_node(), f"the corpus {path}", "absent", "a path that all nodes see")
            )


def _node() -> str:
    import ray

    return f"node {ray.util.get_node_ip_address()}"
