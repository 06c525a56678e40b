"""What changes live datastores, from the bytes of a request to the bytes of its response; nothing here knows gRPC."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import numpy as np

from rest_store.errors import DocumentError, LimitError, OverloadedError, describe
from rest_store.service.server.catalog import Catalog
from rest_store.service.server.limits import Limits
from rest_store.service.server.live_served import Tokens
from rest_store.service.server.requests import parse
from rest_store.service.server.rights import Rights
from rest_store.v1 import datastore_pb2 as pb

_MOST_BYTES = 64 << 20  # of all requests to add that are not answered yet


class LiveHandlers:
    """Answers `Add` and `Delete` for the live datastores of `catalog`. For use within one event loop.

    Each method takes the bytes of a request and the rights of its call, returns the bytes of the response, and raises
    an error of the table in service/errors.py.
    """

    def __init__(self, catalog: Catalog, limits: Limits) -> None:
        self._catalog = catalog
        self._limits = limits
        self._bytes = 0  # of requests to add that are not answered yet

    async def add(self, data: bytes, rights: Rights) -> bytes:
        """Answer an AddRequest."""
        rights.require_write()  # before anything is made of the message
        size = len(data)
        if self._bytes + size > _MOST_BYTES:
            raise OverloadedError(f"service is overloaded: documents of {_MOST_BYTES} bytes wait; try again later")
        self._bytes += size
        try:
            request = parse(pb.AddRequest, data)
            served = self._catalog.live(request.datastore, request.tokenizer_fingerprint, rights)
            self._require_few("documents", len(request.documents))
            documents = [_tokens_of(document, place) for place, document in enumerate(request.documents)]
            ids = [document.id or uuid4().hex for document in request.documents]
            del request, data
            added = await asyncio.wrap_future(served.add(documents, ids))
        finally:
            self._bytes -= size
        return pb.AddResponse(ids=added).SerializeToString()

    async def delete(self, data: bytes, rights: Rights) -> bytes:
        """Answer a DeleteRequest."""
        rights.require_write()
        request = parse(pb.DeleteRequest, data)
        served = self._catalog.live(request.datastore, "", rights)
        self._require_few("ids", len(request.ids))
        deleted = await asyncio.wrap_future(served.delete(list(request.ids)))
        return pb.DeleteResponse(deleted=deleted).SerializeToString()

    def _require_few(self, what: str, number: int) -> None:
        if number > self._limits.max_contexts:
            raise LimitError(describe("request", f"number of {what}", number, f"at most {self._limits.max_contexts}"))


def _tokens_of(document: pb.Document, place: int) -> Tokens:
    """Return the tokens of the document at `place`; raise DocumentError if they are not whole."""
    if len(document.tokens) % 4:
        found = f"{len(document.tokens)} bytes"
        raise DocumentError(describe("add", f"document {place}", found, "tokens of 4 bytes each"))
    return np.frombuffer(document.tokens, "<i4")
