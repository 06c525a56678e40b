"""The files of a frozen datastore that a service has, for copies of it."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

from rest_store.datastore.fetch import fetch
from rest_store.errors import ProtocolError, describe
from rest_store.loading.remote_files import RemoteFiles, scheme_of
from rest_store.service.channel import Dialer, Tls, parse_target, split_location
from rest_store.service.client.endpoint import Endpoint
from rest_store.service.client.requests import parse
from rest_store.v1 import datastore_pb2 as pb

# Deadline of one call, however much it sends. Another call goes on from there.
STREAM_SECONDS = 60.0


def fetched(
    location: str, cache: Path, *, token: str | None = None, tls: Tls | None = None
) -> Path:
    """Return the directory of a copy of a remote frozen datastore.

    Args:
        location: of the datastore, in a service or below a URL.
        cache: directory of all copies.
        token: bearer token of a service.
        tls: certificates of a service.

    Raises:
        RestStoreError: as `fetch`.
    """
    is_url = scheme_of(location) is not None
    reader = RemoteFiles(location) if is_url else ServiceFiles(location, token, tls)
    try:
        return fetch(reader, cache)
    finally:
        reader.close()


class ServiceFiles:
    """The files of a frozen datastore of a service; a `FileReader`.

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
        self._endpoint = Endpoint(parse_target(target), Dialer(token, tls))
        self.build = ""

    def read(self, name: str, offset: int) -> Iterator[bytes]:
        """Yield a file in pieces from the byte `offset` on.

        Raises:
            DeadlineError: a minute has passed.
            ServiceError: no answer, or a malformed one; the subclass says why.
            FetchError: the service has no such file, or the datastore was rebuilt since.
        """
        request = pb.FetchRequest(datastore=self._name, file=name, offset=offset, build=self.build)
        for answer in self._endpoint.stream("Fetch", request.SerializeToString(), STREAM_SECONDS):
            piece = parse(pb.FetchResponse, answer, self.location)
            require_checksum(piece.data, piece.checksum, f"{self.location}: a piece of {name}")
            yield piece.data

    def close(self) -> None:
        """Disconnect."""
        self._endpoint.close()


def require_checksum(data: bytes, expected: int, what: str) -> None:
    """Raise ProtocolError unless `data` has the checksum of the data that was sent."""
    actual = zlib.crc32(data)
    if actual != expected:
        raise ProtocolError(describe(what, "checksum", f"{actual:08x}", f"{expected:08x}"))
