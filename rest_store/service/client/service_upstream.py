"""A live datastore of a service, which replicas follow."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.datastore.validation import IntSequence
from rest_store.errors import DeadlineError, ServiceUnavailableError
from rest_store.live.added_documents import AddedDocuments
from rest_store.live.records import Changes, DocumentRecord, Removal
from rest_store.service.channel import Dialer, Tls, parse_target, split_location
from rest_store.service.client.partition_clients import PartitionClient, Partitions
from rest_store.service.client.requests import WRITE_SECONDS, Request, Requests, parse
from rest_store.service.client.service_files import STREAM_SECONDS, require_checksum
from rest_store.v1 import datastore_pb2 as pb

T = TypeVar("T")


class ServiceUpstream:
    """A live datastore of a service; an `Upstream`, whose methods these are.

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
            [parse_target(target)], Dialer(token, tls), [name] if name else [], live=True
        )
        self._partitions = Partitions([self._partition])

    @property
    def tokenizer(self) -> TokenizerIdentity:
        """The tokenizer of the datastore. The first use asks the service.

        Raises:
            DatastoreFormatError: the datastore is frozen.
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
        """Yield the changes after number `after`, without an end.

        Raises:
            ServiceError: the connection is lost, the service is silent for a minute, or a message
                is malformed or has another checksum; the subclass says why.
            TokenizerMismatchError: the datastore has another tokenizer by now.
        """
        while True:
            is_alive = False
            request = self._requests.follow(after, datastore_id)
            try:
                for answer in self._partition.preferred.stream("Follow", request, STREAM_SECONDS):
                    is_alive = True
                    changes = _changes(answer, self.location)
                    after = changes.last
                    datastore_id = changes.datastore_id
                    yield changes
                raise ServiceUnavailableError(f"{self.location}: the service ended the stream")
            except DeadlineError:
                # A healthy service sends a message every few seconds.
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

        Returns:
            Their ids, and the number of a change with which all of them are visible.
        """
        return self._write(
            lambda requests: requests.add(documents, ids, None, namespace, group, epoch)
        )

    def delete(self, ids: Sequence[str], *, namespace: str) -> tuple[int, int]:
        """Delete documents.

        Returns:
            The number of documents deleted, and that of a change with which they are gone.
        """
        return self._write(lambda requests: requests.delete(ids, None, namespace))

    def _write(self, make: Callable[[Requests], Request[T]]) -> T:
        [answer] = self._partitions.ask(make, time.monotonic() + WRITE_SECONDS)
        return answer

    def close(self) -> None:
        """Disconnect; `changes` ends with an error."""
        self._partitions.close()


def _changes(answer: bytes, where: str) -> Changes:
    """Return the changes of a message; raise ProtocolError if its bytes are malformed.

    The replica validates the changes when it applies them.
    """
    response = parse(pb.FollowResponse, answer, where)
    require_checksum(response.changes, response.checksum, f"{where}: a message of changes")
    message = parse(pb.Changes, response.changes, where)
    added = [
        DocumentRecord(
            number=document.number,
            namespace=document.namespace,
            digest=document.digest,
            added=document.added,
            group=document.group,
            epoch=document.epoch,
            symbols=document.symbols,
        )
        for document in message.added
    ]
    removed = [
        Removal(removal.number, removal.first, removal.last, removal.deleted)
        for removal in message.removed
    ]
    return Changes(
        datastore_id=message.datastore_id,
        first=message.first,
        last=message.last,
        head=message.head,
        added=added,
        removed=removed,
        shared_after=message.shared_after or 1,
    )
