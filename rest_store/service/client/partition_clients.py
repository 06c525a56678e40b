"""The partitions of a datastore as a client reaches them: each is a group of equal endpoints."""

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

# Seconds before all endpoints are tried again. The pause doubles each time.
_FIRST_PAUSE = 0.005
_MAX_PAUSE = 1.0
_MAX_THREADS = 64  # of one client, for calls to several partitions at once


class PartitionClient:
    """Endpoints that serve the same partition. Thread-safe.

    They are tried in turn. The endpoint that answered last is tried first.

    Args:
        targets: the addresses of the endpoints, at least one.
        dialer: makes the channels.
        names: of the datastores to ask; empty: all datastores with the same tokenizer.
        tokenizer: the tokenizer in use; None: that of the datastores.
        namespace: of live datastores.
        group: that reads and writes live datastores.
        live: whether to ask only live datastores if `names` is empty.

    Attributes:
        endpoints: all of them.
        preferred: the endpoint to ask first.
        requests: makes requests that fit the latest description of the service; None: the service
            has not been described yet.
        is_known: whether this description still holds, as far as the answers have shown.
        unanswered: the number of steps of sessions, since the last answer, that got none in time.
        unanswered_at: when the latest of these was asked for (`time.monotonic`).
    """

    def __init__(
        self,
        targets: Sequence[str],
        dialer: Dialer,
        names: Sequence[str] = (),
        tokenizer: TokenizerIdentity | None = None,
        namespace: str = "",
        group: str = "",
        live: bool = False,
    ) -> None:
        self.endpoints = [Endpoint(target, dialer) for target in targets]
        self._names = names
        self._tokenizer = tokenizer
        self._namespace = namespace
        self._group = group
        self._live = live
        self.preferred = self.endpoints[0]
        self.requests: Requests | None = None
        self.is_known = False
        self.unanswered = 0
        self.unanswered_at = 0.0

    def after(self, endpoint: Endpoint) -> Endpoint:
        """Return the endpoint to ask when this one has failed; the same if there is no other."""
        following = self.endpoints.index(endpoint) + 1
        return self.endpoints[following % len(self.endpoints)]

    def ask(self, request: Request[T], ends: float) -> T:
        """Return the answer to a request.

        If an endpoint is away, late or overloaded, the next one is asked. If all of them are, they
        are asked again after a pause, until the deadline. This is safe: a request only reads, or
        does nothing more the second time.

        Args:
            request: for any of the endpoints.
            ends: deadline of all attempts together (`time.monotonic`).

        Raises:
            ServiceError: no answer, or one that is not valid; the subclass says why.
        """
        endpoint = self.preferred
        pause = _FIRST_PAUSE
        failure: RestStoreError | None = None
        while True:
            for untried in reversed(range(len(self.endpoints))):
                left = ends - time.monotonic()
                if left <= 0:
                    raise failure or DeadlineError(
                        f"{endpoint.target}: the deadline passed before the call"
                    )
                # A silent endpoint leaves half of the time to the others.
                timeout = left / 2 if untried > 0 else left
                try:
                    answer = endpoint.ask(request.method, request.message, timeout)
                    decoded = request.decode(answer, endpoint.target)
                except (ServiceUnavailableError, DeadlineError, OverloadedError) as error:
                    endpoint.require_usable()
                    failure = error
                    endpoint = self.after(endpoint)
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
        """Return the description of the service, and of the datastores to ask.

        Raises:
            RestStoreError: as `ask`, and as `service_info`.
        """

        def decode(answer: bytes, target: str) -> ServiceInfo:
            response = parse(pb.DescribeResponse, answer, target)
            return service_info(response, self._names, self._tokenizer, target, live=self._live)

        return self.ask(Request("Describe", b"", decode), ends)

    def learn(self, info: ServiceInfo) -> None:
        """Make requests that fit a description from now on; the first one fixes the tokenizer."""
        self._tokenizer = info.tokenizer
        self.requests = Requests(info, self._namespace, self._group)
        self.is_known = True

    def close(self) -> None:
        """Close all channels."""
        for endpoint in self.endpoints:
            endpoint.close()


class Partitions:
    """All partitions of a datastore. Thread-safe.

    A datastore that is served as a whole has one.

    Attributes:
        members: the partitions.
    """

    def __init__(self, partitions: Sequence[PartitionClient]) -> None:
        self.members = tuple(partitions)
        self._threads: ThreadPoolExecutor | None = None
        if len(partitions) > 1:
            self._threads = ThreadPoolExecutor(_MAX_THREADS, "rest-store partition")

    def describe(self, ends: float) -> ServiceInfo:
        """Return the description of all partitions together.

        Raises:
            RestStoreError: as `PartitionClient.describe`, and as `require_one_build`.
        """
        infos = self._together(lambda partition: partition.describe(ends))
        if len(infos) > 1:
            require_one_build(infos, len(infos))
        for partition, info in zip(self.members, infos, strict=True):
            partition.learn(info)
        return infos[0] if len(infos) == 1 else combined_info(infos)

    def describe_partition(self, partition: PartitionClient, ends: float) -> None:
        """Ask one partition for its description, and learn it; raises as `describe`."""
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
        """Return the answer of each partition; all of them are asked at once.

        Partitions that are not known are described first.

        Args:
            make: makes the request to a partition.
            ends: deadline (`time.monotonic`).
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
