"""One stream of many sessions of a client: steps that they take together are sent in one message.

The service drafts the trees of one message together, and a message costs both sides more time than a small tree.
"""

from __future__ import annotations

import functools
import os
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import grpc

from rest_store.errors import ProtocolError, RestStoreError, describe
from rest_store.service.channel import Dialer
from rest_store.service.client.answers import parse
from rest_store.service.client.client_base import METHOD
from rest_store.service.client.codec import Codec
from rest_store.service.client.endpoints import Endpoint
from rest_store.service.client.process_lock import ProcessLock
from rest_store.service.client.stream_call import Answers, failure_of
from rest_store.service.errors import error_of_end
from rest_store.v1 import datastore_pb2 as pb

_LARGEST_ANSWER = 8 << 20  # bytes of a message of the service: the largest trees of all its sessions, and more
_UNASKED = 2  # answers that may come for a session that this side has ended already

_Requests = queue.SimpleQueue[bytes | None]


class _Member:
    """A session of a stream: its answers, how many may come, and how many have."""

    def __init__(self) -> None:
        self.answers = Answers()
        self.asked = self.answered = 0


class _Members:
    """The sessions of a stream, by number, for the thread that reads its answers."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.members: dict[int, _Member] = {}
        self.begun = 0  # sessions so far; the number of the latest
        self.error: RestStoreError | None = None
        self._unasked = 0

    def deliver(self, data: bytes) -> None:
        """Hand the answers of a message to their sessions; raise ProtocolError unless they can be such."""
        response = parse(pb.DraftSessionsResponse, data, self.target, _LARGEST_ANSWER)
        if not response.answers:
            raise ProtocolError(describe(self.target, "number of answers in a message", 0, "at least one"))
        for answer in response.answers:
            member = self.members.get(answer.session)
            if member is None:
                self._unasked += 1
                if answer.session > self.begun or self._unasked > _UNASKED * self.begun:
                    raise ProtocolError(describe(self.target, "session of an answer", answer.session, "one that asked"))
                continue
            if answer.HasField("response"):
                member.answered += 1
                if member.answered > member.asked:
                    found, expected = f"{member.answered} of a session", f"{member.asked}, as it asked"
                    raise ProtocolError(describe(self.target, "number of answers", found, expected))
                member.answers.put(answer.response)
            if answer.HasField("end"):
                self.members.pop(answer.session, None)
                end = answer.end
                member.answers.put(error_of_end(self.target, end.code, end.message, end.reason))

    def fail(self, error: RestStoreError) -> None:
        """Tell all sessions, and those that still begin, that the stream has ended."""
        self.error = error
        for number in list(self.members):
            if (member := self.members.pop(number, None)) is not None:
                member.answers.put(error)


class SharedStream:
    """One stream of `DraftSessions` to the service at `target`, with a thread that reads its answers. Thread-safe.

    A message has steps of at most `most_bytes`, or one step.
    """

    def __init__(
        self, channel: grpc.Channel, metadata: Sequence[tuple[str, str]], target: str, most_bytes: int
    ) -> None:
        self._most_bytes = most_bytes
        self._members = _Members(target)
        self._pending: deque[tuple[int, bytes, bool]] = deque()  # session, message, whether it is its last
        self._requests: _Requests = queue.SimpleQueue()
        self._lock = ProcessLock()
        stream: Any = channel.stream_stream(METHOD + "DraftSessions", None, None)
        call = stream(iter(self._requests.get, None), metadata=tuple(metadata))
        arguments = (call, self._requests, self._members)
        threading.Thread(target=_read, args=arguments, name="rest-store sessions", daemon=True).start()
        self._end = weakref.finalize(self, _end, call, self._requests, os.getpid())

    def has_room(self, most: int) -> bool:
        """Return whether it has not ended, and has fewer sessions than `most`."""
        return self._members.error is None and len(self._members.members) < most

    def begin(self) -> SharedSession:
        """Return a new session on this stream."""
        of_stream, member = self._members, _Member()
        with self._lock:
            of_stream.begun += 1
            number = of_stream.begun
            of_stream.members[number] = member
        if of_stream.error is not None:  # its sessions were told, but perhaps not this one
            member.answers.put(of_stream.error)
        end = functools.partial(_leave, self._requests, of_stream.members, number, os.getpid())
        return SharedSession(self, number, member, end)

    def add(self, number: int, message: bytes, *, is_last: bool = False) -> None:
        """Keep a message of a session for the next `flush`."""
        self._pending.append((number, message, is_last))

    def flush(self) -> None:
        """Send what has been added."""
        if not self._pending:
            return
        with self._lock:
            request, size = pb.DraftSessionsRequest(), 0
            numbers: set[int] = set()
            while self._pending:
                number, message, is_last = self._pending.popleft()
                if number not in self._members.members:
                    continue
                if numbers and (size + len(message) > self._most_bytes or number in numbers):
                    self._requests.put(request.SerializeToString())
                    request, size, numbers = pb.DraftSessionsRequest(), 0, set()
                request.steps.add(session=number, request=message, last=is_last)
                size += len(message)
                numbers.add(number)
            if numbers:
                self._requests.put(request.SerializeToString())


class SharedSession:
    """One session on a `SharedStream`, in place of a `StreamCall`. Not thread-safe."""

    def __init__(self, stream: SharedStream, number: int, member: _Member, end: Callable[[], None]) -> None:
        self._stream = stream
        self._number = number
        self._member = member
        self._end = weakref.finalize(self, end)

    def send(self, message: bytes) -> None:
        """Send a message with the next `flush`; raise ServiceError if the session is known to have ended."""
        self._member.answers.require_open()
        self._member.asked += 1
        self._stream.add(self._number, message)

    def flush(self) -> None:
        """Send the messages of all sessions of this stream."""
        self._stream.flush()

    def receive(self, ends: float) -> bytes | None:
        """Return the next answer, or None at `ends` (`time.monotonic`); raise ServiceError if the session has ended."""
        self._stream.flush()
        return self._member.answers.receive(ends)

    def close(self) -> None:
        """End the session."""
        self._end()

    def finish(self, message: bytes) -> threading.Event:
        """Send a last message; return an event that is set once the service has read it and ended the session."""
        self._stream.add(self._number, message, is_last=True)
        self._stream.flush()
        self._end.detach()
        return self._member.answers.ended


class SharedStreams:
    """The streams that sessions of one client share. Thread-safe.

    Args:
        codec: what is known of the service.
        dialer: has the metadata of calls.

    Attributes:
        are_wanted: whether a batch of sessions has been drafted.
    """

    are_wanted = False

    def __init__(self, codec: Codec, dialer: Dialer) -> None:
        self._codec = codec
        self._dialer = dialer
        self._latest: weakref.WeakKeyDictionary[Endpoint[Any], SharedStream] = weakref.WeakKeyDictionary()
        self._lock = ProcessLock()

    @property
    def are_used(self) -> bool:
        """Whether new sessions share streams."""
        return self.are_wanted and self._codec.max_stream_sessions > 0

    def join(self, endpoint: Endpoint[Any]) -> SharedSession | None:
        """Return a new session at `endpoint`; None if it is to have a stream of its own."""
        if not self.are_used:
            return None
        with self._lock:
            stream = self._latest.get(endpoint)
            if stream is None or not stream.has_room(self._codec.max_stream_sessions):
                stream = self._latest[endpoint] = self._open(endpoint)
            return stream.begin()

    def _open(self, endpoint: Endpoint[Any]) -> SharedStream:
        channel = endpoint.connection.channel
        try:
            # An opening, which has all of the text, may be larger.
            return SharedStream(channel, self._dialer.metadata, endpoint.target, self._codec.max_request_bytes // 2)
        except ValueError:  # grpc's error for a channel that has just been closed
            endpoint.require_usable()
            raise


def _read(call: Any, requests: _Requests, members: _Members) -> None:
    """Hand every answer of `call` to its session, and last to all of them why the call has ended."""
    try:
        for message in call:
            members.deliver(message)
        members.fail(failure_of(members.target, None))
    except Exception as error:
        call.cancel()
        members.fail(failure_of(members.target, error))
    requests.put(None)  # else gRPC's thread waits for one until this stream is freed


def _leave(requests: _Requests, members: dict[int, _Member], number: int, process: int) -> None:
    """End a session. Takes no lock: the garbage collector may call this in a thread that holds one."""
    if os.getpid() == process and members.pop(number, None) is not None:
        step = pb.SessionStep(session=number, last=True)
        requests.put(pb.DraftSessionsRequest(steps=[step]).SerializeToString())


def _end(call: Any, requests: _Requests, process: int) -> None:
    if os.getpid() == process:  # else forked: to cancel the call would wait for gRPC's threads, which are not here
        requests.put(None)
        call.cancel()
