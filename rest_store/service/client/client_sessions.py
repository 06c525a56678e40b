"""What all sessions that a service runs for one client share."""

from __future__ import annotations

import threading
import time

from rest_store.errors import TargetError, describe
from rest_store.service.client.shared_stream import SharedStreams
from rest_store.service.names import is_name

_LONGEST_NAME = 256  # bytes of what sessions share
_FINISH_SECONDS = 1.0  # time for last messages when a client is closed


class ClientSessions:
    """What all sessions of one client share. Thread-safe.

    Args:
        streams: streams that several of them may share.
        send_text: whether the service may run sessions.
        shared_calibration: name under which they share what their calibration learns, or None.
        remember: name of the live datastore to which the service adds what is accepted, or None.

    Attributes:
        streams, send_text: as above.
        shared_calibration, remember: the names; empty in place of None.

    Raises:
        TargetError: a name is not valid.
    """

    def __init__(
        self, streams: SharedStreams, *, send_text: bool, shared_calibration: str | None, remember: str | None
    ) -> None:
        self.streams = streams
        self.send_text = bool(send_text)
        self.shared_calibration = _shared_name(shared_calibration)
        self.remember = _remembering(remember, self.send_text)
        self._finishing: set[threading.Event] = set()

    def finish(self, ended: threading.Event) -> None:
        """Add an event for `wait`; it is set once the service has read the last message of a session."""
        # Copied by one instruction, as in `wait`: other threads add to it.
        self._finishing.difference_update([one for one in tuple(self._finishing) if one.is_set()])
        self._finishing.add(ended)

    def wait(self) -> None:
        """Wait up to a second until all last messages have been read."""
        ends = time.monotonic() + _FINISH_SECONDS
        for ended in tuple(self._finishing):
            ended.wait(max(0.0, ends - time.monotonic()))


def _shared_name(name: str | None) -> str:
    """Return a name for what sessions share, empty for None; raise TargetError if it is invalid."""
    if name is None:
        return ""
    if not is_name(name) or len(name.encode()) > _LONGEST_NAME:
        expected = f"a name of 1 to {_LONGEST_NAME} bytes"
        raise TargetError(describe("client", "shared_calibration", ascii(name), expected))
    return name


def _remembering(name: str | None, send_text: bool) -> str:
    """Return the name of the datastore that remembers, empty for None; raise TargetError if it is invalid."""
    if name is None:
        return ""
    if not is_name(name):
        raise TargetError(describe("client", "remember", ascii(name), "the name of a live datastore, or None"))
    if not send_text:
        raise TargetError(describe("client", "remember", "a datastore", "None without send_text"))
    return name
