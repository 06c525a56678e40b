"""A running service, from listening to draining, on one asyncio event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2
from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector

from rest_store.datastore.part import Part
from rest_store.errors import ServeError, describe
from rest_store.service.address import Address
from rest_store.service.server.catalog import Catalog
from rest_store.service.server.connections import Connections
from rest_store.service.server.credentials import CertificateFiles, Certificates
from rest_store.service.server.executor import Executor
from rest_store.service.server.handlers import Handlers
from rest_store.service.server.health import Health
from rest_store.service.server.limits import Limits
from rest_store.service.server.live_handlers import LiveHandlers
from rest_store.service.server.logs import EventLog
from rest_store.service.server.metrics import Metrics
from rest_store.service.server.metrics_endpoint import MetricsEndpoint
from rest_store.service.server.reloads import Reloads
from rest_store.service.server.rights import BearerTokens
from rest_store.service.server.servicer import METHODS, SERVICE, Answer, Servicer
from rest_store.service.server.session_handlers import SessionHandlers
from rest_store.service.server.sessions import Sessions
from rest_store.service.server.unix_socket import SocketPermissions
from rest_store.v1 import datastore_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

_HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
_WATCH_SECONDS = 1.0  # between two checks of the files
_GREATEST_OPTION = (1 << 31) - 1  # gRPC takes a C int


@dataclass(frozen=True)
class Options:
    """How a service runs: its datastores by name, and the options of `rest-store serve`, whose help explains them."""

    datastores: Sequence[tuple[str, Path]]
    addresses: Sequence[Address] = (Address("127.0.0.1:50051", host="127.0.0.1", port=50051),)
    certificates: CertificateFiles | None = None
    token_file: Path | None = None
    token: str | None = None
    insecure: bool = False
    metrics: Address | None = None
    limits: Limits = field(default_factory=Limits)
    connections: Connections = field(default_factory=Connections)
    sockets: SocketPermissions = field(default_factory=SocketPermissions)
    drain_seconds: float = 10.0
    log_requests: bool = False
    live: Sequence[tuple[str, Path]] = ()
    live_tokenizer: object = None  # as `LiveDatastore.open` takes it
    part: Part | None = None  # of each datastore


class Server:
    """A service. Create and use it within one running event loop.

    Args:
        options: how it runs.
        version: of rest-store, which it publishes.
        log: receives events.

    Attributes:
        metrics_address: URL of the metrics, once started; None without.
        watch: once started, a task that ends only if the service cannot go on.

    Raises:
        ServeError: it cannot start with these options.
        DatastoreError: a datastore cannot be opened.
    """

    def __init__(self, options: Options, version: str, log: EventLog) -> None:
        self._options = options
        self._log = log
        self._tokens = BearerTokens(options.token_file, options.token)
        self._certificates = Certificates(options.certificates) if options.certificates is not None else None
        _require_secure(options, bool(self._tokens))
        self._catalog = Catalog(options.datastores, options.live, options.live_tokenizer, log, options.part)
        self._metrics = Metrics(METHODS, version, "native")
        self._sessions = Sessions(options.limits)
        self._workers = ThreadPoolExecutor(min(4, os.cpu_count() or 1), thread_name_prefix="draft")
        self._health = Health()
        self._reloads = Reloads(self._reload)
        self._metrics_endpoint: MetricsEndpoint | None = None
        self.metrics_address: str | None = None
        names = (SERVICE, _HEALTH, reflection.SERVICE_NAME)
        reflector = reflection.aio.ReflectionServicer(names)  # type: ignore[attr-defined]  # missing in the stubs
        reflect: Answer = partial(reflector.ServerReflectionInfo, unused_context=None)
        others = {
            f"/{_HEALTH}/Check": (health_pb2.HealthCheckRequest, self._health.check),
            f"/{_HEALTH}/Watch": (health_pb2.HealthCheckRequest, self._health.watch),
            f"/{reflection.SERVICE_NAME}/ServerReflectionInfo": (reflection_pb2.ServerReflectionRequest, reflect),
        }
        parts = (self._catalog, options.limits, self._metrics, Executor(self._workers), self._sessions)
        self._servicer = Servicer(
            Handlers(*parts),
            SessionHandlers(*parts),
            LiveHandlers(self._catalog, options.limits),
            self.start_reload,
            limits=options.limits,
            tokens=self._tokens,
            metrics=self._metrics,
            log=log,
            others=others,
            public=frozenset({f"/{_HEALTH}/Check", f"/{_HEALTH}/Watch"}),
            log_requests=options.log_requests,
        )
        options.connections.allow_files(len(options.addresses))
        channel_options = [*_channel_options(options.limits), *options.connections.channel_options()]
        self._server = grpc.aio.server(handlers=[self._servicer], options=channel_options)

    async def start(self) -> list[str]:
        """Listen and answer; return the addresses as they were bound."""
        bound = [self._bind(address) for address in self._options.addresses]
        if self._options.metrics is not None:
            self.metrics_address = await self._serve_metrics(self._options.metrics)
        self._update_health()
        await self._server.start()
        self.watch = asyncio.create_task(self._watch())
        self._log("start", addresses=bound, datastores=[served.name for served in self._catalog.served])
        return bound

    def _bind(self, address: Address) -> str:
        address.require_unanswered()
        sockets = self._options.sockets
        with contextlib.nullcontext() if address.path is None else sockets.given_to(address.path):
            try:
                if self._certificates is not None and address.path is None:
                    port = self._server.add_secure_port(address.text, self._certificates.credentials())
                else:
                    port = self._server.add_insecure_port(address.text)
            except (RuntimeError, OSError):
                message = f"service: address {address.text} cannot be bound (in use, unknown or not permitted)"
                raise ServeError(message) from None
        return address.text if address.path is not None else address.with_port(port).text

    async def _serve_metrics(self, address: Address) -> str:
        registry = CollectorRegistry()
        registry.register(self)
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        self._metrics_endpoint = MetricsEndpoint(registry, self._workers)
        return await self._metrics_endpoint.start(address)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; the thread that serves them calls this."""
        requests, streams = self._servicer.requests.tasks, self._servicer.streams.tasks
        draining, served = self._servicer.draining, self._catalog.served
        yield from self._metrics.collect(len(requests), len(streams), draining, served, self._sessions)

    async def _watch(self) -> None:
        """Check the files once a second, so that health and metrics show a change before a request meets it.

        As often, end idle streams and summarize what the log left out. Raises the error with which gRPC's server ends.
        """
        while True:
            await self._server.wait_for_termination(_WATCH_SECONDS)
            await asyncio.get_running_loop().run_in_executor(self._workers, self._catalog.watch)
            self._update_health()
            self._servicer.end_idle_streams(self._options.limits.session_idle_seconds)
            if self._sessions is not None:
                self._sessions.follow_changes()
            self._log.summarize()

    def _update_health(self) -> None:
        serving = {served.name: served.readable and not self._servicer.draining for served in self._catalog.served}
        any_serving = any(serving.values())
        self._health.set({**serving, "": any_serving, SERVICE: any_serving})

    def start_reload(self) -> asyncio.Task[pb.ReloadResponse]:
        """Read datastores, tokens and certificates again, as the returned task; those not valid stay as they were."""
        return self._reloads.start()

    async def _reload(self) -> pb.ReloadResponse:
        reopened = await asyncio.get_running_loop().run_in_executor(None, self._catalog.reopen)
        outcomes = self._catalog.swap(reopened)
        response = pb.ReloadResponse()
        for outcome in outcomes:
            self._metrics.reloads["reloaded" if outcome.refused is None else "refused"] += 1
            response.outcomes.add(datastore=outcome.name, generation=outcome.generation, refused=outcome.refused or "")
            self._log("reload", datastore=outcome.name, generation=outcome.generation, refused=outcome.refused)
        for secrets in (self._tokens, self._certificates):
            try:
                if secrets is not None:
                    secrets.reload()
            except ServeError as error:
                self._log("reload", refused=str(error))
                response.outcomes.add(refused=str(error))
        self._servicer.end_revoked_streams()
        self._update_health()
        return response

    async def drain(self) -> None:
        """Refuse new calls, let running ones finish within `drain_seconds`, stop, and close the live datastores."""
        self._servicer.draining = True
        self._update_health()
        requests, streams = self._servicer.requests.tasks, self._servicer.streams.tasks
        self._log("drain", in_flight=len(requests), streams=len(streams))
        self._servicer.end_streams(between_steps=True)
        if running := requests | streams:
            await asyncio.wait(running, timeout=self._options.drain_seconds)
        self.watch.cancel()
        self._servicer.end_streams()
        with contextlib.suppress(Exception):  # the error that has ended it before
            await self._server.stop(grace=0.5)
        if self._metrics_endpoint is not None:
            await self._metrics_endpoint.stop()
        self._workers.shutdown(wait=False, cancel_futures=True)
        await asyncio.get_running_loop().run_in_executor(None, self._catalog.close)
        self._log.summarize(now=True)
        self._log("stop")


