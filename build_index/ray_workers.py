"""Workers on a Ray cluster: the same tasks on any number of machines, which see the same files.

Ray carries tasks and results, which are small; tokens and shards go through the directory of the new datastore. A node
that dies costs the tasks that it was doing, which Ray gives to another one.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from build_index.errors import build_packages, first_line, output_errors
from build_index.path import local_path, scheme_of
from build_index.shard_sorter import SortSeconds, sort_shard
from build_index.size import size_text
from build_index.slices import Setup, Slice, SliceReport
from build_index.target_tokenizer import EncoderError
from build_index.workers import prepare, tokenize_elsewhere
from rest_store.errors import ClusterError, MemoryBudgetError, MissingExtraError, RestStoreError, WorkerError, describe

_ANSWER_SECONDS = 120  # for a node to start Python and import the packages
_CONNECT_SECONDS = 10
_RETRIES = 5  # of a task whose node or process dies
_PACKAGES = ("tokenizers", "fastokens")  # other releases may give other tokens
_WHERE = "--ray"


class RayCluster:
    """A Ray cluster that this process is connected to; made by `connected`."""

    def __init__(self) -> None:
        import ray

        self._nodes = {
            node["NodeID"]: node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1
        }
        if not self._nodes:
            raise ClusterError(describe(_WHERE, "the number of nodes with a CPU", 0, "at least 1"))

    @property
    def cpus(self) -> int:
        """The CPUs of all nodes."""
        return sum(int(node["Resources"]["CPU"]) for node in self._nodes.values())

    def require_room(self, shard_bytes: int, positions: int) -> None:
        """Raise MemoryBudgetError unless one node at least can sort a shard."""
        largest = max(int(node["Resources"].get("memory", 0)) for node in self._nodes.values())
        if largest < shard_bytes:
            expected = f"at least {size_text(shard_bytes)} for shards of {positions} tokens (--memory, --shard-tokens)"
            raise MemoryBudgetError(describe(_WHERE, "the memory of the largest node", size_text(largest), expected))

    def require_alike(self, directory: Path, corpora: Sequence[str]) -> None:
        """Ask each node what it has installed, and whether it sees the files of the build.

        Args:
            directory: of the new datastore.
            corpora: paths of the corpora; those with a scheme are not looked for.

        Raises:
            ClusterError: a node does not answer, has other versions, or does not see a file.
        """
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        mark = directory / f"seen-{uuid.uuid4().hex}"
        with output_errors(mark):
            mark.touch()
        paths = [os.fspath(local_path(path).absolute()) for path in corpora if scheme_of(path) is None]
        try:
            examine = _examination()
            own = examine(os.fspath(mark), paths, _PACKAGES)
            answers = {}
            for node in self._nodes:
                strategy = NodeAffinitySchedulingStrategy(node, soft=False)
                asked = ray.remote(num_cpus=0, max_retries=1, scheduling_strategy=strategy)(examine)
                answers[node] = asked.remote(os.fspath(mark), paths, _PACKAGES)
            ray.wait(list(answers.values()), num_returns=len(answers), timeout=_ANSWER_SECONDS)
            alive = RayCluster()._nodes  # a node that has died meanwhile is not needed
            self._nodes = {node: properties for node, properties in self._nodes.items() if node in alive}
            for node, properties in self._nodes.items():
                name = _name(properties)
                _require_same(name, _answer(name, answers[node]), own, directory)
        finally:
            with suppress(OSError):
                mark.unlink()


@contextmanager
def connected(address: str) -> Iterator[RayCluster]:
    """Connect to a Ray cluster, unless this process is connected to one already.

    Args:
        address: `HOST:PORT` of its head node, or "auto": that of RAY_ADDRESS, or the one on this machine.

    Raises:
        MissingExtraError: Ray is not installed.
        ClusterError: there is no such cluster, or it has other versions of Python or Ray.
    """
    with build_packages(_WHERE, MissingExtraError, "ray"):
        import ray
    if ray.is_initialized():
        yield RayCluster()
        return
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS") or address
    terminated = signal.getsignal(signal.SIGTERM)
    try:
        _require_open(address)
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    except Exception as error:  # its errors have no common base
        expected = "the address of one that runs, with this Python and Ray"
        found = f"'{address}', which cannot be used ({first_line(error)})"
        raise ClusterError(describe(_WHERE, "the cluster", found, expected)) from error
    try:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, terminated)  # Ray has its own way to end
        yield RayCluster()
    finally:
        ray.shutdown()


def _require_open(address: str) -> None:
    """Raise OSError if nothing listens at `HOST:PORT`, for which Ray waits minutes; other addresses are its affair."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()


