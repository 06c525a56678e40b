"""An upstream in this process, which serves replicas as a service does, with faults for tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.errors import ServiceUnavailableError
from rest_store.live.added_documents import AddedDocuments
from rest_store.live.live_datastore import LiveDatastore
from rest_store.live.records import Changes
from rest_store.service.client import service_upstream

LOCATION = "host:50051/chat"


class Service:
    """Has a live datastore, and hands out upstreams of it.

    Attributes:
        live: the datastore; None: the service is away.
        tokenizer: that it says it has; None: that of the datastore.
        change: what becomes of changes on their way.
        max_bytes: of one message.
    """

    def __init__(self, live: LiveDatastore | None) -> None:
        self.live = live
        self.tokenizer: TokenizerIdentity | None = None
        self.change: Callable[[Changes], Changes] = lambda changes: changes
        self.max_bytes = 1 << 20

    def require(self) -> LiveDatastore:
        if self.live is None:
            raise ServiceUnavailableError(f"{LOCATION}: cannot be reached")
        return self.live

    def upstream(self, location: str, **access: Any) -> InProcess:
        return InProcess(self, location)


class InProcess:
    """One replica's upstream."""

    def __init__(self, service: Service, location: str) -> None:
        self.location = location
        self._service = service
        self._closed = threading.Event()

    @property
    def tokenizer(self) -> TokenizerIdentity:
        live = self._service.require()
        return self._service.tokenizer or live.tokenizer

    def changes(self, after: int, datastore_id: str) -> Iterator[Changes]:
        live = self._service.require()
        while not self._closed.is_set() and self._service.live is live:
            changes = live.changes(after, datastore_id, max_bytes=self._service.max_bytes)
            after = changes.last
            datastore_id = changes.datastore_id
            yield self._service.change(changes)
            live.wait_for_change(after, 0.02)
        raise ServiceUnavailableError(f"{self.location}: disconnected")

    def add(
        self,
        documents: Sequence[Any],
        ids: Sequence[str] | None,
        *,
        namespace: str,
        group: str,
        epoch: int,
    ) -> tuple[AddedDocuments, int]:
        live = self._service.require()
        return live.namespace(namespace).add(
            documents, ids, group=group, epoch=epoch
        ), live.newest_change

    def delete(self, ids: Sequence[str], *, namespace: str) -> tuple[int, int]:
        live = self._service.require()
        return live.namespace(namespace).delete(ids), live.newest_change

    def close(self) -> None:
        self._closed.set()


def serve(patch: pytest.MonkeyPatch, live: LiveDatastore | None) -> Service:
    """Have `LOCATION` lead to a live datastore of this process."""
    service = Service(live)
    patch.setattr(service_upstream, "ServiceUpstream", service.upstream)
    return service
