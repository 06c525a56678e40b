"""One bidirectional call of a blocking client."""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

import grpc

from rest_store.errors import RestStoreError, ServiceUnavailableError
from rest_store.service.client.connections import METHOD
from rest_store.service.errors import failed_call

_Answers = queue.SimpleQueue[bytes | RestStoreError]
_Requests = queue.SimpleQueue[bytes | None]


class StreamCall:
    """One stream to a service, with a thread that reads its answers. Not thread-safe.

    Args:
        channel: the connection.
        metadata: of the call.
        target: address of the service, for messages.
    """

    def __init__(self, channel: grpc.Channel, metadata: Sequence[tuple[str, str]], target: str) -> None:
        self._requests: _Requests = queue.SimpleQueue()
        self._answers: _Answers = queue.SimpleQueue()
        self._error: RestStoreError | None = None
        method: Any = channel.stream_stream(METHOD + "DraftStream", None, None)
        call = method(iter(self._requests.get, None), metadata=tuple(metadata))
        threading.Thread(
            target=_read, args=(call, self._answers, target), name="rest-store stream", daemon=True
        ).start()
        self._end = weakref.finalize(self, _end, call, self._requests)

    def send(self, message: bytes) -> None:
        """Send a message; raise ServiceError if the stream is known to have ended."""
        if self._error is not None:
            raise self._error
        self._requests.put(message)

    def receive(self, ends: float) -> bytes | None:
        """Return the next message, or None at `ends` (`time.monotonic`); raise ServiceError if the stream has ended."""
        if self._error is not None:
            raise self._error
        try:
            answer = self._answers.get(timeout=max(0.0, ends - time.monotonic()))
        except queue.Empty:
            return None
        if isinstance(answer, RestStoreError):
            self._error = answer
            raise answer
        return answer

    def close(self) -> None:
        """End the stream."""
        self._end()


def _read(call: Any, answers: _Answers, target: str) -> None:
    """Put every answer of `call` into `answers`, and last why the call has ended."""
    try:
        for message in call:
            answers.put(message)
        answers.put(ServiceUnavailableError(f"{target}: the service ended the stream"))
    except grpc.RpcError as error:
        answers.put(failed_call(target, error))


def _end(call: Any, requests: _Requests) -> None:
    requests.put(None)
    call.cancel()