class RayWorkers:
    """The CPUs of a cluster; see `workers.Workers`.

    Args:
        setup: of the build.
        count: tasks that are done at once.
        shard_bytes: memory that sorting a shard takes.
    """

    def __init__(self, setup: Setup, count: int, shard_bytes: int) -> None:
        import ray

        self.count = self.sorts = count
        self._tokenize = ray.remote(num_cpus=1, max_retries=_RETRIES)(_tokenize)
        self._sort = ray.remote(num_cpus=1, max_retries=_RETRIES, memory=shard_bytes)(sort_shard)
        self._build = uuid.uuid4().hex
        self._setup = ray.put(setup)
        self._running: set[Any] = set()

    def submit(self, part: Slice) -> Future[SliceReport]:
        """See `Workers.submit`."""
        # In a list, a reference is passed on as it is: the setup is fetched once in each process.
        return self._future(self._tokenize.remote(self._build, [self._setup], part), part.where)

    def sort(self, directory: Path, name: str, vocabulary_size: int) -> Future[SortSeconds]:
        """See `Workers.sort`."""
        return self._future(self._sort.remote(directory, name, vocabulary_size), os.fspath(directory / name))

    def close(self) -> None:
        """See `Workers.close`."""
        import ray

        for running in list(self._running):
            with suppress(Exception):  # the cluster may be gone
                ray.cancel(running, force=True)
        self._running.clear()

    def _future(self, running: Any, where: str) -> Future[Any]:
        """Return the result to come of a task, whose error is one of ours."""
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()

        def pass_on(done: Future[Any]) -> None:
            self._running.discard(running)
            error = done.exception()
            if error is None:
                future.set_result(done.result())
                return
            cause = getattr(error, "cause", None)  # of what Ray wraps
            if not isinstance(cause, RestStoreError | EncoderError):
                cause = WorkerError(f"{where}: Ray did not do it ({first_line(error)})")
            future.set_exception(cause)

        self._running.add(running)
        running.future().add_done_callback(pass_on)
        return future


# --- In the processes of the cluster ----------------------------------------------------------------------------------

_setups: dict[str, Setup] = {}  # of the build that this process works for


def _tokenize(build: str, setup: list[Any], part: Slice) -> SliceReport:
    import ray

    if build not in _setups:
        _setups.clear()
        _setups[build] = ray.get(setup[0])
        prepare(_setups[build])
    return tokenize_elsewhere(_setups[build], part)


def _examination() -> Callable[[str, list[str], tuple[str, ...]], dict[str, Any]]:
    """Return a function that needs nothing of rest-store where it is called."""

    def examine(mark: str, paths: list[str], packages: tuple[str, ...]) -> dict[str, Any]:
        import platform
        from importlib.metadata import PackageNotFoundError, version
        from pathlib import Path

        def version_of(package: str) -> str:
            try:
                return version(package)
            except PackageNotFoundError:
                return "absent"

        try:
            from rest_store import __version__ as ours
        except ImportError:
            ours = "absent"
        return {
            "versions": {
                "Python": ".".join(platform.python_version_tuple()[:2]),
                "rest-store": ours,
                **{package: version_of(package) for package in packages},
            },
            "sees": Path(mark).is_file(),
            "missing": [path for path in paths if not Path(path).exists()],
        }

    return examine


def _name(node: dict[str, Any]) -> str:
    return f"node {node['NodeManagerAddress']} ({node['NodeID'][:8]})"


def _answer(name: str, answer: Any) -> dict[str, Any]:
    import ray

    try:
        report: dict[str, Any] = ray.get(answer, timeout=0)
    except Exception as error:  # its errors have no common base
        problem = first_line(error) or f"no answer in {_ANSWER_SECONDS} s"
        raise ClusterError(f"{name}: it cannot do tasks ({problem})") from error
    return report


def _require_same(name: str, report: dict[str, Any], own: dict[str, Any], directory: Path) -> None:
    for package, version in own["versions"].items():
        if report["versions"][package] != version:
            raise ClusterError(describe(name, package, report["versions"][package], f"{version}, as here"))
    if not report["sees"]:
        expected = "a directory that all nodes see, such as one on NFS"
        raise ClusterError(describe(name, f"the output {directory}", "not visible", expected))
    for path in report["missing"]:
        raise ClusterError(describe(name, f"the corpus {path}", "absent", "a path that all nodes see"))
