"""How many connections a service has, and when it ends those that say nothing."""

from __future__ import annotations

import resource
from dataclasses import dataclass

from rest_store.errors import ServeError, describe

_OTHER_FILES = 512  # descriptors for datastores, twice during a reload, metrics, the log and the event loop


@dataclass(frozen=True)
class Connections:
    """Limits of the gRPC connections at each address.

    Attributes:
        most: connections at once; further ones are closed.
        handshake_seconds: time that a peer has for the handshakes of HTTP/2 and, where required, TLS.
        ping_seconds: time of silence after which a peer is pinged.
        pong_seconds: time that it has to answer the ping.
        idle_seconds: time without a call after which a connection is closed; the next call of the client reconnects.

    Raises:
        ServeError: `most` is out of range.
    """

    most: int = 1024
    handshake_seconds: float = 10.0
    ping_seconds: float = 30.0
    pong_seconds: float = 10.0
    idle_seconds: float = 600.0

    def __post_init__(self) -> None:
        if not 1 <= self.most <= 1 << 20:
            raise ServeError(describe("service", "max_connections", self.most, f"1..{1 << 20}"))

    def channel_options(self) -> list[tuple[str, int]]:
        """Return these limits as options of a gRPC server."""
        return [
            ("grpc.max_allowed_incoming_connections", self.most),
            ("grpc.server_handshake_timeout_ms", round(self.handshake_seconds * 1000)),
            ("grpc.keepalive_time_ms", round(self.ping_seconds * 1000)),
            ("grpc.keepalive_timeout_ms", round(self.pong_seconds * 1000)),
            ("grpc.http2.ping_timeout_ms", round(self.pong_seconds * 1000)),  # by default a minute
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.max_connection_idle_ms", round(self.idle_seconds * 1000)),
        ]

    def allow_files(self, addresses: int) -> None:
        """Raise the limit of open files to one for each connection at `addresses`, so that peers cannot use up all.

        Raises:
            ServeError: the system allows fewer.
        """
        needed = self.most * addresses + _OTHER_FILES
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if resource.RLIM_INFINITY not in (soft, hard) and hard < needed:
            most = max(0, hard - _OTHER_FILES) // addresses
            expected = f"at most {most}, as the process may open {hard} files (ulimit -Hn)"
            raise ServeError(describe("service", "max_connections", self.most, expected))
        if soft != resource.RLIM_INFINITY and soft < needed:
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
