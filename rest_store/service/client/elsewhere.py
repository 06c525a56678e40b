"""Datastores that lie elsewhere, for copies and replicas of them:
what `rest_store.datastore.locations` reaches.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from rest_store.datastore.fetch import fetch
from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.datastore.validation import IntSequence
from rest_store.errors import DeadlineError, ProtocolError, ServiceUnavailableError, describe
from rest_store.live.added import AddedDocuments
from rest_store.live.upstream import Changes, DocumentRecord, Removal
from rest_store.loading.remote_files import RemoteFiles, scheme_of
from rest_store.service.channel import Dialer, Tls, split_location, target_of
from rest_store.service.client.endpoint import Endpoint
from rest_store.service.client.partition import PartitionClient, Partitions
from rest_store.service.client.requests import WRITE_SECONDS, Request, Requests, parse
from rest_store.v1 import datastore_pb2 as pb

# Of one call, however much it sends; what is not finished then goes on with the next.
_STREAM_SECONDS = 60.0

T = TypeVar("T")


def fetched(
    location: str, cache: Path, *, token: str | None = None, tls: Tls | None = None
) -> Path:
    """Return the directory in `cache` of the frozen datastore at
    `location`, in a service or below a URL.

    Raises:
        RestStoreError: as `fetch`.
    """
    reader = RemoteFiles(location) if scheme_of(location) else ServiceFiles(location, token, tls)
    try:
        return fetch(reader, cache)
    finally:
        reader.close()


class ServiceFiles:
    """The files of a frozen datastore of a service, a `rest_store.datastore.fetch.FileReader`.

    Args:
        location: `HOST:PORT/NAME` or `unix:/path#NAME`; without a name, the only frozen one.
        token: bearer token.
        tls: as for `DatastoreClient`.

    Raises:
        ArgumentError: the address, the token or a certificate is not valid.
    """

    def __init__(self, location: str, token: str | None = None, tls: Tls | None = None) -> None:
        self.location = location
        target, self._name = split_location(location)
        self._endpoint = Endpoint(target_of(target), Dialer(token, tls))
        self.build = ""

    def read(self, name: str, offset: int) -> Iterator[bytes]:
        """Yield a file in pieces from the byte `offset` on.

        Raises:
            DeadlineError: a minute has passed.
            ServiceError: no answer, or a malformed one; the subclass says why.
            FetchError: the service has no such file, or meanwhile those of another build.
        """
        request = pb.FetchRequest(datastore=self._name, file=name, offset=offset, build=self.build)
        for answer in self._endpoint.stream("Fetch", request.SerializeToString(), _STREAM_SECONDS):
            piece = parse(pb.FetchResponse, answer, self.location)
            _require_checksum(piece.data, piece.checksum, f"{self.location}: a piece of {name}")
            yield piece.data

    def close(self) -> None:
        """Disconnect."""
        self._endpoint.close()


class ServiceUpstream:
    """A live datastore of a service, a
    `rest_store.live.upstream.Upstream`, whose methods these are.

    Args:
        location: as for `ServiceFiles`; without a name, the only live one.
        token: likewise.
        tls: likewise.

    Raises:
        ArgumentError: the address, the token or a certificate is not valid.
    """

    def __init__(self, location: str, token: str | None = None, tls: Tls | None = None) -> None:
        self.location = location
        target, name = split_location(location)
        self._partition = PartitionClient(
            [target_of(target)], Dialer(token, tls), [name] if name else [], live=True
        )
        self._partitions = Partitions([self._partition])

    @property
    def tokenizer(self) -> TokenizerIdentity:
        """Identity of the tokenizer that the tokens are from.

        Raises DatastoreFormatError for a frozen datastore, too.
        """
        self._requests.live_name(None)
        return self._requests.info.tokenizer

    @property
    def _requests(self) -> Requests:
        if not self._partition.is_known:
            self._partitions.describe(time.monotonic() + WRITE_SECONDS)
        assert self._partition.requests is not None
        return self._partition.requests

    def changes(self, after: int, datastore_id: str) -> Iterator[Changes]:
        """Yield the changes after number `after` without an end.

        Raises:
            ServiceError: the connection is lost, the service says nothing for a minute, or a
                message is malformed, or has another checksum than it says; the subclass says why.
            TokenizerMismatchError: the datastore has another tokenizer by now.
        """
        while True:
            is_alive, request = False, self._requests.follow(after, datastore_id)
            try:
                for answer in self._partition.preferred.stream("Follow", request, _STREAM_SECONDS):
                    is_alive, changes = True, _changes(answer, self.location)
                    after, datastore_id = changes.last, changes.datastore_id
                    yield changes
                raise ServiceUnavailableError(f"{self.location}: the service ended the stream")
            except DeadlineError:  # of a service that is well a message comes every few seconds
                if not is_alive:
                    raise

    def add(
        self,
        documents: Sequence[IntSequence],
        ids: Sequence[str] | None,
        *,
        namespace: str,
        group: str,
        epoch: int,
    ) -> tuple[AddedDocuments, int]:
        """Add documents.

        Return their ids, and the number of a change with which all of them are visible.
        """
        return self._write(
            lambda requests: requests.add(documents, ids, None, namespace, group, epoch)
        )

    def delete(self, ids: Sequence[str], *, namespace: str) -> tuple[int, int]:
        """Delete documents.

        Return how many there were, and the number of a change with which they are gone.
        """
        return self._write(lambda requests: requests.delete(ids, None, namespace))

    def _write(self, make: Callable[[Requests], Request[T]]) -> T:
        [answer] = self._partitions.ask(make, time.monotonic() + WRITE_SECONDS)
        return answer

    def close(self) -> None:
        """Disconnect; `changes` ends with an error."""
        self._partitions.close()


upstream = ServiceUpstream  # under this name it is reached


def _changes(answer: bytes, where: str) -> Changes:
    """Return the changes of a message, which whoever applies them checks.

    Raise ProtocolError for what is none.
    """
    response = parse(pb.FollowResponse, answer, where)
    _require_checksum(response.changes, response.checksum, f"{where}: a message of changes")
    message = parse(pb.Changes, response.changes, where)
    added = [
        DocumentRecord(
            one.number, one.namespace, one.digest, one.added, one.group, one.epoch, one.symbols
        )
        for one in message.added
    ]
    removed = [Removal(one.number, one.first, one.last, one.deleted) for one in message.removed]
    return Changes(message.datastore_id, message.first, message.last, message.head, added, removed)


def _require_checksum(data: bytes, expected: int, what: str) -> None:
    """Raise ProtocolError unless `data` is what was sent."""
    if (found := zlib.crc32(data)) != expected:
        raise ProtocolError(describe(what, "checksum", f"{found:08x}", f"{expected:08x}"))
