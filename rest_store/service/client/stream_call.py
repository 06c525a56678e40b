"""One bidirectional call, whose answers can be waited for with a deadline."""

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
_MAX_WAITING = 4  # answers that nobody has taken; a service that sends more was not asked for them


class StreamCall:
    """One stream to the service at `target`, with a thread that
    learns when it ends. Not thread-safe.

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
            """Hand over an answer.

            As a deserializer, it wakes the waiting thread from gRPC's own thread.
            """
            if answers.qsize() >= _MAX_WAITING:
                return None  # which ends the call with an error
            answers.put(answer)
            return answer

        stream: Any = channel.stream_stream(method, None, deliver)
        call = stream(iter(self._requests.get, None), metadata=tuple(metadata))
        arguments = (call, self._requests, answers, target)
        threading.Thread(
            target=_read, args=arguments, name="rest-store stream", daemon=True
        ).start()
        self._end = weakref.finalize(self, _end, call, self._requests, os.getpid())

    def send(self, message: bytes) -> None:
        """Send a message; returns at once."""
        self._requests.put(message)

    def receive(self, ends: float) -> bytes | None:
        """Return the next answer, or None at `ends` (`time.monotonic`).

        Raise the error of a stream that has ended.
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
    """Read the stream, and last put the error with which it ended into `answers`."""
    try:
        for _ in call:  # `deliver` has handed it over
            pass
        failure: RestStoreError = ServiceUnavailableError(f"{target}: service ended the stream")
    except grpc.RpcError as error:
        failure = call_error(target, error)
        if isinstance(failure, DeadlineError):  # after which an answer might still come
            failure = ServiceUnavailableError(str(failure))
    except Exception as error:
        failure = ServiceError(f"{target}: the stream failed ({error!r})")
    answers.put(failure)
    requests.put(None)  # else gRPC's thread waits for one until the stream is closed


def _end(call: Any, requests: _Requests, process: int) -> None:
    # Else forked: to cancel the call would wait for gRPC's threads, which are not here.
    if os.getpid() == process:
        requests.put(None)
        call.cancel()
