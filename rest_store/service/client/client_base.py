"""What `DatastoreClient` and `AsyncDatastoreClient` share: arguments, connections and counters."""

from __future__ import annotations

import functools
import operator
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from rest_store.datastore.tokenizer import identity_of
from rest_store.datastore.validation import real
from rest_store.errors import LimitError, TargetError, describe
from rest_store.service.channel import Dialer, Tls, seconds_of, target_of
from rest_store.service.client.circuit import Circuit
from rest_store.service.client.codec import Codec
from rest_store.service.client.counters import ClientCounters, ClientStatistics
from rest_store.service.client.endpoints import Endpoint, Endpoints
from rest_store.service.client.part_groups import Targets
from rest_store.service.client.requests import Request, Requests, T
from rest_store.service.client.retry import RetryPolicy
from rest_store.service.names import is_name

METHOD = "/rest_store.v1.DatastoreService/"
_UNARY = ("Draft", "LongestSuffixMatch", "Count", "Describe", "Add", "Delete")
WRITE_SECONDS = 10.0  # default timeout of calls that write
_LONGEST_PAUSE = 1e6  # seconds


class Connection:
    """A channel of grpc or grpc.aio, and the unary methods of the service on it, by name; bytes in, bytes out."""

    def __init__(self, channel: Any) -> None:
        self.channel = channel
        self.methods: dict[str, Any] = {name: channel.unary_unary(METHOD + name) for name in _UNARY}


class ClientBase(ABC):
    """A client without the calls, which either block or are awaited. See `DatastoreClient`."""

    def __init__(
        self,
        targets: Targets,
        *,
        datastore: str | Sequence[str] | None = None,
        tokenizer: object = None,
        token: str | None = None,
        tls: Tls | bool | None = None,
        timeout: float = 0.1,
        retries: int = 3,
        failure_threshold: int = 5,
        pause: float = 1.0,
    ) -> None:
        addresses, names = _targets(targets), _names(datastore)
        self._targets = addresses
        self._options: dict[str, Any] = {
            "datastore": names or None,
            "token": token,
            "tls": tls,
            "timeout": timeout,
            "retries": retries,
            "failure_threshold": failure_threshold,
            "pause": pause,
        }
        threshold, first_pause = _at_least(1, "failure_threshold", failure_threshold), _pause(pause)
        self._timeout = seconds_of(timeout)
        self._dialer = Dialer(token, tls)
        self._counters = ClientCounters()
        self._new_circuit = functools.partial(Circuit, threshold, first_pause)
        self._endpoints = Endpoints(
            [Endpoint(target, self._new_circuit(), self._connect) for target in addresses],
            self._counters,
            _at_least(0, "retries", retries),
        )
        self._codec = Codec(names, None if tokenizer is None else identity_of(tokenizer))
        self._requests = Requests(self._codec, self._counters)

    def __reduce__(self) -> tuple[Callable[[], Any], tuple[()]]:
        """Pickle the arguments of the client, with the token, and the tokenizer of its requests; no connections."""
        tokenizer = self._codec.tokenizer
        return functools.partial(type(self), self._targets, tokenizer=tokenizer, **self._options), ()

    @abstractmethod
    def _connect(self, target: str) -> Connection:
        """Return a new connection to `target`."""

    def _move_to(self, addresses: Sequence[str]) -> None:
        """Use these addresses, at least one, from now on."""
        members = {member.target: member for member in self._endpoints.members}
        if any(member.is_closed for member in members.values()):
            return
        self._targets = list(addresses)
        self._endpoints.replace(
            [members.get(one) or Endpoint(one, self._new_circuit(), self._connect) for one in addresses]
        )

    @property
    def statistics(self) -> ClientStatistics:
        """What this client has done so far."""
        return self._counters.snapshot()

    def _needs_description(self, request: Request[T]) -> bool:
        return not self._codec.is_known and request is not self._requests.describe

    def _begin(self, request: Request[T], timeout: float | None, began: float) -> tuple[bytes, RetryPolicy[Connection]]:
        """Return the message and the retry policy of a request that `began` (`time.monotonic`); either may raise."""
        seconds = self._seconds(timeout)
        self._endpoints.require_one()
        message = request.encode()
        return message, RetryPolicy(self._endpoints, began + seconds - time.monotonic())

    def _seconds(self, timeout: float | None) -> float:
        return self._timeout if timeout is None else seconds_of(timeout)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._endpoints)!r})"


def _targets(targets: Targets) -> list[str]:
    """Return the addresses as gRPC takes them; raise TargetError unless there is at least one valid one."""
    several = targets if isinstance(targets, list | tuple) else [targets]
    if not several:
        raise TargetError(describe("client", "targets", "empty", "at least one address"))
    return [target_of(target) for target in several]


def _names(datastore: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of the datastores to ask; raise TargetError unless they are distinct names."""
    if datastore is None:
        return ()
    several = [datastore] if isinstance(datastore, str) else datastore
    try:
        names = tuple(several)
    except TypeError:
        names = ()
    if not names or not all(map(is_name, names)) or len(set(names)) < len(names):
        raise TargetError(describe("client", "datastore", repr(datastore), "one or more names, each once, or None"))
    return names


def _at_least(least: int, name: str, value: int) -> int:
    """Return a whole number; raise LimitError unless it is one, `least` or more."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise LimitError(describe("client", name, repr(value), f"a whole number, {least} or more"))
    return number


def _pause(pause: float) -> float:
    """Return the seconds of a pause; raise LimitError unless they are a number, 0 or more."""
    seconds = real(pause)
    if not 0 <= seconds < _LONGEST_PAUSE:
        expected = f"seconds, 0 or more and less than {_LONGEST_PAUSE:.0f}"
        raise LimitError(describe("client", "pause", repr(pause), expected))
    return seconds
