"""Partitions on a Ray cluster of several nodes on this machine; `make test-ray` runs this."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rest_store.service.client.client import DatastoreClient
from tests.shared.pages import ROOT
from tests.shared.services import PATIENCE
from tests.shared.strategies import Corpus, write_datastore

pytestmark = [
    pytest.mark.skipif(
        "REST_STORE_RAY" not in os.environ, reason="starts a Ray cluster: make test-ray"
    ),
    pytest.mark.filterwarnings("default"),  # Ray's own
]


def test_partitions_are_served_and_started_again(tmp_path: Path) -> None:
    from ray.cluster_utils import Cluster

    node = {"include_dashboard": False, "object_store_memory": 80 << 20, "num_cpus": 1}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    cluster.add_node(**node)
    datastore = write_datastore(tmp_path, Corpus(300, [[[5, 6, 7]], [[5, 6, 8]], [[5, 6, 7]]]))
    words = [
        datastore,
        "--address",
        cluster.address,
        "--partitions",
        2,
        "--replicas",
        2,
        "--host",
        "127.0.0.1",
        "--port",
        0,
    ]
    command = [sys.executable, ROOT / "examples/ray_partitions.py", *words]
    try:
        with subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            target = next(line for line in process.stdout if ";" in line).strip()
            with DatastoreClient(target, timeout=PATIENCE) as client:
                assert client.count([5, 6]) == 3
                assert client.count([6, 7]) == 2
                done = subprocess.run(
                    ["pgrep", "-f", f"serve {datastore} --partition 1/2"],
                    capture_output=True,
                    text=True,
                    check=True,
                )
                for number in done.stdout.split():
                    os.kill(int(number), signal.SIGKILL)
                assert client.count([5, 6]) == 3, "at the addresses that they had"
            process.send_signal(signal.SIGINT)
            process.stdout.close()
            process.wait(PATIENCE)
    finally:
        cluster.shutdown()
