"""One bidirectional call, driven from the thread that waits for it.

grpcio serves bidirectional calls through two further threads, one that takes requests from an iterator and one that
hands over responses. Its own blocking calls do without, through a call with a completion queue of its own; so does
`Exchange`, which saves a quarter of a round trip. That call is no public interface of grpcio; where it is absent,
`ThreadedExchange` does the same with the public one.
"""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import grpc

from rest_store.errors import ServiceUnavailableError, describe
from rest_store.service.client.connections import METHOD
from rest_store.service.errors import failed_call, failure_of

try:
    from grpc._cython import cygrpc  # type: ignore[attr-defined]  # the stubs leave it out
except ImportError:  # pragma: no cover - a grpcio of another make
    cygrpc = None

_STREAM = METHOD + "DraftStream"
_NAMES = {code.value[0]: code.name for code in grpc.StatusCode}  # (number, text)
_START, _STATUS, _SENT, _RECEIVED, _WOKEN = "start", "status", "sent", "received", "woken"


class StreamCall(Protocol):
    """One stream to a service. Not thread-safe."""

    def send(self, message: bytes, ends: float) -> None:
        """Send a message; raise ServiceError if the stream has ended, or has not taken the last one by `ends`."""

    def receive(self, ends: float) -> bytes | None:
        """Return the next message, or None at `ends` (`time.monotonic`); raise ServiceError if the stream has ended."""

    def close(self) -> None:
        """End the stream."""


