"""Where a service is asked: several endpoints, the one that answers first in line, and when to try again."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from rest_store.errors import (
    CircuitOpenError,
    DeadlineError,
    OverloadedError,
    RestStoreError,
    ServiceUnavailableError,
    describe,
)
from rest_store.service.client.arguments import at_least
from rest_store.service.client.circuit import Circuit
from rest_store.service.client.counters import Tally
from rest_store.service.client.forks import forks

C = TypeVar("C")

_FIRST_WAIT = 0.005  # seconds before the first retry at the same endpoint, doubled each time
_LONGEST_WAIT = 1.0


class Endpoint(Generic[C]):
    """One address, its circuit, and the connection to it, made when it is first asked. Thread-safe.

    Args:
        target: the address.
        circuit: whether to ask it.
        connect: makes a connection to an address; called once.
    """

    __slots__ = ("_closed", "_connect", "_connection", "_forks", "_lock", "circuit", "target")

    def __init__(self, target: str, circuit: Circuit, connect: Callable[[str], C]) -> None:
        self.target = target
        self.circuit = circuit
        self._connect = connect
        self._connection: C | None = None
        self._closed = False
        self._forks: int | None = None
        self._lock = threading.Lock()

    @property
    def connection(self) -> C:
        """The connection; a gRPC channel, which connects again by itself.

        Raises:
            ServiceUnavailableError: closed, or made before a fork.
        """
        self.require_usable()
        found = self._connection
        if found is None:
            with self._lock:
                self.require_usable()
                found = self._connection
                if found is None:
                    self._forks = forks()
                    found = self._connection = self._connect(self.target)
        return found

    @property
    def is_closed(self) -> bool:
        """Whether it has been closed: what failed meanwhile failed for that reason."""
        return self._closed

    def require_usable(self) -> None:
        """Raise ServiceUnavailableError if it was closed, or connected before this process was forked."""
        if self._closed:
            raise self.closed()
        if self._forks is not None and self._forks != forks():
            found = "a fork of the one that connected"
            raise ServiceUnavailableError(describe("client", "process", found, "a client made after the fork"))

    def closed(self) -> ServiceUnavailableError:
        """Return the error for a call on what has been closed."""
        return ServiceUnavailableError(describe("client", "client", "closed", "an open one"))

    def close(self) -> C | None:
        """Connect no more; return the connection, to be closed, if there was one and this is the first time."""
        with self._lock:
            self._closed = True
            found, self._connection = self._connection, None
        return found


class Endpoints(Generic[C]):
    """All endpoints of a service, equally good; the one that answered last is asked first. Thread-safe.

    Args:
        members: the endpoints, at least one.
        tally: what counts the calls.
        retries: most further attempts of a call.

    Raises:
        LimitError: `retries` is no whole number of at least 0.
    """

    def __init__(self, members: Sequence[Endpoint[C]], tally: Tally, retries: int) -> None:
        self.members = tuple(members)
        self.tally = tally
        self.retries = at_least(0, "retries", retries)
        self._preferred = self.members[0]
        self._not_asked = describe(self, "service", "not asked, after failures in a row", "one that answers")

    def choose(self, now: float, instead_of: Endpoint[C] | None = None) -> Endpoint[C] | None:
        """Return the endpoint to ask at `now`, other than `instead_of`; None if no circuit admits a call."""
        preferred = self._preferred
        if preferred is not instead_of and preferred.circuit.admits(now):
            return preferred
        if len(self.members) > 1:
            start = self.members.index(instead_of or preferred)
            for member in (*self.members[start + 1 :], *self.members[:start]):
                if member is not instead_of and member is not preferred and member.circuit.admits(now):
                    self._preferred = member
                    return member
        return None

    def require_one(self) -> None:
        """Find out, in a microsecond, whether a call can be made now.

        Raises:
            ServiceUnavailableError: closed, or connected before this process was forked.
            CircuitOpenError: no circuit would admit a call.
        """
        for member in self.members:
            member.require_usable()
        now = time.monotonic()
        for member in self.members:
            if member.circuit.would_admit(now):
                return
        raise CircuitOpenError(self._not_asked)

    def close(self) -> list[C]:
        """Close all of them; return their connections, to be closed. May be called again."""
        return [found for member in self.members if (found := member.close()) is not None]

    def prefer(self, endpoint: Endpoint[C]) -> None:
        """Ask `endpoint` first from now on."""
        self._preferred = endpoint

    def has_other(self, endpoint: Endpoint[C]) -> bool:
        """Return whether an endpoint other than this one has a closed circuit."""
        return len(self.members) > 1 and any(
            member is not endpoint and not member.circuit.is_open for member in self.members
        )

    def __str__(self) -> str:
        return ", ".join(member.target for member in self.members)


class Pursuit(Generic[C]):
    """One call until it is answered or given up: at which endpoint, for how long, and whether once more.

    All calls of the service only read, so that any may be made again; none is after the caller's deadline. A service
    that is overloaded is asked again only after a wait.

    Args:
        endpoints: where the service is.
        timeout: seconds that the caller grants.
        endpoint: where to begin, if its circuit admits a call.

    Raises:
        CircuitOpenError: every circuit is open.
    """

    __slots__ = ("_attempts", "_endpoints", "endpoint", "ends")

    def __init__(self, endpoints: Endpoints[C], timeout: float, endpoint: Endpoint[C] | None = None) -> None:
        now = time.monotonic()
        self._endpoints = endpoints
        self._attempts = 0
        self.ends = now + timeout
        if endpoint is None or not endpoint.circuit.admits(now):
            endpoint = endpoints.choose(now, instead_of=endpoint)
        if endpoint is None:
            raise CircuitOpenError(endpoints._not_asked)
        self.endpoint = endpoint

    def allowance(self) -> float:
        """Return the seconds that the next attempt may take: half of what is left if there is another endpoint.

        Raises:
            DeadlineError: none are left; no fault of the endpoint, which has not been asked.
        """
        left = self.ends - time.monotonic()
        if left <= 0:
            raise DeadlineError(describe(self.endpoint.target, "service", "late", "an answer before the deadline"))
        return left / 2 if self._endpoints.has_other(self.endpoint) else left

    def succeeded(self) -> None:
        """Take note of an answer."""
        self.endpoint.circuit.succeeded()
        self._endpoints.tally.add("calls", "answers")

    def failed(self, error: RestStoreError) -> float:
        """Take note of a failed attempt.

        Returns:
            Seconds to wait before the next one, at `endpoint`, which may now be another.

        Raises:
            RestStoreError: `error` itself, if no further attempt makes sense.
        """
        if self.endpoint.is_closed:
            raise error  # by this client: nobody's failure
        endpoints, now = self._endpoints, time.monotonic()
        lost = isinstance(error, ServiceUnavailableError | DeadlineError)
        if not lost:
            self.endpoint.circuit.succeeded()  # it does answer
        elif self.endpoint.circuit.failed(now):
            endpoints.tally.add("circuits_opened")
        overloaded = isinstance(error, OverloadedError)
        if not (lost or overloaded) or self._attempts >= endpoints.retries or now >= self.ends:
            raise error
        self._attempts += 1
        other = endpoints.choose(now, instead_of=self.endpoint)
        if other is None and (isinstance(error, DeadlineError) or not self.endpoint.circuit.admits(now)):
            raise error
        wait = 0.0
        if overloaded or other is None or self._attempts >= len(endpoints.members):
            wait = min(_FIRST_WAIT * 2.0 ** (self._attempts - 1), _LONGEST_WAIT) * random.uniform(0.5, 1.0)
        if now + wait >= self.ends:
            raise error
        if other is not None:
            self.endpoint = other
            endpoints.prefer(other)
            endpoints.tally.add("failovers")
        endpoints.tally.add("retries")
        return wait
