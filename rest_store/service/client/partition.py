"""One partition of a datastore as a client reaches it, or all of them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.errors import (
    DeadlineError,
    OverloadedError,
    RestStoreError,
    ServiceUnavailableError,
    UnknownDatastoreError,
)
from rest_store.service.channel import Dialer
from rest_store.service.client.descriptions import (
    ServiceInfo,
    combined_info,
    require_one_build,
    service_info,
)
from rest_store.service.client.endpoint import Endpoint
from rest_store.service.client.requests import Request, Requests, parse
from rest_store.v1 import datastore_pb2 as pb

T = TypeVar("T")

_FIRST_PAUSE = 0.005  # seconds before all endpoints are tried again, doubled each time
_MAX_PAUSE = 1.0
_MAX_THREADS = 64  # that ask partitions at once


class PartitionClient:
    """Endpoints that serve the same, tried in turn; the one that
    answered last comes first. Thread-safe.

    Args:
        targets: their addresses, at least one.
        dialer: makes the channels.
        names: of the datastores to ask; empty: all whose tokenizer matches.
        tokenizer: the one in use; None: that of the datastores.
        namespace: of live datastores.
        live: whether only live ones are asked where none is named.

    Attributes:
        endpoints, preferred: all of them, and the one to ask first.
        requests: makes requests by the latest description; None: the service has not been described
            yet.
        is_known: whether that is what the service was, as far as its answers have shown.
        unanswered: how many first answers and steps of sessions have been waited for in vain since
            one came.
        unanswered_at: when the latest of them was asked for (`time.monotonic`).
    """

    def __init__(
        self,
        targets: Sequence[str],
        dialer: Dialer,
        names: Sequence[str] = (),
        tokenizer: TokenizerIdentity | None = None,
        namespace: str = "",
        live: bool = False,
    ) -> None:
        self.endpoints = [Endpoint(target, dialer) for target in targets]
        self._names = names
        self._tokenizer = tokenizer
        self._namespace = namespace
        self._live = live
        self.preferred = self.endpoints[0]
        self.requests: Requests | None = None
        self.is_known = False
        self.unanswered, self.unanswered_at = 0, 0.0

    def after(self, endpoint: Endpoint) -> Endpoint:
        """Return the endpoint to ask when this one has failed; the same if there is no other."""
        return self.endpoints[(self.endpoints.index(endpoint) + 1) % len(self.endpoints)]

    def ask(self, request: Request[T], ends: float) -> T:
        """Return the answer to a request.

        An endpoint that is away, late or overloaded is left for the next one. After all of them
        comes a pause, and then the first again, until the deadline: all requests only read, or do
        nothing more the second time.

        `ends` is the deadline of all attempts together (`time.monotonic`).

        Raises:
            ServiceError: no answer, or one that is not valid; the subclass says why.
        """
        endpoint, pause = self.preferred, _FIRST_PAUSE
        failure: RestStoreError | None = None
        while True:
            for others in range(len(self.endpoints) - 1, -1, -1):
                left = ends - time.monotonic()
                if left <= 0:
                    raise failure or DeadlineError(
                        f"{endpoint.target}: the deadline passed before the call"
                    )
                try:
                    answer = endpoint.ask(
                        request.method, request.message, left / 2 if others else left
                    )
                    decoded = request.decode(answer, endpoint.target)
                except (ServiceUnavailableError, DeadlineError, OverloadedError) as error:
                    endpoint.require_usable()
                    failure, endpoint = error, self.after(endpoint)
                except UnknownDatastoreError:
                    self.is_known = False
                    raise
                else:
                    self.preferred = endpoint
                    return decoded
            wait = pause * random.uniform(0.5, 1.0)
            if time.monotonic() + wait >= ends:
                assert failure is not None
                raise failure
            time.sleep(wait)
            pause = min(2 * pause, _MAX_PAUSE)

    def describe(self, ends: float) -> ServiceInfo:
        """Ask what the service is, and which of its datastores are asked.

        Raise as `ask`, or as `service_info`.
        """

        def decode(answer: bytes, target: str) -> ServiceInfo:
            response = parse(pb.DescribeResponse, answer, target)
            return service_info(response, self._names, self._tokenizer, target, live=self._live)

        return self.ask(Request("Describe", b"", decode), ends)

    def learn(self, info: ServiceInfo) -> None:
        """Make requests as a description says from now on; the first one fixes the tokenizer."""
        self._tokenizer = info.tokenizer
        self.requests, self.is_known = Requests(info, self._namespace), True

    def close(self) -> None:
        """Close all channels."""
        for endpoint in self.endpoints:
            endpoint.close()


class Partitions:
    """All partitions of a datastore, each a `PartitionClient`; a datastore that is whole has one.

    Thread-safe.
    """

    def __init__(self, partitions: Sequence[PartitionClient]) -> None:
        self.members = tuple(partitions)
        self._threads = (
            ThreadPoolExecutor(_MAX_THREADS, "rest-store partition")
            if len(partitions) > 1
            else None
        )

    def describe(self, ends: float) -> ServiceInfo:
        """Ask all partitions what they are.

        Raise as `PartitionClient.describe`, and as `require_one_build`.
        """
        infos = self._together(lambda partition: partition.describe(ends))
        if len(infos) > 1:
            require_one_build(infos, len(infos))
        for partition, info in zip(self.members, infos, strict=True):
            partition.learn(info)
        return infos[0] if len(infos) == 1 else combined_info(infos)

    def describe_partition(self, partition: PartitionClient, ends: float) -> None:
        """Ask one partition what it is, and learn it; raise as `describe`."""
        info = partition.describe(ends)
        if len(self.members) > 1:
            known = [
                other.requests.info
                for other in self.members
                if other.requests is not None and other is not partition
            ]
            require_one_build([*known, info], len(self.members))
        partition.learn(info)

    def ask(self, make: Callable[[Requests], Request[T]], ends: float) -> list[T]:
        """Ask all partitions at once what `make` makes, first what they are unless that is known.

        Return their answers.
        """
        if not all(partition.is_known for partition in self.members):
            self.describe(ends)

        def ask(partition: PartitionClient) -> T:
            assert partition.requests is not None
            return partition.ask(make(partition.requests), ends)

        return self._together(ask)

    def _together(self, call: Callable[[PartitionClient], T]) -> list[T]:
        if self._threads is None:
            return [call(self.members[0])]
        for partition in self.members:
            for endpoint in partition.endpoints:
                endpoint.require_usable()  # in a forked process the threads are gone, too
        return list(self._threads.map(call, self.members))

    def close(self) -> None:
        """Close all channels."""
        for partition in self.members:
            partition.close()
        if self._threads is not None:
            self._threads.shutdown(wait=False)
