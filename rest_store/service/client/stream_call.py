"""One bidirectional call: `StreamCall` blocks, `AsyncStreamCall` is for asyncio."""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio

from rest_store.errors import DeadlineError, RestStoreError, ServiceInternalError, ServiceUnavailableError
from rest_store.service.client.client_base import METHOD
from rest_store.service.errors import error_of_call

_Requests = queue.SimpleQueue[bytes | None]
_Due = queue.SimpleQueue[None]


class Answers:
    """A queue of answers from the thread that reads them to the thread that waits for them. An error comes last.

    Attributes:
        ended: set when the error is added.
    """

    def __init__(self) -> None:
        self.ended = threading.Event()
        self._queue: queue.SimpleQueue[bytes | RestStoreError] = queue.SimpleQueue()
        self._error: RestStoreError | None = None

    def put(self, answer: bytes | RestStoreError) -> None:
        """Add an answer, or the error after which there are none."""
        self._queue.put(answer)
        if isinstance(answer, RestStoreError):
            self.ended.set()

    def deliver(self, answer: bytes) -> bytes:
        """Add an answer, and return it. As a deserializer, it wakes the waiting thread from gRPC's own thread."""
        self._queue.put(answer)
        return answer

    def require_open(self) -> None:
        """Raise the error if it has been received."""
        if self._error is not None:
            raise self._error

    def receive(self, ends: float) -> bytes | None:
        """Return the next answer, or None at `ends` (`time.monotonic`); raise the error after the last one."""
        self.require_open()
        try:
            answer = self._queue.get(timeout=max(0.0, ends - time.monotonic()))
        except queue.Empty:
            return None
        if isinstance(answer, RestStoreError):
            self._error = answer
            raise answer
        return answer


class StreamCall:
    """One stream of `method` to the service at `target`, with a thread that asks for its answers. Not thread-safe."""

    def __init__(self, channel: grpc.Channel, metadata: Sequence[tuple[str, str]], target: str, method: str) -> None:
        self._requests: _Requests = queue.SimpleQueue()
        self._answers = Answers()
        self._due: _Due = queue.SimpleQueue()  # an item for each answer that may be read
        self._due.put(None)  # before its message is sent
        stream: Any = channel.stream_stream(METHOD + method, None, self._answers.deliver)
        call = stream(iter(self._requests.get, None), metadata=tuple(metadata))
        arguments = (call, self._requests, self._answers, self._due, target)
        threading.Thread(target=_read, args=arguments, name="rest-store stream", daemon=True).start()
        self._end = weakref.finalize(self, _end, call, self._requests, self._due, os.getpid())

    def send(self, message: bytes) -> None:
        """Send a message; raise ServiceError if the stream is known to have ended."""
        self._answers.require_open()
        self._requests.put(message)
        self._due.put(None)

    def flush(self) -> None:
        """Do nothing: messages have been sent."""

    def receive(self, ends: float) -> bytes | None:
        """Return the next message, or None at `ends` (`time.monotonic`); raise ServiceError if the stream has ended."""
        return self._answers.receive(ends)

    def close(self) -> None:
        """End the stream."""
        self._end()

    def finish(self, message: bytes) -> threading.Event:
        """Send a last message; return an event that is set once the service has read it and ended the stream."""
        self._requests.put(message)
        self._requests.put(None)
        self._end.detach()
        return self._answers.ended


def _read(call: Any, requests: _Requests, answers: Answers, due: _Due, target: str) -> None:
    """Read the answers of `call` that are `due`, and last put the error with which it ended into `answers`.

    One more answer than was asked for is always being read, so that none waits for this thread. Others stay with gRPC,
    whose flow control then stops the service.
    """
    try:
        while True:
            due.get()
            next(call)
    except Exception as error:  # a step would wait in vain
        answers.put(failure_of(target, error))
        requests.put(None)  # else gRPC's thread waits for one until the stream is closed


