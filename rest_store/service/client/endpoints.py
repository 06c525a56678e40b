"""Where a service is reached: one or several endpoints, each with its connection and its circuit breaker."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from rest_store.errors import CircuitOpenError, ServiceUnavailableError
from rest_store.service.client.circuit import Circuit
from rest_store.service.client.counters import ClientCounters
from rest_store.service.client.process_lock import ProcessLock

C = TypeVar("C")  # a connection


class Endpoint(Generic[C]):
    """One address, its circuit, and the connection to it, made when it is first needed. Thread-safe.

    Args:
        target: the address.
        circuit: whether to ask it.
        connect: makes a connection to an address; called once.
    """

    def __init__(self, target: str, circuit: Circuit, connect: Callable[[str], C]) -> None:
        self.target = target
        self.circuit = circuit
        self._connect = connect
        self._connection: C | None = None
        self._process: int | None = None  # the one that connected
        self._closed = False
        self._lock = ProcessLock()

    @property
    def connection(self) -> C:
        """The connection, which reconnects by itself; raises as `require_usable`."""
        with self._lock:
            self.require_usable()
            if self._connection is None:
                self._process = os.getpid()
                self._connection = self._connect(self.target)
            return self._connection

    @property
    def is_closed(self) -> bool:
        """Whether `close` has been called: then that is why a call has failed."""
        return self._closed

    def require_usable(self) -> None:
        """Raise ServiceUnavailableError if it was closed, or connected before this process was forked."""
        if self._closed:
            raise ServiceUnavailableError("client: the client is closed")
        if self._process not in (None, os.getpid()):  # gRPC's threads do not survive a fork
            raise ServiceUnavailableError("client: the process was forked after the client connected; make it anew")

    def close(self) -> C | None:
        """Make no more connections; return the connection, if this process has made one, for the caller to close."""
        with self._lock:
            self._closed = True
            if self._process not in (None, os.getpid()):
                return None  # kept, since closing or freeing it would wait for gRPC's threads
            connection, self._connection = self._connection, None
        return connection


class Endpoints(Generic[C]):
    """All endpoints of a service, equally good; the one that answered last is asked first. Thread-safe.

    Args:
        members: the endpoints, at least one.
        counters: count the calls.
        retries: most further attempts of a call.

    Attributes:
        circuits_open: message of the error when no circuit admits a call.
    """

    def __init__(self, members: Sequence[Endpoint[C]], counters: ClientCounters, retries: int) -> None:
        self.counters = counters
        self.retries = retries
        self.replace(members)

    def replace(self, members: Sequence[Endpoint[C]]) -> None:
        """Use these endpoints from now on; calls in progress at others go on."""
        self.members = tuple(members)
        self.circuits_open = f"{self}: service was not called, because it has just failed several times in a row"
        self._preferred = self.members[0]

    def choose(self, now: float, instead_of: Endpoint[C] | None = None) -> Endpoint[C] | None:
        """Return the endpoint to ask at `now`, other than `instead_of`; None if no circuit admits a call."""
        preferred = self._preferred
        if preferred is not instead_of and preferred.circuit.admits(now):
            return preferred
        members = self.members
        if len(members) > 1:
            last = instead_of or preferred
            start = members.index(last) + 1 if last in members else 0
            for member in (*members[start:], *members[:start]):
                if member is not instead_of and member is not preferred and member.circuit.admits(now):
                    self._preferred = member
                    return member
        return None

    @property
    def healthy(self) -> Endpoint[C] | None:
        """The endpoint that is asked first, if its circuit is closed."""
        preferred = self._preferred
        return None if preferred.circuit.is_open else preferred

    def require_one(self) -> None:
        """Check, in a microsecond, whether a call can be made now.

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
        raise CircuitOpenError(self.circuits_open)

    def close(self) -> list[C]:
        """Close all of them; return their connections, for the caller to close. May be called again."""
        return [connection for member in self.members if (connection := member.close()) is not None]

    def prefer(self, endpoint: Endpoint[C]) -> None:
        """Ask `endpoint` first from now on, unless it was replaced."""
        if endpoint in self.members:
            self._preferred = endpoint

    def has_other(self, endpoint: Endpoint[C]) -> bool:
        """Return whether an endpoint other than this one has a closed circuit."""
        return len(self.members) > 1 and any(
            member is not endpoint and not member.circuit.is_open for member in self.members
        )

    def __str__(self) -> str:
        return ", ".join(member.target for member in self.members)
