"""When a failed call is made again: at which endpoint, after which wait, and for how long."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from rest_store.errors import (
    CircuitOpenError,
    DeadlineError,
    OverloadedError,
    PartError,
    RestStoreError,
    ServiceUnavailableError,
)
from rest_store.service.client.endpoints import C, Endpoint, Endpoints

T = TypeVar("T")

_FIRST_WAIT = 0.005  # seconds before the first retry at the same endpoint, doubled each time
_LONGEST_WAIT = 1.0
_MOST_DOUBLINGS = 16  # the wait is longest by then, and a float still holds it


class RetryPolicy(Generic[C]):
    """The attempts of one call.

    A call that fails because the service is away, late or overloaded is tried again within its deadline: at once at
    another endpoint, and after growing waits once all have been tried. After a late answer, the same endpoint is not
    asked again.

    Args:
        endpoints: where the call may be made.
        timeout: seconds for all attempts together.
        endpoint: the first to ask if its circuit admits a call; None: the preferred one.

    Raises:
        CircuitOpenError: no circuit admits a call.
    """

    def __init__(self, endpoints: Endpoints[C], timeout: float, endpoint: Endpoint[C] | None = None) -> None:
        now = time.monotonic()
        self._endpoints = endpoints
        self._retries = 0
        self._ends = now + timeout
        if endpoint is None or not endpoint.circuit.admits(now):
            endpoint = endpoints.choose(now, instead_of=endpoint)
        if endpoint is None:
            raise CircuitOpenError(endpoints.circuits_open)
        self.endpoint = endpoint

    def call(self, attempt: Callable[[Endpoint[C], float], T]) -> T:
        """Return what `attempt` returns, given an endpoint and the seconds that it may take."""
        while True:
            seconds = self.allowance()
            try:
                answer = attempt(self.endpoint, seconds)
            except RestStoreError as error:
                time.sleep(self.failed(error))
            else:
                self.succeeded()
                return answer

    def finish(self, first: Callable[[], T], attempt: Callable[[Endpoint[C], float], T]) -> T:
        """Return what `first` does, an attempt at `endpoint` that has begun; if it fails, what `call` returns."""
        try:
            answer = first()
        except RestStoreError as error:
            time.sleep(self.failed(error))
            return self.call(attempt)
        self.succeeded()
        return answer

    async def call_async(self, attempt: Callable[[Endpoint[C], float], Awaitable[T]]) -> T:
        """As `call`, for asyncio."""
        while True:
            seconds = self.allowance()
            try:
                answer = await attempt(self.endpoint, seconds)
            except RestStoreError as error:
                await asyncio.sleep(self.failed(error))
            else:
                self.succeeded()
                return answer

    def allowance(self) -> float:
        """Return the seconds that the next attempt may take: half of what is left if there is another endpoint.

        Raises:
            DeadlineError: none are left; not counted against the endpoint, which has not been called.
        """
        left = self._ends - time.monotonic()
        if left <= 0:
            raise DeadlineError(f"{self.endpoint.target}: the deadline passed before the service was called")
        return left / 2 if self._endpoints.has_other(self.endpoint) else left

    def succeeded(self) -> None:
        """Record an answer."""
        self.endpoint.circuit.succeeded()
        self._endpoints.counters.add("calls", "answers")

    def failed(self, error: RestStoreError) -> float:
        """Record a failed attempt.

        Returns:
            Seconds to wait before the next one, at `endpoint`, which may now be another.

        Raises:
            RestStoreError: `error` itself, if no further attempt makes sense.
        """
        if self.endpoint.is_closed:
            raise error  # closed by this client, so no endpoint has failed
        endpoints, now = self._endpoints, time.monotonic()
        lost = isinstance(error, ServiceUnavailableError | DeadlineError | PartError)  # the last: it is no replica now
        if not lost:
            self.endpoint.circuit.succeeded()  # an error, but an answer
        elif self.endpoint.circuit.failed(now):
            endpoints.counters.add("circuits_opened")
        overloaded = isinstance(error, OverloadedError)
        if not (lost or overloaded) or self._retries >= endpoints.retries or now >= self._ends:
            raise error
        self._retries += 1
        other = endpoints.choose(now, instead_of=self.endpoint)
        if other is None and (isinstance(error, DeadlineError) or not self.endpoint.circuit.admits(now)):
            raise error
        wait = 0.0
        if overloaded or other is None or self._retries >= len(endpoints.members):
            doublings = min(self._retries - 1, _MOST_DOUBLINGS)
            wait = min(_FIRST_WAIT * 2.0**doublings, _LONGEST_WAIT) * random.uniform(0.5, 1.0)
        if now + wait >= self._ends:
            raise error
        if other is not None:
            self.endpoint = other
            endpoints.prefer(other)
            endpoints.counters.add("failovers")
        endpoints.counters.add("retries")
        return wait
