"""Parts on a Ray cluster of several nodes on this machine; `make test-ray` runs this."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rest_store.service.client.client import DatastoreClient
from rest_store.service.client.part_groups import part_groups
from tests.shared.clients import free_port
from tests.shared.live import until
from tests.shared.services import PATIENCE
from tests.shared.strategies import Corpus, write_datastore

pytestmark = [
    pytest.mark.skipif("REST_STORE_RAY" not in os.environ, reason="starts a Ray cluster: make test-ray"),
    pytest.mark.filterwarnings("default"),  # Ray's own
]

PARTS, REPLICAS = 2, 2
DOCUMENTS = [[[5, 6, 7]], [[5, 6, 8]], [[5, 6, 7]]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster of a head without processors and two nodes."""
    from ray.cluster_utils import Cluster

    node = {"include_dashboard": False, "object_store_memory": 80 << 20}
    started = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **node})
    for _ in range(2):
        started.add_node(num_cpus=1, **node, wait=False)
    started.wait_for_nodes()
    yield started
    started.shutdown()


def test_a_server_that_cannot_start_ends_all(cluster: Any, datastore: Path, tmp_path: Path) -> None:
    words = ["--ray", cluster.address, "--parts", len(DOCUMENTS) + 1, "--parts-file", tmp_path / "parts.toml"]
    ended = subprocess.run(
        command(datastore, *words, "--listen", "127.0.0.1:0"), capture_output=True, text=True, check=False
    )
    last = ended.stderr.strip().splitlines()[-1]
    assert (ended.returncode, last.startswith("Error: part ")) == (1, True), ended.stderr
    assert f"{datastore}: number of parts is 4, expected at most 3" in last
    assert not (tmp_path / "parts.toml").exists()


@pytest.fixture(scope="module")
def datastore(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_datastore(tmp_path_factory.mktemp("served"), Corpus(300, DOCUMENTS))


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "rest_store", "serve", *map(str, words)]


def parts_in(file: Path) -> list[list[str]]:
    groups = part_groups(str(file))
    assert groups is not None
    return groups


def process_at(address: str) -> int | None:
    """The process of the server that listens at an address, or is about to; None: there is none."""
    for folder in Path("/proc").iterdir():
        with suppress(OSError):  # it ends just now
            words = (folder / "cmdline").read_bytes().split(b"\0") if folder.name.isdecimal() else []
            if b"--part" in words and address.encode() in words:
                return int(folder.name)
    return None


def answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def test_killed_servers_actors_and_nodes_come_back(cluster: Any, datastore: Path, tmp_path: Path) -> None:
    """And clients get the same answers meanwhile."""
    file = tmp_path / "parts.toml"
    words = ["--ray", cluster.address, "--parts", PARTS, "--replicas", REPLICAS, "--parts-file", file]
    served = command(f"numbers={datastore}", *words, "--listen", f"127.0.0.1:{free_port()}")
    with subprocess.Popen(served, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as supervisor:
        try:
            assert supervisor.stdout is not None
            said = [supervisor.stdout.readline(), supervisor.stdout.readline()]
            assert said == [f"parts in {file}\n", "ready\n"], supervisor.communicate()
            endpoints = parts_in(file)
            assert [len(group) for group in endpoints] == [REPLICAS] * PARTS
            with DatastoreClient(str(file), timeout=PATIENCE) as client:
                assert client.count([5, 6]) == 3
                for kill_actor in (False, True):
                    killed = process_at(endpoints[0][0])
                    assert killed is not None
                    os.kill(parent_of(killed) if kill_actor else killed, signal.SIGKILL)
                    assert client.count([5, 6]) == 3
                    until(lambda killed=killed: process_at(endpoints[0][0]) not in (None, killed))
                    until(lambda: answers(endpoints[0][0]))
                    assert client.count([5, 6]) == 3
                addresses = [address for group in endpoints for address in group]
                before = [process_at(address) for address in addresses]
                cluster.remove_node(cluster.list_all_nodes()[-1], allow_graceful=False)
                assert client.count([5, 6]) == 3
                moved = len(addresses) // 2  # those of one node of two
                until(lambda: len({process_at(address) for address in addresses} - {None, *before}) == moved)
                until(lambda: all(map(answers, addresses)))
                assert client.count([5, 6]) == 3
            assert parts_in(file) == endpoints
        finally:
            supervisor.terminate()
        supervisor.communicate()
        assert supervisor.returncode == 0
    assert not any(map(answers, addresses))
