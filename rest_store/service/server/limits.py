"""The limits of a service, and the number of calls in flight."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from rest_store.datastore.kernel import MAX_NODES
from rest_store.errors import OverloadedError, ServeError, describe

_GREATEST = 1 << 30  # of each limit
_GREATEST_MEMORY = 1 << 50
# Of the largest request: for each context 64 tokens of at most 5 bytes and a share of the proposals; and names and the
# proposals of a single context.
_CONTEXT_BYTES, _OTHER_BYTES = 512, 64 << 10
_TOKEN_BYTES = 8  # of the text of a session
MAX_STREAM_SESSIONS = 256  # of one stream, whose steps may be in one message


@dataclass(frozen=True)
class Limits:
    """Limits of a service, of all clients together; published by Describe.

    Attributes:
        max_message_bytes: largest answer, and largest request that adds or deletes documents; others are smaller.
        max_contexts: most contexts of one request, times datastores, rows of evidence and each 1024 nodes.
        max_streams: most open streams.
        max_in_flight: most requests in flight, without streams.
        max_waiting: most requests that have arrived and are not in flight yet; at least 2.
        max_session_tokens: most tokens of the text of one session.
        max_session_memory: most bytes of all sessions together.
        session_idle_seconds: time without a message after which a session ends.

    Raises:
        ServeError: a limit is out of range.
    """

    max_message_bytes: int = 4 << 20
    max_contexts: int = 1024
    max_streams: int = 1024
    max_in_flight: int = 256
    max_waiting: int = 1024
    max_session_tokens: int = 1 << 18
    max_session_memory: int = 1 << 31
    session_idle_seconds: int = 600

    def __post_init__(self) -> None:
        least = {"max_message_bytes": 1024, "max_waiting": 2}
        for name, value in vars(self).items():
            greatest = _GREATEST_MEMORY if name == "max_session_memory" else _GREATEST
            if not least.get(name, 1) <= value <= greatest:
                raise ServeError(describe("service", name, value, f"{least.get(name, 1)}..{greatest}"))

    @property
    def max_request_bytes(self) -> int:
        """Largest request: the size of `max_contexts` contexts, so that reading any message costs little."""
        return min(self.max_message_bytes, _OTHER_BYTES + _CONTEXT_BYTES * self.max_contexts)

    @property
    def max_opening_bytes(self) -> int:
        """Largest first message of a session, which has its text."""
        return self.max_request_bytes + _TOKEN_BYTES * self.max_session_tokens

    @property
    def max_steps_bytes(self) -> int:
        """Largest message of many sessions: one opening, and other steps."""
        return self.max_opening_bytes + self.max_request_bytes

    @property
    def max_proposals(self) -> int:
        """Most proposals of all contexts of a request together."""
        return max(MAX_NODES, self.max_contexts)


class Gate:
    """Counts tasks and refuses more than its limit. For use within one event loop.

    Args:
        what: the tasks, for the error.
        limit: most of them at once.

    Attributes:
        tasks: those that were let in and are not done.
    """

    def __init__(self, what: str, limit: int) -> None:
        self._what = what
        self._limit = limit
        self.tasks: set[asyncio.Task[Any]] = set()

    def enter(self, task: asyncio.Task[Any]) -> None:
        """Let `task` in until it is done, however it ends; raise OverloadedError if the limit is reached."""
        if len(self.tasks) >= self._limit:
            raise OverloadedError(f"service is overloaded: it has {self._limit} {self._what}; try again later")
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
