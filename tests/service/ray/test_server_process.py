"""A server that is started again whenever it ends."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from rest_store.errors import AuthenticationError
from rest_store.service.client.client import DatastoreClient
from rest_store.service.ray.server_process import ServerProcess
from rest_store.service.tokens import TOKEN_VARIABLE
from tests.shared.live import until
from tests.shared.services import PATIENCE
from tests.shared.strategies import Corpus, write_datastore


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What `rest-store serve` takes for a datastore."""
    return f"numbers={write_datastore(tmp_path_factory.mktemp('served'), Corpus(300, [[[5, 6, 7]]]))}"


@pytest.fixture
def server(place: str) -> Iterator[ServerProcess]:
    started = ServerProcess([place], "127.0.0.1:0")
    until(lambda: started.state.starts)
    yield started
    started.stop()


def answers(address: str) -> bool:
    with socket.socket() as probe:
        host, _, port = address.rpartition(":")
        return probe.connect_ex((host, int(port))) == 0


def test_a_server_that_is_killed_comes_back_where_it_was(server: ServerProcess) -> None:
    address = server.state.address
    assert address is not None
    assert server.state == (address, 1, None, None)
    with DatastoreClient(address, timeout=PATIENCE) as client:
        assert client.count([6, 7]) == 1
        server.send_signal(signal.SIGKILL)
        until(lambda: server.state.starts == 2)
        assert server.state == (address, 2, "it ended with status -9", None)
        assert client.count([6, 7]) == 1
    server.stop()
    assert not answers(address)
    assert server.state.starts == 2


def test_a_server_that_cannot_be_started_now_is_started_later(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, failed = subprocess.Popen, threading.Event()

    def fail_once(*arguments: Any, **options: Any) -> Any:
        if failed.is_set():
            return start(*arguments, **options)
        failed.set()
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", fail_once)
    server.send_signal(signal.SIGKILL)
    assert failed.wait(PATIENCE)
    server._thread.join(0.1)
    assert server._thread.is_alive()
    until(lambda: server.state.starts == 2)
    assert server.state.failure == "it cannot be started (Resource temporarily unavailable)"


def test_metrics_come_back_where_they_were(place: str) -> None:
    server = ServerProcess([place], "127.0.0.1:0", "127.0.0.1:0")
    try:
        until(lambda: server.state.starts)
        metrics = server.state.metrics
        assert metrics is not None
        for starts in (1, 2):
            until(lambda starts=starts: server.state.starts == starts)
            assert server.state.metrics == metrics
            with urlopen(f"http://{metrics}/metrics") as page:
                assert b'rest_store_datastore_tokens{datastore="numbers"} 3.0' in page.read()
            server.send_signal(signal.SIGKILL)
    finally:
        server.stop()


def test_variables_are_in_the_environment_of_the_server(place: str) -> None:
    server = ServerProcess([place], "127.0.0.1:0", variables={TOKEN_VARIABLE: "secret"})
    try:
        until(lambda: server.state.starts)
        address = server.state.address
        assert address is not None
        with DatastoreClient(address, token="secret", timeout=PATIENCE) as client:
            assert client.count([6, 7]) == 1
        with pytest.raises(AuthenticationError):
            DatastoreClient(address, timeout=PATIENCE).count([6, 7])
    finally:
        server.stop()


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    server = ServerProcess([str(tmp_path / "absent")], "127.0.0.1:0")
    try:
        until(lambda: server.state.failure)
        assert server.state.starts == 0
        assert server.state.failure is not None
        assert server.state.failure.startswith(f"Error: {tmp_path / 'absent'}")
    finally:
        server.stop()


_OWNER = """
import sys, time
from rest_store.service.ray.server_process import ServerProcess
server = ServerProcess([sys.argv[1]], "127.0.0.1:0")
while not server.state.starts: time.sleep(0.01)
print(server.state.address, flush=True)
time.sleep(3600)
"""


def test_a_server_ends_with_whoever_supervises_it(place: str) -> None:
    with subprocess.Popen([sys.executable, "-c", _OWNER, place], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        address = owner.stdout.readline().strip()
        assert answers(address)
        os.kill(owner.pid, signal.SIGKILL)
    until(lambda: not answers(address))
