"""The limits of a service, of all clients together, and budgets that keep to them."""

from __future__ import annotations

from dataclasses import dataclass

from rest_store.errors import OverloadedError

# Bytes of the largest request: 64 tokens of at most 5 bytes for each context, with room to spare,
# and names.
_CONTEXT_BYTES = 512
_OTHER_BYTES = 64 << 10
_TOKEN_BYTES = 4  # in the text of a session
_WAITING = 4  # requests that may wait to be read, for each request in flight
_MAX_OPTION = (1 << 31) - 1  # gRPC takes a C int


@dataclass(frozen=True)
class ServiceLimits:
    """Limits of a service; `Describe` publishes them.

    Attributes:
        max_contexts: contexts of a request, times datastores; also its documents or ids.
        max_in_flight: requests in flight, without streams.
        max_streams: open streams.
        max_connections: connections of each address; further ones are closed.
        max_session_tokens: tokens of the text of a session.
        max_session_memory: bytes of all sessions together.
        max_message_bytes: bytes of an answer, and of a request that adds or deletes documents.
            Other requests are smaller.
    """

    max_contexts: int = 1024
    max_in_flight: int = 256
    max_streams: int = 1024
    max_connections: int = 1024
    max_session_tokens: int = 1 << 18
    max_session_memory: int = 1 << 31
    max_message_bytes: int = 4 << 20

    @property
    def max_request_bytes(self) -> int:
        """Bytes of a request: those of `max_contexts` contexts, so that any message is cheap."""
        return min(self.max_message_bytes, _OTHER_BYTES + _CONTEXT_BYTES * self.max_contexts)

    @property
    def max_opening_bytes(self) -> int:
        """Bytes of the first message of a session, which has its text."""
        return self.max_request_bytes + _TOKEN_BYTES * self.max_session_tokens

    def channel_options(self) -> list[tuple[str, int]]:
        """Return the options of a gRPC server with these limits, also for silent peers."""
        largest = max(self.max_message_bytes, self.max_opening_bytes)
        waiting = _WAITING * self.max_in_flight
        options = [
            # gRPC refuses larger messages unread. A smaller one that is above a limit of this
            # service is read, and gets an error that names the limit.
            ("grpc.max_receive_message_length", largest + (4 << 20)),
            ("grpc.max_send_message_length", -1),
            # The limit of one connection.
            ("grpc.max_concurrent_streams", self.max_in_flight + self.max_streams),
            # gRPC itself drops requests that come faster than the event loop can refuse them. From
            # half of the limit on it drops some, and more the longer the queue is. Clients see the
            # status CANCELLED.
            ("grpc.server.max_pending_requests", waiting // 2),
            ("grpc.server.max_pending_requests_hard_limit", waiting),
            # Deadlines of clients end requests that wait too long.
            ("grpc.server_max_unrequested_time_in_server", 3600),
            ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
            ("grpc.max_allowed_incoming_connections", self.max_connections),
            ("grpc.server_handshake_timeout_ms", 10_000),
            ("grpc.keepalive_time_ms", 30_000),  # of silence, after which a peer is pinged
            ("grpc.keepalive_timeout_ms", 10_000),
            ("grpc.http2.ping_timeout_ms", 10_000),  # by default a minute
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.max_connection_idle_ms", 600_000),  # without a call
        ]
        return [(name, min(value, _MAX_OPTION)) for name, value in options]


class Budget:
    """An amount that may be in use at once. For use within one event loop.

    Args:
        what: name of the unit, for the error.
        limit: the amount.

    Attributes:
        used: the amount in use.
    """

    def __init__(self, what: str, limit: int) -> None:
        self._what = what
        self._limit = limit
        self.used = 0

    def take(self, amount: int = 1) -> None:
        """Use more until `give_back`; raise OverloadedError if there is not enough."""
        if self.used + amount > self._limit:
            raise OverloadedError(
                f"service is overloaded: it has {self._limit} {self._what}; try again later"
            )
        self.used += amount

    def give_back(self, amount: int = 1) -> None:
        """Use less."""
        self.used -= amount
