"""A bidirectional call, with a deadline for each answer."""

from __future__ import annotations

import os
import queue
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

import grpc

from rest_store.errors import DeadlineError, RestStoreError, ServiceError, ServiceUnavailableError
from rest_store.service.statuses import call_error

_Requests = queue.SimpleQueue[bytes | None]  # None ends the stream
_Answers = queue.SimpleQueue[bytes | RestStoreError]  # an error comes last
# Answers that nobody has taken. No client asks for more, so a service that sends more is faulty.
_MAX_WAITING = 4


class StreamCall:
    """A stream to a service, with a thread that notices its end. Not thread-safe.

    Args:
        channel: to the service.
        method: full name of the method.
        metadata: of the call.
        target: address of the service, for messages.
    """

    def __init__(
        self, channel: grpc.Channel, method: str, metadata: Sequence[tuple[str, str]], target: str
    ) -> None:
        self._requests: _Requests = queue.SimpleQueue()
        answers: _Answers = queue.SimpleQueue()
        self._answers = answers
        self._error: RestStoreError | None = None

        def deliver(answer: bytes) -> bytes | None:
            """Put an answer into the queue.

            gRPC calls this as the deserializer, in a thread of its own, so that the waiting thread
            wakes at once.
            """
            if answers.qsize() >= _MAX_WAITING:
                return None  # this ends the call with an error
            answers.put(answer)
            return answer

        stream: Any = channel.stream_stream(method, None, deliver)
        call = stream(iter(self._requests.get, None), metadata=tuple(metadata))
        reader = threading.Thread(
            target=_read,
            args=(call, self._requests, answers, target),
            name="rest-store stream",
            daemon=True,
        )
        reader.start()
        self._end = weakref.finalize(self, _end, call, self._requests, os.getpid())

    def send(self, message: bytes) -> None:
        """Send a message; returns at once."""
        self._requests.put(message)

    def receive(self, ends: float) -> bytes | None:
        """Return the next answer; None if there is none until `ends` (`time.monotonic`).

        Raises:
            RestStoreError: the stream has ended.
        """
        if self._error is not None:
            raise self._error
        if not ends and self._answers.empty():
            return None
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


def _read(call: Any, requests: _Requests, answers: _Answers, target: str) -> None:
    """Read the stream to its end, and put the error of the end into `answers`."""
    try:
        for _ in call:  # `deliver` has put each answer into the queue
            pass
        failure: RestStoreError = ServiceUnavailableError(f"{target}: service ended the stream")
    except grpc.RpcError as error:
        failure = call_error(target, error)
        if isinstance(failure, DeadlineError):  # that error means that an answer may still come
            failure = ServiceUnavailableError(str(failure))
    except Exception as error:
        failure = ServiceError(f"{target}: the stream failed ({error!r})")
    answers.put(failure)
    requests.put(None)  # otherwise a thread of gRPC waits for a request until `close`


def _end(call: Any, requests: _Requests, process: int) -> None:
    # In a fork, the threads of gRPC are missing, and `cancel` would wait for them.
    if os.getpid() == process:
        requests.put(None)
        call.cancel()
