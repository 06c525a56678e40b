"""Parts on a Ray cluster of several nodes on this machine; `make test-ray` runs this."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from rest_store.service.client.part_groups import part_groups

from rest_store.errors import AuthenticationError
from rest_store.service.client.client import DatastoreClient
from rest_store.service.tokens import TOKEN_VARIABLE
from tests.shared.clients import free_port
from tests.shared.live import until
from tests.shared.services import PATIENCE
from tests.shared.strategies import Corpus, write_datastore

pytestmark = [
    pytest.mark.skipif("REST_STORE_RAY" not in os.environ, reason="starts a Ray cluster: make test-ray"),
    pytest.mark.filterwarnings("default"),  # Ray's own
]

PARTS, REPLICAS = 2, 2
SECRET = "a-token-that-nobody-sees"
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


def pages_in(file: Path) -> dict[tuple[int, int], str]:
    """The part that each page of metrics is of, as it says itself, by part and replica as the file says."""
    pages = {}
    for group in json.loads(file.read_text()):
        (target,) = group["targets"]
        with urlopen(f"http://{target}/metrics") as page:
            (part,) = re.findall(rb"^rest_store_datastore_part\{.*\} (\d)\.0$", page.read(), re.MULTILINE)
        assert part.decode() == group["labels"]["part"]
        pages[int(group["labels"]["part"]), int(group["labels"]["replica"])] = target
    return pages


def command_lines() -> bytes:
    """Those of all processes."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it ends just now
            lines.append(path.read_bytes())
    return b"\n".join(lines)


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
    metrics = tmp_path / "metrics.json"
    words += ["--metrics", f"127.0.0.1:{free_port()}", "--metrics-file", metrics]
    served = command(f"numbers={datastore}", *words, "--listen", f"127.0.0.1:{free_port()}")
    environment = {**os.environ, TOKEN_VARIABLE: SECRET}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(served, env=environment, text=True, **pipes) as supervisor:
        try:
            assert supervisor.stdout is not None
            said = [supervisor.stdout.readline() for _ in range(3)]
            assert said == [f"parts in {file}\n", f"metrics in {metrics}\n", "ready\n"], supervisor.communicate()
            endpoints = parts_in(file)
            assert [len(group) for group in endpoints] == [REPLICAS] * PARTS
            pages = pages_in(metrics)
            assert list(pages) == [
                (part, replica) for part in range(1, PARTS + 1) for replica in range(1, REPLICAS + 1)
            ]
            assert SECRET.encode() not in command_lines()
            with DatastoreClient(str(file), timeout=PATIENCE) as stranger, pytest.raises(AuthenticationError):
                stranger.count([5, 6])
            with DatastoreClient(str(file), token=SECRET, timeout=PATIENCE) as client:
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
            until(lambda: all(map(answers, pages.values())))
            assert pages_in(metrics) == pages
        finally:
            supervisor.terminate()
        written = "".join(supervisor.communicate())
        assert supervisor.returncode == 0
    logs = [path for path in Path(cluster.head_node.get_logs_dir_path()).rglob("*") if path.is_file()]
    assert logs
    assert SECRET not in written
    assert [path for path in (file, metrics, *logs) if SECRET.encode() in path.read_bytes()] == []
    assert not any(map(answers, addresses))
