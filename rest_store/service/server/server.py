"""A running service, from its start to its end, on one asyncio event loop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from rest_store.datastore.partition import Partition
from rest_store.errors import ServeError, describe
from rest_store.service.address import Address
from rest_store.service.bearer_tokens import BearerTokens
from rest_store.service.channel import read_certificates
from rest_store.service.server.admission import Admission
from rest_store.service.server.catalog import Catalog
from rest_store.service.server.copies import Copies
from rest_store.service.server.executor import Executor
from rest_store.service.server.feeds import Feeds
from rest_store.service.server.http_server import HttpServer
from rest_store.service.server.metrics import Metrics
from rest_store.service.server.queries import Queries
from rest_store.service.server.service_limits import ServiceLimits
from rest_store.service.server.servicer import METHODS, SERVICE, datastore_service
from rest_store.service.server.session_streams import SessionStreams
from rest_store.service.server.writes import Writes

_HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
_WATCH_SECONDS = 1.0  # between two checks of health and of replaced shards

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServeOptions:
    """The options of a service; those of `rest-store serve`, whose help explains them.

    Attributes:
        datastores: name and directory of each built datastore.
        addresses: where the service listens.
        certificate: PEM file of the certificate of the service; None: no TLS.
        key: PEM file of its key.
        client_authority: PEM file of the authority that signs the certificates of clients; None:
            clients need none.
        token_file: bearer tokens that are accepted.
        token: another bearer token, which only reads.
        insecure: whether a public address may lack TLS or authentication.
        metrics: address of the HTTP server; None: there is none.
        limits: of all clients together.
        drain_seconds: time of running calls after the signal that ends the service.
        live: name and directory of each live datastore.
        live_tokenizer: of live datastores that are created, as `LiveDatastore.open` takes it.
        live_shared_after: of live datastores, as `LiveDatastore.open` takes `shared_after`.
        partition: the partition of each datastore that is served; None: all of it.
        parent: id of the process whose workers share the addresses; None: this process is alone.
    """

    datastores: Sequence[tuple[str, Path]]
    addresses: Sequence[Address] = (Address("127.0.0.1:50051", host="127.0.0.1", port=50051),)
    certificate: Path | None = None
    key: Path | None = None
    client_authority: Path | None = None
    token_file: Path | None = None
    token: str | None = None
    insecure: bool = False
    metrics: Address | None = None
    limits: ServiceLimits = field(default_factory=ServiceLimits)
    drain_seconds: float = 10.0
    live: Sequence[tuple[str, Path]] = ()
    live_tokenizer: object = None
    live_shared_after: int | None = None
    partition: Partition | None = None
    parent: int | None = None


class Server:
    """A service. Create and use it within one running event loop.

    Args:
        options: how it runs.
        version: of rest-store, for clients and metrics.

    Attributes:
        metrics: of the service.

    Raises:
        ServeError: it cannot start with these options.
        DatastoreError: a datastore cannot be opened.
    """

    def __init__(self, options: ServeOptions, version: str) -> None:
        self._options = options
        limits = options.limits
        tokens = BearerTokens(options.token_file, options.token)
        self._credentials = _credentials(options)
        _require_secure(options, bool(tokens))
        self._catalog = Catalog(
            options.datastores,
            options.live,
            options.live_tokenizer,
            options.partition,
            options.live_shared_after,
        )
        self.metrics = Metrics(METHODS, version)
        self._http: HttpServer | None = None
        self._is_ready = False
        self._executor = executor = Executor()
        self._streams = SessionStreams(self._catalog, limits, self.metrics, executor)
        self._admission = Admission(tokens, limits, self.metrics)
        # Only workers share a port. Otherwise a second service at the address is a mistake.
        shares_ports = ("grpc.so_reuseport", int(options.parent is not None))
        self._server = grpc.aio.server(
            interceptors=[self._admission], options=[*limits.channel_options(), shares_ports]
        )
        queries = Queries(self._catalog, limits, self.metrics, executor, version)
        self._writes = Writes(self._catalog, limits)
        self._feeds = Feeds(self._catalog, executor)
        copies = Copies(self._catalog, executor)
        service = datastore_service(
            queries, self._writes, self._streams, self._feeds, copies, limits, self.metrics
        )
        self._server.add_generic_rpc_handlers((service,))
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]  # missing in the stubs
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(
            (SERVICE, _HEALTH, reflection.SERVICE_NAME), self._server
        )

    async def start(self) -> list[str]:
        """Listen and answer; return the bound addresses, with their ports."""
        bound = [self._bind(address) for address in self._options.addresses]
        if self._options.metrics is not None:
            self._http = self._serve_http(self._options.metrics)
        await self._update_health()
        await self._server.start()
        self._watching = asyncio.create_task(self._watch())
        _log.info(
            "serving %s at %s",
            ", ".join(one.name for one in self._catalog.served),
            ", ".join(bound),
        )
        return bound

    def _bind(self, address: Address) -> str:
        if self._options.parent is None:  # otherwise another worker may listen there
            address.require_free()
        try:
            if self._credentials is not None and address.path is None:
                port = self._server.add_secure_port(address.text, self._credentials)
            else:
                port = self._server.add_insecure_port(address.text)
        except (RuntimeError, OSError) as error:
            raise ServeError(f"service: address {address.text} cannot be bound ({error})") from None
        return address.text if address.path is not None else address.with_port(port).text

    def _serve_http(self, address: Address) -> HttpServer:
        metrics = self.metrics
        admission = self._admission
        streams = self._streams
        metrics.show(
            lambda: self._catalog.served,
            in_flight=lambda: admission.requests.used,
            streams=lambda: admission.streams.used,
            sessions=lambda: sum(stream.session is not None for stream in tuple(streams.open)),
            session_bytes=lambda: streams.memory.used,
        )
        return HttpServer(address, metrics.registry, lambda: self._is_ready)

    @property
    def metrics_address(self) -> str | None:
        """URL of the metrics, once started; None without."""
        return None if self._http is None else self._http.url

    async def _watch(self) -> None:
        """Update health, and release replaced shards of live datastores, again and again."""
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            if self._options.parent not in (None, os.getppid()):
                os.kill(os.getpid(), signal.SIGTERM)  # the parent is gone, and cannot end this
            await self._update_health()
            self._streams.follow_changes()

    async def _update_health(self) -> None:
        serving = {served.name: served.is_readable for served in self._catalog.served}
        any_serving = self._is_ready = any(serving.values())
        statuses = health_pb2.HealthCheckResponse
        for name, is_serving in {**serving, "": any_serving, SERVICE: any_serving}.items():
            await self._health.set(name, statuses.SERVING if is_serving else statuses.NOT_SERVING)

    async def reload(self) -> None:
        """Open datastores again. One that is not valid stays as it was."""
        for name, refusal in (await asyncio.to_thread(self._catalog.reload)).items():
            self.metrics.reloads.labels("refused" if refusal else "reloaded").inc()
            if refusal:
                _log.error("reload of %s refused: %s", name, refusal)
            else:
                _log.info("reloaded %s", name)
        await self._update_health()

    async def drain(self) -> None:
        """Stop: refuse new calls, wait `drain_seconds` for running ones, close the datastores."""
        _log.info(
            "draining %d requests, %d streams",
            self._admission.requests.used,
            self._admission.streams.used,
        )
        self._watching.cancel()
        await self._health.enter_graceful_shutdown()
        self._is_ready = False
        self._admission.drain()
        self._streams.drain()
        self._feeds.drain()
        running = self._admission.calls
        if running:
            await asyncio.wait(running, timeout=self._options.drain_seconds)
        await self._server.stop(None)
        if self._http is not None:
            await asyncio.to_thread(self._http.stop)
        self._executor.close()
        await asyncio.to_thread(self._writes.close)
        await asyncio.to_thread(self._catalog.close)
        self._feeds.close()
        _log.info("stopped")


def _credentials(options: ServeOptions) -> grpc.ServerCredentials | None:
    """Return the credentials of ports with TLS; raise ServeError for files that cannot be used."""
    if options.certificate is None:
        return None
    certificate, key, authority = read_certificates(
        options.certificate, options.key, options.client_authority, ServeError
    )
    if certificate is None or key is None:
        raise ServeError("service: a certificate and its key belong together; one is missing")
    return grpc.ssl_server_credentials([(key, certificate)], authority, authority is not None)


def _require_secure(options: ServeOptions, has_tokens: bool) -> None:
    """Raise ServeError if a public address lacks TLS or authentication without `insecure`."""
    if options.insecure:
        return
    missing = []
    if options.certificate is None:
        missing.append("TLS")
    if not has_tokens and options.client_authority is None:
        missing.append("a token")
    expected = "a loopback address or Unix socket, or TLS and a token (or client certificates)"
    if missing:
        for address in options.addresses:
            _require_local(address, missing, expected)
    if options.metrics is not None:
        _require_local(options.metrics, ["TLS", "a token"], "a loopback address")


def _require_local(address: Address, missing: Sequence[str], expected: str) -> None:
    """Raise ServeError if an address is public, although its protection is `missing`."""
    if not address.is_local:
        actual = f"public, without {' and '.join(missing)}"
        raise ServeError(
            describe("service", f"address {address.text}", actual, f"{expected}, or --insecure")
        )


async def serve(options: ServeOptions, version: str, ready: Callable[..., object]) -> None:
    """Run a service until SIGTERM or SIGINT; SIGHUP reloads its datastores.

    Args:
        options: of the service.
        version: of rest-store.
        ready: called with the addresses, and the URL of the metrics, once the service answers.

    Raises:
        ServeError: it cannot start with these options.
        DatastoreError: a datastore cannot be opened.
    """
    signals: asyncio.Queue[int] = asyncio.Queue()
    server = Server(options, version)
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, signals.put_nowait, number)
    ready(await server.start(), *filter(None, [server.metrics_address]))
    while await signals.get() == signal.SIGHUP:
        await server.reload()
    await server.drain()
