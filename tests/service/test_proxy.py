"""A proxy of the environment is not used on this machine, and messages about others name it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rest_store.errors import ServiceUnavailableError
from rest_store.service.client.client import DatastoreClient
from rest_store.service.proxy import proxy_for
from tests.shared.services import PATIENCE, Service, failed, running
from tests.shared.strategies import Corpus, write_datastore

VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy", "no_grpc_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def _without_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


class Proxy:
    """A proxy that refuses everything; `asked` are the first lines of its requests."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://someone:secret@127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # closed
                return
            with connection:
                self.requests.append(connection.recv(4096).decode().splitlines()[0])
                connection.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n")

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(PATIENCE)


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    proxy = Proxy()
    yield proxy
    proxy.close()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    store = write_datastore(
        tmp_path_factory.mktemp("datastores") / "one", Corpus(300, [[[5, 6, 7] * 20]])
    )
    with running(store, listen=["127.0.0.1:0", "[::1]:0"], unix=True) as service:
        yield service


@pytest.mark.parametrize("variable", ["grpc_proxy", "https_proxy", "http_proxy"])
def test_services_of_this_machine_are_reached_without_it(
    service: Service, proxy: Proxy, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, proxy.url)
    port = service.target.rpartition(":")[2]
    for target in (*service.targets, f"localhost:{port}"):
        with DatastoreClient(target, timeout=PATIENCE) as client:
            assert client.count([5, 6]) == 20
    assert proxy.requests == []


def test_other_hosts_are_reached_through_it_and_messages_name_it(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", proxy.url)
    with DatastoreClient("service.invalid:50051", timeout=1.0) as client:
        said = failed(ServiceUnavailableError, lambda: client.count([5, 6]), "unreachable", "403")
    where = proxy.url.rpartition("@")[2]
    assert said.startswith(f"service.invalid:50051, through the proxy {where} (http_proxy): ")
    assert "secret" not in said
    assert set(proxy.requests) == {"CONNECT service.invalid:50051 HTTP/1.1"}


def test_a_proxy_that_is_down_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        where = f"127.0.0.1:{closed.getsockname()[1]}"
    monkeypatch.setenv("grpc_proxy", f"http://{where}")
    with DatastoreClient("service.invalid:50051", timeout=1.0) as client:
        failed(
            ServiceUnavailableError,
            lambda: client.count([5, 6]),
            f"through the proxy {where} (grpc_proxy)",
        )


@pytest.mark.parametrize(
    ("target", "environment", "proxy"),
    [
        ("a.example:1", {"http_proxy": "http://p:3128"}, "p:3128 (http_proxy)"),
        (
            "a.example:1",
            {"https_proxy": "http://p:3128", "http_proxy": "http://q:1"},
            "p:3128 (https_proxy)",
        ),
        ("a.example:1", {"grpc_proxy": "", "http_proxy": "http://q:1"}, None),
        ("a.example:1", {"http_proxy": "http://user:word@[::2]:3128/"}, "[::2]:3128 (http_proxy)"),
        ("a.example:1", {"http_proxy": "https://p:3128"}, None),
        ("a.example:1", {"http_proxy": "http://[::2"}, None),
        ("a.example:1", {}, None),
        ("a.example:1", {"http_proxy": "http://p:1", "no_proxy": "b.example, Example"}, None),
        (
            "a.example:1",
            {"http_proxy": "http://p:1", "no_grpc_proxy": "b.example", "no_proxy": "*"},
            "p:1 (http_proxy)",
        ),
        ("10.1.2.3:1", {"http_proxy": "http://p:1", "no_proxy": "10.0.0.0/8"}, None),
        ("10.1.2.3:1", {"http_proxy": "http://p:1", "no_proxy": "11.0.0.0/8,"}, "p:1 (http_proxy)"),
        ("[2001:db8::1]:1", {"http_proxy": "http://p:1"}, "p:1 (http_proxy)"),
        ("127.0.0.1:1", {"http_proxy": "http://p:1"}, None),
        ("localhost:1", {"http_proxy": "http://p:1"}, None),
        ("[::1]:1", {"http_proxy": "http://p:1"}, None),
    ],
)
def test_which_proxy_is_named(
    target: str, environment: dict[str, str], proxy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert proxy_for(target) == proxy


def test_a_socket_has_no_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://p:1")
    assert proxy_for(f"unix:{tmp_path}/socket") is None
