"""Real services for tests: a process on a free port, certificates, and raw requests."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path

import grpc
import pytest
import trustme
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status
from prometheus_client.parser import text_string_to_metric_families

from rest_store.errors import RestStoreError
from rest_store.service.statuses import DOMAIN
from rest_store.v1 import datastore_pb2_grpc

PATIENCE = 60.0  # seconds after which a test that waits for an event fails


class Service:
    """A service in a process of its own. Its log is in `log`, complete once it has ended."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self._arguments = list(arguments)
        self._environment = dict(environment)
        self.log: list[str] = []
        self.log_grew = threading.Event()
        self.targets: list[str] = []
        self.metrics: str | None = None
        self._start(self._arguments)

    def _start(self, arguments: list[str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rest_store", "serve", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",  # gRPC writes what strangers sent
            env={**os.environ, **self._environment},
        )
        self._reader = threading.Thread(
            target=self._read_log, args=(self.process.stderr,), daemon=True
        )
        self._reader.start()
        self.targets = []
        self.metrics = None
        assert self.process.stdout is not None
        for line in self.process.stdout:  # ends when the process does
            word, _, rest = line.rstrip("\n").partition(" on ")
            if word == "listening":
                self.targets.append(rest)
            elif word == "metrics":
                self.metrics = rest
            elif word == "ready":
                return
        status = self._ended()
        raise RuntimeError(f"the service ended with status {status}:\n" + "".join(self.log))

    def _read_log(self, stream: Iterator[str]) -> None:
        for line in stream:
            self.log.append(line)
            self.log_grew.set()

    @property
    def target(self) -> str:
        """Its first TCP address, as gRPC takes it."""
        return next(target for target in self.targets if not target.startswith("unix:"))

    @property
    def unix(self) -> str:
        """Its first Unix socket, as gRPC takes it."""
        return next(target for target in self.targets if target.startswith("unix:"))

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def pause(self) -> None:
        """Stop the process where it is, and wait until it is."""
        self.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it without notice."""
        self.signal(signal.SIGKILL)
        self._ended()

    def stop(self) -> int:
        """End it as an operator would; return its exit status."""
        self.signal(signal.SIGTERM)
        return self._ended()

    def _ended(self) -> int:
        status = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        return status

    def restart(self) -> None:
        """Start it again after it has ended, on the addresses that it had."""
        assert self.process.poll() is not None
        listened = {after for part, after in pairwise(self._arguments) if part == "--listen"}
        arguments = [
            part for part in self._arguments if part != "--listen" and part not in listened
        ]
        self._start(
            [*arguments, *(part for target in self.targets for part in ("--listen", target))]
        )

    def open_descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def resident_bytes(self) -> int:
        status = Path(f"/proc/{self.process.pid}/smaps_rollup").read_text(encoding="ascii")
        lines = dict(line.split(":", 1) for line in status.splitlines()[1:])
        # Mapped files come and go as the system likes.
        return int(lines["Anonymous"].split()[0]) << 10

    def channel(self, target: str | None = None) -> grpc.Channel:
        return grpc.insecure_channel(target or self.target, [("grpc.use_local_subchannel_pool", 1)])

    @contextlib.contextmanager
    def stub(self, target: str | None = None) -> Iterator[datastore_pb2_grpc.DatastoreServiceStub]:
        """A raw client of its own connection."""
        with self.channel(target) as channel:
            yield datastore_pb2_grpc.DatastoreServiceStub(channel)


@contextlib.contextmanager
def running(
    *datastores: Path | str,
    listen: Sequence[str] = ("127.0.0.1:0",),
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    unix: bool = False,
) -> Iterator[Service]:
    """Run `rest-store serve` on free ports, and with `unix` on a socket, too.

    Ended when the block is left.

    Raises:
        RuntimeError: it did not start; the message holds its log.
    """
    with tempfile.TemporaryDirectory(prefix="rest-store-") as folder:
        addresses = [*listen, *([f"unix:{folder}/socket"] if unix else [])]
        listening = [part for address in addresses for part in ("--listen", address)]
        service = Service([*map(str, datastores), *listening, *options], environment or {})
        try:
            yield service
        finally:
            if service.process.poll() is None:
                service.resume()
                service.signal(signal.SIGKILL)
            service._ended()


@dataclass(frozen=True)
class Certificates:
    """Files of a certificate authority and of certificates from it.

    Attributes:
        authority: the authority's certificate.
        server: the options of `serve` that make it use a certificate for localhost and 127.0.0.1.
        client: certificate and key of a client.
        expired: as `server`, but expired an hour ago.
    """

    authority: Path
    server: list[str]
    client: tuple[Path, Path]
    expired: list[str]

    @classmethod
    def make(cls, directory: Path) -> Certificates:
        """Write them into `directory`."""
        directory.mkdir(parents=True, exist_ok=True)
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(directory / "authority.pem"))

        def issue(name: str, *hosts: str, not_after: datetime | None = None) -> tuple[Path, Path]:
            issued = authority.issue_cert(*hosts, not_after=not_after)
            certificate = directory / f"{name}.pem"
            key = directory / f"{name}.key"
            issued.private_key_pem.write_to_path(str(key))
            certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
            return certificate, key

        def options(files: tuple[Path, Path]) -> list[str]:
            return ["--tls-cert", str(files[0]), "--tls-key", str(files[1])]

        hour_ago = datetime.now(timezone.utc) - timedelta(hours=1)
        return cls(
            directory / "authority.pem",
            options(issue("server", "localhost", "127.0.0.1")),
            issue("client", "client@example.org"),
            options(issue("expired", "localhost", "127.0.0.1", not_after=hour_ago)),
        )


def reason_of(error: grpc.RpcError) -> str | None:
    """The reason in the ErrorInfo of an error, if it has one."""
    status = rpc_status.from_call(error)
    for detail in status.details if status is not None else ():
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info) and info.domain == DOMAIN:
            return str(info.reason)
    return None


def failed(error: type[RestStoreError], call: Callable[[], object], *fragments: str) -> str:
    """Return the message of exactly `error`, with which `call` fails."""
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    assert type(caught.value) is error
    assert ", expected " not in message
    for fragment in fragments:
        assert fragment in message
    return message


def metrics_of(service: Service) -> dict[tuple[str, ...], float]:
    """The metrics of a service by name and values of labels, in the order of the labels' names."""
    assert service.metrics is not None
    with urllib.request.urlopen(service.metrics, timeout=PATIENCE) as response:
        text = response.read().decode()
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def health_of(service: Service, name: str = "") -> str:
    """The health of a datastore, or with no name of the service."""
    with service.channel() as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        status = check(health_pb2.HealthCheckRequest(service=name), timeout=PATIENCE).status
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(status))


def reload(service: Service) -> list[str]:
    """Have a service open its datastores again; return what its log says of each."""
    before = len(service.log)
    service.signal(signal.SIGHUP)
    ends = time.monotonic() + PATIENCE
    while not (reloads := [line for line in list(service.log)[before:] if "reload" in line]):
        assert time.monotonic() < ends
        service.log_grew.wait(0.1)
        service.log_grew.clear()
    return reloads
