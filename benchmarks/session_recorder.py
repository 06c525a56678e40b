"""A gRPC server between a client and a service that keeps what a session and the service send each other."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from session_steps import Exchange

THREADS = 4  # more than a client has calls at once


class Recorder(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Passes every call on, as bytes.

    Args:
        channel: to the service.

    Attributes:
        sessions: the exchanges of each session, in the order in which they were opened.
    """

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel
        self.sessions: list[list[Exchange]] = []

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Return the handler of a call: unary, but for sessions."""
        method = handler_call_details.method
        if method.endswith("/DraftSession"):
            return grpc.stream_stream_rpc_method_handler(functools.partial(self._session, method))
        call: Any = self._channel.unary_unary(method)
        return grpc.unary_unary_rpc_method_handler(lambda request, _: call(request))

    def _session(self, method: str, requests: Iterator[bytes], _: object) -> Iterator[bytes]:
        exchanges: list[Exchange] = []
        self.sessions.append(exchanges)
        sent: list[bytes] = []  # since the last response

        def passed() -> Iterator[bytes]:
            with contextlib.suppress(grpc.RpcError):  # the client has left
                for request in requests:
                    sent.append(request)
                    yield request

        method_of: Any = self._channel.stream_stream(method)
        for response in method_of(passed()):
            exchanges.append((sent.copy(), response))
            sent.clear()
            yield response


@contextlib.contextmanager
def recording(target: str) -> Iterator[tuple[str, Recorder]]:
    """Yield the address of a recorder before the service at `target`, and the recorder."""
    with grpc.insecure_channel(target) as channel, ThreadPoolExecutor(THREADS) as pool:
        recorder = Recorder(channel)
        server = grpc.server(pool, handlers=[recorder])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}", recorder
        finally:
            server.stop(None).wait()
