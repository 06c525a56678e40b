"""Access to a service: its limits, the number of calls in flight, and bearer tokens."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rest_store.datastore.kernel import MAX_NODES
from rest_store.errors import AuthenticationError, OverloadedError, ServeError, describe
from rest_store.service.tokens import TOKEN_EXPECTED, TOKEN_VARIABLE, is_token, tokens_in

_GREATEST = 1 << 30  # of each limit
_GREATEST_MEMORY = 1 << 50
# What a request takes: for each context 64 tokens of at most 5 bytes and a share of the proposals; and names, and the
# proposals of a single context.
_CONTEXT_BYTES, _OTHER_BYTES = 512, 64 << 10
_TOKEN_BYTES = 8  # of the text of a session


@dataclass(frozen=True)
class Limits:
    """Limits of a service, of all clients together; published by Describe.

    Attributes:
        max_message_bytes: size of an answer, and at most of a request.
        max_contexts: contexts of one request, times datastores and rows of evidence.
        max_streams: open streams.
        max_in_flight: requests in flight, streams not counted.
        max_waiting: requests that have arrived and are not in flight yet; at least 2.
        max_session_tokens: text of one session.
        max_session_memory: bytes of all sessions together.
        session_idle_seconds: without a message, after which a session ends.

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
        """Size of a request: what `max_contexts` take, so that reading any message costs little."""
        return min(self.max_message_bytes, _OTHER_BYTES + _CONTEXT_BYTES * self.max_contexts)

    @property
    def max_opening_bytes(self) -> int:
        """Size of the first message of a session, which has its text."""
        return self.max_request_bytes + _TOKEN_BYTES * self.max_session_tokens

    @property
    def max_proposals(self) -> int:
        """Proposals of all contexts of a request together."""
        return max(MAX_NODES, self.max_contexts)


class Gate:
    """Counts tasks and refuses more than its limit. For use within one event loop.

    Args:
        what: the tasks, for the error.
        limit: most of them at once.

    Attributes:
        tasks: those inside.
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


class BearerTokens:
    """The tokens that a service accepts; without any, no token is required.

    Args:
        path: a file as `tokens_in` reads it, if there is one.
        token: a further token, from the environment.

    Raises:
        ServeError: as `tokens_in`, or `token` is none.

    Thread-safe.
    """

    def __init__(self, path: Path | None = None, token: str | None = None) -> None:
        if token is not None and not is_token(token):
            raise ServeError(describe("service", TOKEN_VARIABLE, "not a token", TOKEN_EXPECTED))
        self._path = path
        self._token = token
        self._digests: tuple[bytes, ...] = ()
        self.reload()

    def reload(self) -> None:
        """Read the file again; on an error the tokens stay as they are."""
        tokens = [self._token] if self._token else []
        if self._path is not None:
            tokens += tokens_in(self._path)
        self._digests = tuple(hashlib.sha256(token.encode()).digest() for token in tokens)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def accepts(self, digest: bytes) -> bool:
        """Whether a token that `require` accepted once is accepted still."""
        return not self._digests or digest in self._digests

    def require(self, metadata: Any) -> bytes:
        """Return the digest of the bearer token of a call, empty where none is required.

        The time taken does not leak tokens.

        Raises:
            AuthenticationError: the call has no accepted token.
        """
        if not self._digests:
            return b""
        value = next((value for key, value in metadata or () if key == "authorization"), None)
        if value is None:
            raise AuthenticationError(describe("request", "authorization", "absent", "a bearer token"))
        scheme, _, token = (value if isinstance(value, str) else value.decode("latin-1")).partition(" ")
        digest = hashlib.sha256(token.strip().encode()).digest()
        accepted = False
        for known in self._digests:
            accepted |= hmac.compare_digest(digest, known)
        if not accepted or scheme.lower() != "bearer":
            raise AuthenticationError(describe("request", "authorization", "not accepted", "a bearer token known here"))
        return digest