def _end(call: Any, requests: _Requests, due: _Due, process: int) -> None:
    if os.getpid() != process:
        return  # forked: to cancel the call would wait for gRPC's threads, which are not here
    requests.put(None)
    call.cancel()
    due.put(None)


def failure_of(target: str, error: Exception | None) -> RestStoreError:
    """Return our error for the one with which a stream has ended; None: it has ended without an error.

    It is never a DeadlineError, after which an answer may still come.
    """
    if error is None or isinstance(error, StopIteration):
        return _ended(target)
    if isinstance(error, grpc.RpcError):
        error = error_of_call(target, error)
    if not isinstance(error, RestStoreError):
        return ServiceInternalError(f"{target}: the stream failed ({error!r})")
    return ServiceUnavailableError(str(error)) if isinstance(error, DeadlineError) else error


def _ended(target: str) -> ServiceUnavailableError:
    return ServiceUnavailableError(f"{target}: service ended the stream")


class AsyncStreamCall:
    """One stream to the service at `target`, for asyncio.

    Cancelling a read of grpc.aio would cancel the whole call, so a late read goes on and is awaited again.
    """

    def __init__(self, channel: grpc.aio.Channel, metadata: Sequence[tuple[str, str]], target: str) -> None:
        stream: Any = channel.stream_stream(METHOD + "DraftStream", None, None)
        self._call: Any = stream(metadata=metadata)
        self._target = target
        self._reading: asyncio.Future[Any] | None = None
        self._is_stuck = False

    async def send(self, message: bytes, ends: float) -> None:
        """Send a message; raise ServiceError if the stream has ended, or has not taken it by `ends`."""
        timer = asyncio.get_running_loop().call_later(max(0.0, ends - time.monotonic()), self._give_up)
        try:
            await self._call.write(message)
        except grpc.aio.AioRpcError as error:
            failure = failure_of(self._target, error)
            # Here grpc.aio calls it an internal error that the call has ended; the next attempt learns the real status.
            raise (self._failed_write() if isinstance(failure, ServiceInternalError) else failure) from None
        except asyncio.InvalidStateError:
            raise self._failed_write() from None
        except asyncio.CancelledError:
            if self._is_stuck or not task_is_cancelled():
                raise self._failed_write() from None
            raise
        finally:
            timer.cancel()

    def _give_up(self) -> None:
        self._is_stuck = True
        self._call.cancel()

    def _failed_write(self) -> ServiceUnavailableError:
        if self._is_stuck:
            return ServiceUnavailableError(f"{self._target}: service does not read the stream")
        return _ended(self._target)

    async def receive(self, ends: float) -> bytes | None:
        """Return the next message, or None at `ends` (`time.monotonic`); raise ServiceError if the stream has ended."""
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._call.read())
            self._reading.add_done_callback(_retrieve)
        done, _ = await asyncio.wait((self._reading,), timeout=max(0.0, ends - time.monotonic()))
        if not done:
            return None
        reading, self._reading = self._reading, None
        try:
            message = reading.result()
        except grpc.aio.AioRpcError as error:
            raise failure_of(self._target, error) from None
        except asyncio.CancelledError:  # of the call, not of this task
            raise _ended(self._target) from None
        if not isinstance(message, bytes):  # grpc.aio.EOF
            raise _ended(self._target)
        return message

    def close(self) -> None:
        """End the stream."""
        self._call.cancel()
        if self._reading is not None:
            self._reading.cancel()


def _retrieve(reading: asyncio.Future[Any]) -> None:
    """Take the error of a read that is no longer awaited, so that asyncio does not complain about it."""
    if not reading.cancelled():
        reading.exception()


def task_is_cancelled() -> bool:
    """Return whether the running task was cancelled, not only its call; True before Python 3.11, which cannot say."""
    cancelling = getattr(asyncio.current_task(), "cancelling", None)
    return cancelling is None or cancelling() > 0
