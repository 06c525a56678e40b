"""Answers to `Add` and `Delete`, from the bytes of a request to those of its response."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from rest_store.errors import StorageError, WriterError
from rest_store.service.bearer_tokens import Grant
from rest_store.service.server.catalog import Catalog, HostedDatastore
from rest_store.service.server.request_checks import parse, parse_document, require_few
from rest_store.service.server.service_limits import Budget, ServiceLimits
from rest_store.v1 import datastore_pb2 as pb

_MAX_BYTES = 64 << 20  # of all requests that are not done yet
# That a request, and each of its documents or ids, counts for beside its message.
_PART_BYTES = 1 << 10
_THREADS = 4  # callers that share a commit

T = TypeVar("T")
W = TypeVar("W", pb.AddRequest, pb.DeleteRequest)

_log = logging.getLogger(__name__)


class Writes:
    """Answers requests that change live datastores of `catalog`. For use within one event loop.

    It writes in threads of its own, so drafts do not wait for a disk.

    Each method takes the bytes of a request and what its call is allowed, returns the bytes of the
    response, and raises an error of the table in service/statuses.py.
    """

    def __init__(self, catalog: Catalog, limits: ServiceLimits) -> None:
        self._catalog = catalog
        self._limits = limits
        self._waiting = Budget("bytes that wait to be written", _MAX_BYTES)
        self._threads = ThreadPoolExecutor(_THREADS, "write")

    def close(self) -> None:
        """Wait for the writes in progress.

        Those that have not begun are left out: nobody waits for their results.
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
        ids = [document.id for document in request.documents]
        served, options = (
            served.in_namespace(request.namespace),
            {"group": request.group, "epoch": request.epoch},
        )
        del request
        added, sequence = await self._carried_out(
            served, lambda live: live.add(documents, ids, **options), data, ids
        )
        return pb.AddResponse(added=added.added, sequence=sequence).SerializeToString()

    async def delete(self, data: bytes, grant: Grant) -> bytes:
        """Answer a DeleteRequest."""
        request = self._parsed(pb.DeleteRequest, data, grant)
        served = self._catalog.one(request.datastore, live=True)
        require_few("ids", len(request.ids), self._limits.max_contexts)
        ids, served = list(request.ids), served.in_namespace(request.namespace)
        deleted, sequence = await self._carried_out(
            served, lambda live: live.delete(ids), data, ids
        )
        return pb.DeleteResponse(deleted=deleted, sequence=sequence).SerializeToString()

    def _parsed(self, kind: type[W], data: bytes, grant: Grant) -> W:
        """Return a message; of one that may not write, nothing is made."""
        grant.require_write()
        request = parse(kind, data)
        grant.require_namespace(request.namespace)
        return request

    async def _carried_out(
        self, served: HostedDatastore, write: Callable[[Any], T], data: bytes, parts: Sequence[str]
    ) -> tuple[T, int]:
        """Return the result of a write, and the number of a change with which it is visible.

        It goes on if the client leaves, and the size of its message counts until it is done.
        """
        live: Any = served.store
        size = len(data) + _PART_BYTES * (1 + len(parts))
        self._waiting.take(size)
        done = asyncio.get_running_loop().run_in_executor(self._threads, write, live)
        done.add_done_callback(lambda _: self._waiting.give_back(size))
        try:
            return await asyncio.shield(done), live.newest_change
        except (StorageError, WriterError) as error:
            _log.warning("datastore %s: %s", served.name, error)
            # Clients are not told the path.
            text = str(error).replace(str(live.path), f"datastore {served.name!r}")
            raise StorageError(text) from None
