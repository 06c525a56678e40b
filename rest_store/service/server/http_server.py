"""The HTTP server of a service: metrics, liveness and readiness."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from http.server import ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry, MetricsHandler

from rest_store.errors import ServeError, describe
from rest_store.service.address import Address

_log = logging.getLogger(__name__)


class HttpServer(ThreadingHTTPServer):
    """Answers GET of `/metrics`, `/healthz` and `/readyz`, from its creation until `stop`.

    It has threads of its own. `/healthz` is 200 as long as the process answers, `/readyz` only
    while `is_ready` returns True.

    Raises:
        ServeError: the address cannot be bound.
    """

    def __init__(
        self, address: Address, registry: CollectorRegistry, is_ready: Callable[[], bool]
    ) -> None:
        if address.host is None or address.port is None:
            raise ServeError(describe("service", "--metrics", address.text, "HOST:PORT"))
        self.address_family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        self.registry = registry
        self.is_ready = is_ready
        try:
            super().__init__((address.host, address.port), _Handler)
        except (OSError, OverflowError) as error:
            # OverflowError: the port of a worker may be above 65,535.
            reason = getattr(error, "strerror", None) or error
            raise ServeError(
                f"service: address {address.text} of metrics cannot be bound ({reason})"
            ) from None
        self.url = f"http://{address.with_port(self.server_port).text}/metrics"
        threading.Thread(target=self.serve_forever, name="http", daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a connection that broke, without the traceback on standard error."""
        _log.debug("HTTP connection of %s failed", client_address, exc_info=True)

    def stop(self) -> None:
        """Stop listening."""
        self.shutdown()
        self.server_close()


class _Handler(MetricsHandler):
    server: HttpServer
    timeout = 10  # seconds of silence

    def do_GET(self) -> None:  # noqa: N802  as the base class has it
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self.registry = self.server.registry
            super().do_GET()
            return
        if path == "/healthz" or (path == "/readyz" and self.server.is_ready()):
            status = 200
            body = b"ok\n"
        elif path == "/readyz":
            status = 503
            body = b"not ready\n"
        else:
            status = 404
            body = b"only /metrics, /healthz and /readyz\n"
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)
