"""A running service, from listening to draining, on one asyncio event loop."""

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
_WATCH_SECONDS = 1.0  # between two looks at health, and at what live datastores have replaced

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServeOptions:
    """How a service runs: its datastores by name, and the options
    of `rest-store serve`, whose help explains them.
    """

    datastores: Sequence[tuple[str, Path]]
    addresses: Sequence[Address] = (Address("127.0.0.1:50051", host="127.0.0.1", port=50051),)
    certificate: Path | None = None  # PEM file, with its key; TLS
    key: Path | None = None
    client_authority: Path | None = None  # that clients' certificates must come from
    token_file: Path | None = None
    token: str | None = None
    insecure: bool = False
    metrics: Address | None = None
    limits: ServiceLimits = field(default_factory=ServiceLimits)
    drain_seconds: float = 10.0
    live: Sequence[tuple[str, Path]] = ()
    live_tokenizer: object = None  # as `LiveDatastore.open` takes it
    partition: Partition | None = None  # of each datastore
    parent: int | None = None  # process whose workers share the addresses; None: this one is alone


class Server:
    """A service. Create and use it within one running event loop.

    Args:
        options: how it runs.
        version: of rest-store, which it publishes.

    Attributes:
        metrics: what it counts.

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
            options.datastores, options.live, options.live_tokenizer, options.partition
        )
        self.metrics = Metrics(METHODS, version)
        self._http: HttpServer | None = None
        self._is_ready = False
        self._executor = executor = Executor()
        self._streams = SessionStreams(self._catalog, limits, self.metrics, executor)
        self._admission = Admission(tokens, limits, self.metrics)
        # Else a second service there is a mistake.
        ports = [("grpc.so_reuseport", int(options.parent is not None))]
        self._server = grpc.aio.server(
            interceptors=[self._admission], options=[*limits.channel_options(), *ports]
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
        """Listen and answer; return the addresses as they were bound."""
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
        if self._options.parent is None:  # else another worker may listen there
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
        metrics, admission, streams = self.metrics, self._admission, self._streams
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
        """Have health show what queries have met, and sessions release what was replaced."""
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            if self._options.parent not in (None, os.getppid()):
                os.kill(os.getpid(), signal.SIGTERM)  # nobody else would end it
            await self._update_health()
            self._streams.follow_changes()

    async def _update_health(self) -> None:
        serving = {served.name: served.is_readable for served in self._catalog.served}
        any_serving = self._is_ready = any(serving.values())
        statuses = health_pb2.HealthCheckResponse
        for name, is_serving in {**serving, "": any_serving, SERVICE: any_serving}.items():
            await self._health.set(name, statuses.SERVING if is_serving else statuses.NOT_SERVING)

    async def reload(self) -> None:
        """Open datastores again; those not valid stay as they were."""
        for name, refusal in (await asyncio.to_thread(self._catalog.reload)).items():
            self.metrics.reloads.labels("refused" if refusal else "reloaded").inc()
            if refusal:
                _log.error("reload of %s refused: %s", name, refusal)
            else:
                _log.info("reloaded %s", name)
        await self._update_health()

    async def drain(self) -> None:
        """Refuse new calls, let running ones finish within
        `drain_seconds`, stop, and close the live datastores.
        """
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
        if running := self._admission.calls:
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
    assert certificate is not None
    assert key is not None
    return grpc.ssl_server_credentials([(key, certificate)], authority, authority is not None)


def _require_secure(options: ServeOptions, has_tokens: bool) -> None:
    """Raise ServeError if a public address lacks TLS or
    authentication, unless that is asked for.
    """
    authenticates = has_tokens or options.client_authority is not None
    missing = [
        *(["TLS"] if options.certificate is None else []),
        *([] if authenticates else ["a token"]),
    ]
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
            raise ServeError(
                describe("service", f"address {address.text}", found, f"{expected}, or --insecure")
            )


async def serve(options: ServeOptions, version: str, ready: Callable[..., object]) -> None:
    """Run a service until SIGTERM or SIGINT; SIGHUP reloads. Calls
    `ready` with its addresses once it answers.

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