def _require_secure(options: Options, has_tokens: bool) -> None:
    """Raise ServeError if a public address lacks TLS or authentication, unless that is asked for."""
    files = options.certificates
    authenticates = has_tokens or (files is not None and files.client_authority is not None)
    missing = [*(["TLS"] if files is None else []), *([] if authenticates else ["a token"])]
    private = "a loopback address"
    addresses = [
        (address, missing, f"{private} or Unix socket, or TLS and a token (or client certificates)")
        for address in options.addresses
    ]
    if options.metrics is not None:
        addresses.append((options.metrics, ["TLS", "a token"], private))
    for address, lacks, expected in addresses:
        if lacks and not address.is_local and not options.insecure:
            found = f"public, without {' and '.join(lacks)}"
            raise ServeError(describe("service", f"address {address.text}", found, f"{expected}, or --insecure"))


def _channel_options(limits: Limits) -> list[tuple[str, int]]:
    largest = max(limits.max_message_bytes, limits.max_steps_bytes)  # of all requests
    options = [
        # gRPC refuses larger messages unread; those between the two limits get our own error.
        ("grpc.max_receive_message_length", largest + (4 << 20)),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", 0),  # a second service on the same port is a mistake
        ("grpc.max_concurrent_streams", limits.max_in_flight + limits.max_streams),  # of one connection
        # gRPC itself drops requests that come faster than the event loop can even refuse them: from half the limit on
        # some, more the longer the queue is. Their clients see CANCELLED.
        ("grpc.server.max_pending_requests", limits.max_waiting // 2),
        ("grpc.server.max_pending_requests_hard_limit", limits.max_waiting),
        ("grpc.server_max_unrequested_time_in_server", 3600),  # deadlines end what waits too long
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ]
    return [(name, min(value, _GREATEST_OPTION)) for name, value in options]


async def serve(
    options: Options, version: str, log: EventLog, ready: Callable[[list[str], str | None], object]
) -> None:
    """Run a service until SIGTERM or SIGINT; SIGHUP reloads. Calls `ready` with its addresses once it answers.

    An earlier SIGHUP is handled then, since the files may have been read before it came.

    Raises:
        ServeError: it cannot start with these options, or cannot go on.
        DatastoreError: a datastore cannot be opened.
    """
    ended, reload_asked = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, reload_asked.set)
    server = Server(options, version, log)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    ready(await server.start(), server.metrics_address)
    loop.add_signal_handler(signal.SIGHUP, server.start_reload)
    if reload_asked.is_set():
        server.start_reload()
    await asyncio.wait((server.watch, asyncio.create_task(ended.wait())), return_when=asyncio.FIRST_COMPLETED)
    failure = server.watch.exception() if server.watch.done() else None
    await server.drain()
    if failure is not None:
        raise ServeError(f"service: it has failed and ends ({failure!r})") from failure
