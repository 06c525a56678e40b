"""The base of all streams of one generation: the open call, which is replaced when it breaks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rest_store.service.client.codec import Codec
from rest_store.service.client.endpoints import Endpoint, Endpoints
from rest_store.service.client.shared_stream import SharedSession
from rest_store.service.client.stream_call import AsyncStreamCall, StreamCall

K = TypeVar("K", bound=StreamCall | SharedSession | AsyncStreamCall)


@dataclass(frozen=True)
class Route(Generic[K]):
    """How a stream reaches its service.

    Attributes:
        codec: what is known of the service.
        endpoints: where the service is.
        open_call: opens a call at an endpoint.
        info: asks for the description of the service, and counts the call.
        timeout: seconds for each step.
    """

    codec: Codec
    endpoints: Endpoints[Any]
    open_call: Callable[[Endpoint[Any]], K]
    info: Callable[..., Any]
    timeout: float


class GenerationStream(Generic[K]):
    """A stream of one generation; subclasses have its messages and wait for answers.

    Args:
        route: to its service.
    """

    def __init__(self, route: Route[K]) -> None:
        self._codec = route.codec
        self._endpoints = route.endpoints
        self._open_call = route.open_call
        self._info = route.info
        self._timeout = route.timeout
        self._closed = False
        self._call: K | None = None
        self._endpoint: Endpoint[Any] | None = None  # of that call
        self._sequence = 0  # of the message sent last

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise TypeError(f"a {type(self).__name__} belongs to one process: pickle its client, and make a stream there")

    @property
    def _needs_description(self) -> bool:
        return not self._codec.is_known and not self._closed

    def _call_at(self, endpoint: Endpoint[Any]) -> K:
        """Return the call that is open at `endpoint`, or open one there."""
        if self._call is not None and self._endpoint is not endpoint:
            self._drop()
        if self._call is None:
            self._call, self._endpoint = self._open_call(endpoint), endpoint
            self._endpoints.counters.add("streams_opened")
        return self._call

    def _drop(self) -> None:
        """End the call; the next attempt opens another."""
        call, self._call, self._endpoint = self._call, None, None
        if call is not None:
            call.close()
