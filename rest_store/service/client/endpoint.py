"""An endpoint of a service, and its gRPC channel."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any

import grpc

from rest_store.errors import ServiceUnavailableError
from rest_store.service.channel import Dialer
from rest_store.service.client.stream_call import StreamCall
from rest_store.service.statuses import call_error

_SERVICE = "/rest_store.v1.DatastoreService/"


class Endpoint:
    """An address and the channel to it. Thread-safe.

    The channel is made when it is first needed, and reconnects by itself.

    Args:
        target: the address, as gRPC takes it.
        dialer: makes the channel.
    """

    def __init__(self, target: str, dialer: Dialer) -> None:
        self.target = target
        self._dialer = dialer
        self._channel: grpc.Channel | None = None
        self._process: int | None = None  # id of the process that connected
        self._closed = False
        self._lock = threading.Lock()

    def require_usable(self) -> None:
        """Raise ServiceUnavailableError after `close`, and in a fork of the connected process."""
        if self._closed:
            raise ServiceUnavailableError("client: the client is closed")
        if self._process not in (None, os.getpid()):  # gRPC's threads do not survive a fork
            raise ServiceUnavailableError(
                "client: the process was forked after the client connected; make it anew"
            )

    def _connected(self) -> grpc.Channel:
        self.require_usable()
        with self._lock:
            self.require_usable()
            if self._channel is None:
                self._process = os.getpid()
                self._channel = self._dialer.connect(self.target)
            return self._channel

    def ask(self, method: str, message: bytes, seconds: float) -> bytes:
        """Return the answer to one request.

        Raises:
            RestStoreError: the call failed; its status decides the class.
        """
        with self._call_errors():
            call: Any = self._connected().unary_unary(_SERVICE + method, None, None)
            answer: bytes = call(message, timeout=seconds, metadata=self._dialer.metadata)
            return answer

    def stream(self, method: str, message: bytes, seconds: float) -> Iterator[bytes]:
        """Yield the answers to one request; raises as `ask`, also after `seconds`."""
        with self._call_errors():
            call: Any = self._connected().unary_stream(_SERVICE + method, None, None)
            answers = call(message, timeout=seconds, metadata=self._dialer.metadata)
            try:
                yield from answers
            finally:
                answers.cancel()

    def open_session(self) -> StreamCall:
        """Return a new stream of DraftSession; it soon ends if the endpoint is unreachable."""
        with self._call_errors():
            return StreamCall(
                self._connected(), _SERVICE + "DraftSession", self._dialer.metadata, self.target
            )

    @contextlib.contextmanager
    def _call_errors(self) -> Iterator[None]:
        """Raise an error of this package for an error of gRPC."""
        try:
            yield
        except grpc.RpcError as error:
            raise call_error(self.target, error) from None
        except ValueError:  # the error of gRPC for a channel that has just been closed
            self.require_usable()
            raise

    def close(self) -> None:
        """Close the channel for good. A forked process leaves the channel of its parent alone."""
        self._closed = True
        if self._process == os.getpid():
            with self._lock:
                channel = self._channel
                self._channel = None
            if channel is not None:
                channel.close()
