"""Answers to `Add` and `Delete`, from bytes to bytes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any, TypeVar

from rest_store.datastore.validation import document_ids
from rest_store.errors import StorageError, WriterError
from rest_store.live.added_documents import AddedDocuments
from rest_store.service.bearer_tokens import Grant
from rest_store.service.server.catalog import Catalog, HostedDatastore
from rest_store.service.server.request_checks import parse, parse_document, require_few
from rest_store.service.server.service_limits import Budget, ServiceLimits
from rest_store.v1 import datastore_pb2 as pb

_MAX_BYTES = 64 << 20  # of all requests that wait to be written
# Bytes that a request, and each of its documents or ids, takes beside the message.
_ITEM_BYTES = 1 << 10
_THREADS = 4  # writers, which share a commit

T = TypeVar("T")
W = TypeVar("W", pb.AddRequest, pb.DeleteRequest)

_log = logging.getLogger(__name__)


class Writes:
    """Answers requests that change live datastores of `catalog`. For use within one event loop.

    It writes in threads of its own, so that drafts do not wait for a disk.

    Each method takes the bytes of a request and the grant of its call, and returns the bytes of the
    response. It raises errors of the table in service/statuses.py.
    """

    def __init__(self, catalog: Catalog, limits: ServiceLimits) -> None:
        self._catalog = catalog
        self._limits = limits
        self._waiting = Budget("bytes that wait to be written", _MAX_BYTES)
        self._threads = ThreadPoolExecutor(_THREADS, "write")

    def close(self) -> None:
        """Wait for the writes in progress.

        Writes that have not begun are dropped: nobody waits for their results.
        """
        self._threads.shutdown(cancel_futures=True)

    async def add(self, data: bytes, grant: Grant) -> bytes:
        """Answer an AddRequest."""
        request = self._parsed(pb.AddRequest, data, grant)
        served = self._catalog.one(request.datastore, request.tokenizer_fingerprint, live=True)
        require_few("documents", len(request.documents), self._limits.max_contexts)
        documents = [
            parse_document(document, number) for number, document in enumerate(request.documents)
        ]
        group = request.group
        grant.require_group(group)
        ids = [document.id for document in request.documents]
        stored_ids = _stored_ids(ids, grant, group)
        own_ids = dict(zip(stored_ids, ids, strict=True))
        served = served.in_namespace(request.namespace)
        epoch = request.epoch
        del request  # frees the memory of a message while its work waits

        def write(live: Any) -> AddedDocuments:
            added: AddedDocuments = live.add(documents, stored_ids, group=group, epoch=epoch)
            return added

        size = len(data) + _ITEM_BYTES * (1 + len(ids))
        added, sequence = await self._write(served, write, size)
        added_ids = [own_ids[id] for id in added.added]
        return pb.AddResponse(added=added_ids, sequence=sequence).SerializeToString()

    async def delete(self, data: bytes, grant: Grant) -> bytes:
        """Answer a DeleteRequest."""
        request = self._parsed(pb.DeleteRequest, data, grant)
        served = self._catalog.one(request.datastore, live=True)
        require_few("ids", len(request.ids), self._limits.max_contexts)
        served = served.in_namespace(request.namespace)
        ids = list(request.ids)
        most = len(ids)
        if grant.groups is not None:  # an id is one document in each of them
            stored = [_stored_ids(ids, grant, group) for group in sorted(grant.groups)]
            ids = list(chain.from_iterable(stored))

        def write(live: Any) -> int:
            deleted: int = live.delete(ids)
            return deleted

        size = len(data) + _ITEM_BYTES * (1 + len(ids))
        deleted, sequence = await self._write(served, write, size)
        return pb.DeleteResponse(deleted=min(deleted, most), sequence=sequence).SerializeToString()

    def _parsed(self, kind: type[W], data: bytes, grant: Grant) -> W:
        """Return the message of a call that may write; otherwise raise before it is parsed."""
        grant.require_write()
        request = parse(kind, data)
        grant.require_namespace(request.namespace)
        return request

    async def _write(
        self, served: HostedDatastore, write: Callable[[Any], T], size: int
    ) -> tuple[T, int]:
        """Run a write in a thread; it goes on if the client leaves.

        Args:
            served: a live datastore, which `write` is called with.
            write: the write.
            size: bytes that count as waiting until the write is done.

        Returns:
            The result, and the number of a change with which it is visible.
        """
        live: Any = served.store
        self._waiting.take(size)
        done = asyncio.get_running_loop().run_in_executor(self._threads, write, live)
        done.add_done_callback(lambda _: self._waiting.give_back(size))
        try:
            return await asyncio.shield(done), live.newest_change
        except (StorageError, WriterError) as error:
            _log.warning("datastore %s: %s", served.name, error)
            # Clients do not learn the path.
            text = str(error).replace(str(live.path), f"datastore {served.name!r}")
            raise StorageError(text) from None


def _stored_ids(ids: Sequence[str], grant: Grant, group: str) -> list[str]:
    """Return the ids under which the documents of a call are stored.

    A token that is limited to groups has ids of its own in each of them. Else an id, which may be a
    digest of the document, would tell it whether another group has the same one.
    """
    if grant.groups is None:
        return list(ids)
    document_ids("request", ids)  # the stored ones are never empty
    return [f"{len(group)}:{group}/{id}" for id in ids]
