"""What both clients of a service share: how they are made, what they know and count, and when they can be used."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

from rest_store.datastore.tokenizer import identity_of
from rest_store.datastore.validation import limits
from rest_store.service.channel import Dialer, Tls, seconds_of
from rest_store.service.client.arguments import at_least, names_of, pause_of, targets_of
from rest_store.service.client.circuit import Circuit
from rest_store.service.client.codec import Counterpart
from rest_store.service.client.connections import Connection
from rest_store.service.client.counters import ClientStatistics, Tally
from rest_store.service.client.endpoints import Endpoint, Endpoints, Pursuit
from rest_store.service.client.requests import Question, Questions, T
from rest_store.service.client.stream_state import Conversation


class ClientBase(ABC):
    """A client without what waits: its arguments, endpoints, counters and questions. See `DatastoreClient`."""

    def __init__(
        self,
        targets: str | list[str] | tuple[str, ...],
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
        addresses, names = targets_of(targets), names_of(datastore)
        threshold, first_pause = at_least(1, "failure_threshold", failure_threshold), pause_of(pause)
        self._timeout = seconds_of(timeout)
        self._dialer = Dialer(token, tls)
        self._tally = Tally()
        self._endpoints = Endpoints(
            [Endpoint(target, Circuit(threshold, first_pause), self._connect) for target in addresses],
            self._tally,
            retries,
        )
        self._counterpart = Counterpart(names, None if tokenizer is None else identity_of(tokenizer))
        self._questions = Questions(self._counterpart, self._tally)

    @abstractmethod
    def _connect(self, target: str) -> Connection:
        """Return a new connection to `target`."""

    @property
    def statistics(self) -> ClientStatistics:
        """What this client has done so far."""
        return self._tally.snapshot()

    def _pursue(self, question: Question[T], timeout: float | None, began: float) -> tuple[bytes, Pursuit[Connection]]:
        """Return the message of a question and its pursuit, both of which may be refused.

        Args:
            question: what to ask.
            timeout: seconds for it, or None for those of this client.
            began: when it was asked, of `time.monotonic`.
        """
        seconds = self._seconds(timeout)
        self._endpoints.require_one()
        request = question.request()
        return request, Pursuit(self._endpoints, began + seconds - time.monotonic())

    def _needs_description(self, question: Question[T]) -> bool:
        return not self._counterpart.is_known and question is not self._questions.describe

    def _conversation(self, max_nodes: int, max_suffix: int, max_depth: int) -> Conversation:
        return Conversation(self._counterpart, limits(max_nodes, max_suffix, max_depth))

    def _seconds(self, timeout: float | None) -> float:
        return self._timeout if timeout is None else seconds_of(timeout)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._endpoints)!r})"