class _Watch:
    """Wakes exchanges whose deadline has passed; one thread for all, asleep most of the time.

    An exchange that begins to wait costs nothing here as long as its deadline lies behind the next look.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._members: weakref.WeakSet[Exchange] = weakref.WeakSet()
        self._thread: threading.Thread | None = None
        self.next_look = math.inf

    def add(self, exchange: Exchange) -> None:
        with self._condition:
            self._members.add(exchange)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="rest-store deadlines", daemon=True)
                self._thread.start()

    def hurry(self) -> None:
        """Look at the deadlines now: one of them is nearer than the next look."""
        with self._condition:
            self._condition.notify()

    def _run(self) -> None:
        with self._condition:
            while True:
                self.next_look = math.inf  # first, so that whoever begins to wait meanwhile calls `hurry`
                self.next_look = nearest = self._look(time.monotonic())
                self._condition.wait(None if nearest == math.inf else max(0.0, nearest - time.monotonic()))

    def _look(self, now: float) -> float:
        """Wake whose deadline has passed; return the nearest of the others."""
        nearest = math.inf
        for exchange in list(self._members):
            due = exchange.due
            if due <= now:
                exchange.wake(due)
            else:
                nearest = min(nearest, due)
        return nearest


_watch = _Watch()


class Exchange:
    """A `StreamCall` on grpcio's blocking call: everything happens in the caller's thread."""

    def __init__(self, channel: grpc.Channel, metadata: Sequence[tuple[str, str]], target: str) -> None:
        self._target = target
        self._error: Exception | None = None
        self._sending = self._receiving = False
        self._arrived: list[bytes] = []  # at most one: the next is asked for when it has been taken
        self._woken = math.nan
        self.due = math.inf
        self._watch = _watch
        start = (cygrpc.SendInitialMetadataOperation(tuple(metadata), 0), cygrpc.ReceiveInitialMetadataOperation(0))
        status = (cygrpc.ReceiveStatusOnClientOperation(0),)
        self._call: Any = channel._channel.segregated_call(  # type: ignore[attr-defined]
            cygrpc.PropagationConstants.GRPC_PROPAGATE_DEFAULTS,
            _STREAM.encode(),
            None,
            None,
            None,
            None,
            ((start, _START), (status, _STATUS)),
            None,
            None,
        )
        self._watch.add(self)

    def send(self, message: bytes, ends: float) -> None:
        """Send `message`; raise ServiceError if the stream has ended, or has not taken the last one by `ends`."""
        # The last one has left as a rule, but its answer may have been faster than the news of it.
        if self._sending and not self._wait(ends, lambda: not self._sending):
            found = "not taking messages"
            raise ServiceUnavailableError(describe(self._target, "stream", found, "one that does"))
        if self._error is not None:
            raise self._error
        self._sending = True
        if not self._call.operate((cygrpc.SendMessageOperation(message, 0),), _SENT):
            self._sending = False
            while self._error is None:  # its status is here already
                self._next()
            raise self._error

    def receive(self, ends: float) -> bytes | None:
        """Return the next message, or None at `ends`; raise ServiceError if the stream has ended."""
        if not self._arrived:
            if self._error is None and not self._receiving:
                self._receiving = True
                if not self._call.operate((cygrpc.ReceiveMessageOperation(0),), _RECEIVED):
                    self._receiving = False
            if not self._wait(ends, lambda: self._arrived):
                return None
        return self._arrived.pop()

    def _wait(self, ends: float, done: Callable[[], object]) -> bool:
        """Take events until `done`, or `ends`, which gives False; raise ServiceError if the stream ends first."""
        self.due = ends
        try:
            if ends < self._watch.next_look:
                self._watch.hurry()
            while not done():
                if self._error is not None:
                    raise self._error
                self._next()
                if time.monotonic() >= ends:
                    return bool(done())
            return True
        finally:
            self.due = math.inf

    def _next(self) -> None:
        """Wait for one event and take note of it."""
        event = self._call.next_event()
        if event.tag is _RECEIVED:
            self._receiving = False
            message = event.batch_operations[0].message()
            if message is not None:  # as it is at the end of the stream, whose status follows
                self._arrived.append(message)
        elif event.tag is _SENT:
            self._sending = False
        elif event.tag is _STATUS:
            (status,) = event.batch_operations
            code = _NAMES.get(status.code(), str(status.code()))
            details = status.details()
            details = details.decode(errors="replace") if isinstance(details, bytes) else str(details or "")
            if code == "OK":
                self._error = ServiceUnavailableError(
                    describe(self._target, "stream", "ended by the service", "one that goes on")
                )
            else:
                self._error = failure_of(self._target, code, details, status.trailing_metadata())

    def wake(self, due: float) -> None:
        """Make `receive` look at the time, once for each deadline. Called from another thread."""
        if due != self._woken:
            self._woken = due
            with contextlib.suppress(Exception):  # it has just ended; then there is nobody to wake
                self._call.operate((), _WOKEN)

    def close(self) -> None:
        """End the stream; every event of it is taken out, so that nothing of it remains."""
        if self._error is None:
            self._call.cancel(grpc.StatusCode.CANCELLED.value[0], "closed by the client")
            while self._error is None:
                self._next()


class ThreadedExchange:
    """A `StreamCall` on the public interface of grpcio, with a thread that reads."""

    def __init__(self, channel: grpc.Channel, metadata: Sequence[tuple[str, str]], target: str) -> None:
        self._target = target
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[bytes | Exception] = queue.SimpleQueue()
        self._error: Exception | None = None
        self._call: Any = channel.stream_stream(_STREAM, None, None)(
            iter(self._requests.get, None), metadata=tuple(metadata)
        )
        threading.Thread(target=self._read, name="rest-store stream", daemon=True).start()

    def _read(self) -> None:
        try:
            for message in self._call:
                self._answers.put(message)
            ended = ServiceUnavailableError(
                describe(self._target, "stream", "ended by the service", "one that goes on")
            )
            self._answers.put(ended)
        except grpc.RpcError as error:
            self._answers.put(failed_call(self._target, error))

    def send(self, message: bytes, ends: float) -> None:
        """Send `message`; raise ServiceError if the stream has ended."""
        if self._error is not None:
            raise self._error
        self._requests.put(message)

    def receive(self, ends: float) -> bytes | None:
        """Return the next message, or None at `ends`; raise ServiceError if the stream has ended."""
        if self._error is not None:
            raise self._error
        try:
            found = self._answers.get(timeout=max(0.0, ends - time.monotonic()))
        except queue.Empty:
            return None
        if isinstance(found, Exception):
            self._error = found
            raise found
        return found

    def close(self) -> None:
        """End the stream."""
        self._requests.put(None)
        self._call.cancel()


def open_stream(channel: grpc.Channel, metadata: Sequence[tuple[str, str]], target: str) -> StreamCall:
    """Open a stream of drafts on `channel`, in the fastest way that this grpcio has."""
    if cygrpc is not None and hasattr(getattr(channel, "_channel", None), "segregated_call"):
        return Exchange(channel, metadata, target)
    return ThreadedExchange(channel, metadata, target)
