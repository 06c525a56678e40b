"""Handlers of `Add` and `Delete`, from the bytes of a request to those of its response; nothing here knows gRPC."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from functools import partial
from typing import TypeVar
from uuid import uuid4

import numpy as np

from rest_store.errors import DocumentError, LimitError, MessageSizeError, OverloadedError, describe
from rest_store.service.server.catalog import Catalog
from rest_store.service.server.hosted_live_datastore import Tokens
from rest_store.service.server.limits import Limits
from rest_store.service.server.requests import M, parse, require_few_fields
from rest_store.service.server.rights import Rights
from rest_store.v1 import datastore_pb2 as pb

_MOST_BYTES = 64 << 20  # of all requests that are not done yet
_PART_BYTES = 1 << 10  # that a request, and each of its documents or ids, counts for beside its message
_OTHER_FIELDS = 16  # of a request beside its documents or ids; at present there are two

T = TypeVar("T")


class LiveHandlers:
    """Answers `Add` and `Delete` for the live datastores of `catalog`. For use within one event loop.

    Each method takes the bytes of a request and the rights of its call, returns the bytes of the response, and raises
    an error of the table in service/errors.py.
    """

    def __init__(self, catalog: Catalog, limits: Limits) -> None:
        self._catalog = catalog
        self._limits = limits
        self._bytes = 0  # of requests that are not done yet

    async def add(self, data: bytes, rights: Rights) -> bytes:
        """Answer an AddRequest."""
        rights.require_write()
        request = self._parsed(pb.AddRequest, data)
        served = self._catalog.live(request.datastore, request.tokenizer_fingerprint, rights)
        self._require_few("documents", len(request.documents))
        documents = [_tokens_of(document, place) for place, document in enumerate(request.documents)]
        ids = [document.id or uuid4().hex for document in request.documents]
        response = pb.AddResponse(ids=ids).SerializeToString()
        if len(response) > self._limits.max_message_bytes:  # while nothing has been added
            expected = f"at most {self._limits.max_message_bytes} bytes"
            raise MessageSizeError(describe("response", "size", f"{len(response)} bytes", expected))
        size = len(data) + _PART_BYTES * (1 + len(ids))
        self._require_room(size)
        del request, data
        await self._carried_out(served.add(documents, ids), size)
        return response

    async def delete(self, data: bytes, rights: Rights) -> bytes:
        """Answer a DeleteRequest."""
        rights.require_write()
        request = self._parsed(pb.DeleteRequest, data)
        served = self._catalog.live(request.datastore, "", rights)
        self._require_few("ids", len(request.ids))
        size = len(data) + _PART_BYTES * (1 + len(request.ids))
        self._require_room(size)
        deleted = await self._carried_out(served.delete(list(request.ids)), size)
        return pb.DeleteResponse(deleted=deleted).SerializeToString()

    async def _carried_out(self, writing: Future[T], size: int) -> T:
        """Return the result of `writing`. It goes on if the client leaves, and `size` counts until it is done."""
        self._bytes += size
        done = asyncio.wrap_future(writing)
        done.add_done_callback(partial(self._give_back, size))
        return await asyncio.shield(done)

    def _give_back(self, size: int, _: object) -> None:
        self._bytes -= size

    def _require_room(self, size: int) -> None:
        if self._bytes + size > _MOST_BYTES:
            raise OverloadedError(f"service is overloaded: writing of {_MOST_BYTES} bytes waits; try again later")

    def _parsed(self, kind: type[M], data: bytes) -> M:
        """Return a message; one that is too large is refused before it is parsed."""
        self._require_room(len(data))
        require_few_fields(data, self._limits.max_contexts + _OTHER_FIELDS)
        return parse(kind, data)

    def _require_few(self, what: str, number: int) -> None:
        if number > self._limits.max_contexts:
            raise LimitError(describe("request", f"number of {what}", number, f"at most {self._limits.max_contexts}"))


def _tokens_of(document: pb.Document, place: int) -> Tokens:
    """Return the tokens of the document at `place`; raise DocumentError if they are not whole."""
    if len(document.tokens) % 4:
        found = f"{len(document.tokens)} bytes"
        raise DocumentError(describe("add", f"document {place}", found, "tokens of 4 bytes each"))
    return np.frombuffer(document.tokens, "<i4")
