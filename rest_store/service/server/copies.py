"""Answers to `Fetch`: the files of frozen datastores, for copies of them."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator
from functools import partial

from rest_store.datastore.datastore import Datastore
from rest_store.datastore.manifest import FILE_NAME, TOKENIZER_FILE_NAME
from rest_store.datastore.mapped_file import regular_file
from rest_store.errors import FetchError, describe
from rest_store.service.bearer_tokens import Grant
from rest_store.service.server.catalog import Catalog, HostedDatastore, reading
from rest_store.service.server.executor import Executor
from rest_store.service.server.request_checks import parse
from rest_store.v1 import datastore_pb2 as pb

_PIECE_BYTES = 1 << 20


class Copies:
    """Sends the files of the datastores of `catalog`. For use within one event loop.

    The files are those that were opened. Of each file that is being sent, one piece is in memory;
    the next one is read when it has gone.
    """

    def __init__(self, catalog: Catalog, executor: Executor) -> None:
        self._catalog = catalog
        self._executor = executor

    async def fetch(self, data: bytes, grant: Grant) -> AsyncIterator[bytes]:
        """Answer a FetchRequest.

        Raises:
            RestStoreError: of the table in service/statuses.py.
        """
        request = parse(pb.FetchRequest, data)
        served = self._catalog.one(request.datastore, live=False)
        content = await self._executor.run(
            partial(_content, served, request.file, request.build), small=False
        )
        offset = request.offset
        size = len(content)
        if offset > size:
            raise FetchError(describe("request", "offset", offset, f"at most {size}"))
        while True:
            piece = content[offset : offset + _PIECE_BYTES]
            yield await self._executor.run(partial(_message, served, piece), small=False)
            offset += len(piece)
            if offset >= size:
                return


def _content(served: HostedDatastore, name: str, build: str) -> memoryview:
    """Return the content of a file, mapped if it is large.

    Raises:
        FetchError: the datastore has no such file, or is of another build.
    """
    store = served.store
    assert isinstance(store, Datastore)
    manifest = store.manifest
    where = f"datastore {served.name!r}"
    if build not in ("", manifest.digest):
        expected = f"{build[:80]}, the build of the request"
        raise FetchError(describe("service", f"build of {where}", manifest.digest, expected))
    if name in ("", FILE_NAME):
        return memoryview(manifest.to_json().encode())
    if name == TOKENIZER_FILE_NAME and manifest.tokenizer_sha256 is not None:
        try:
            with regular_file(store.path / name) as opened:
                return memoryview(opened.read())
        except OSError as error:
            raise FetchError(
                f"service: {name} of {where} cannot be read ({error.strerror})"
            ) from None
    for file in store.files:
        if file.path.name == name:
            return memoryview(file.raw.data)
    raise FetchError(f"service: {where} has no file {name[:80]!r} in its manifest")


def _message(served: HostedDatastore, piece: memoryview) -> bytes:
    with reading([served]):
        checksum = zlib.crc32(piece)  # before the copy: this waits for a disk without the GIL
        return pb.FetchResponse(data=bytes(piece), checksum=checksum).SerializeToString()
