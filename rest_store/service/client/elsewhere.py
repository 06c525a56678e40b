"""Datastores that lie elsewhere, for copies and replicas of them: what `rest_store.datastore.locations` reaches."""

from __future__ import annotations

import hashlib
import math
import time
import zlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from rest_store.datastore.fetch import fetch
from rest_store.datastore.header import token_width
from rest_store.datastore.manifest import MAX_SIZE
from rest_store.datastore.shard import decode_symbols
from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.datastore.validation import IntSequence, label
from rest_store.errors import ProtocolError, TokenRangeError, describe
from rest_store.live.added import AddedDocuments
from rest_store.live.upstream import Changes, Document, Removal
from rest_store.loading.remote_files import RemoteFiles, scheme_of
from rest_store.service.channel import Dialer, Tls, target_of
from rest_store.service.client.endpoint import Endpoint
from rest_store.service.client.part import Part
from rest_store.service.client.requests import Requests, parse
from rest_store.service.client.targets import split_location
from rest_store.v1 import datastore_pb2 as pb

_SECONDS = 10.0  # for a call with one answer
_DIGEST_BYTES = 16


def fetched(location: str, cache: Path, *, token: str | None = None, tls: Tls | bool | None = None) -> Path:
    """Return the directory in `cache` of the frozen datastore at `location`, in a service or below a URL.

    Raises:
        RestStoreError: as `fetch`.
    """
    reader = RemoteFiles(location) if scheme_of(location) else ServiceFiles(location, token, tls)
    try:
        return fetch(reader, cache)
    finally:
        reader.close()


def upstream(location: str, *, token: str | None = None, tls: Tls | bool | None = None) -> ServiceUpstream:
    """Return the live datastore at `location`; raise TargetError unless that is in a service."""
    return ServiceUpstream(location, token, tls)


class ServiceFiles:
    """The files of a frozen datastore of a service, a `rest_store.datastore.fetch.FileReader`.

    Args:
        location: `HOST:PORT/NAME` or `unix:/path#NAME`; without a name, the only frozen one.
        token: bearer token.
        tls: as for `DatastoreClient`.

    Raises:
        TargetError: the address, the token or a certificate is not valid.
    """

    def __init__(self, location: str, token: str | None, tls: Tls | bool | None) -> None:
        self.location = location
        target, self._name = split_location(location)
        self._endpoint = Endpoint(target_of(target), Dialer(token, tls))
        self._build = ""

    def manifest(self) -> bytes:
        """Return the content of `manifest.json`, whose build `read` then reads; raises as `read`."""
        content = bytearray()
        for piece in self.read("", 0):
            content += piece
            if len(content) > MAX_SIZE:
                raise ProtocolError(describe(self.location, "manifest", "endless", f"at most {MAX_SIZE} bytes"))
        self._build = f"sha256:{hashlib.sha256(content).hexdigest()}"
        return bytes(content)

    def read(self, name: str, offset: int) -> Iterator[bytes]:
        """Yield a file in pieces from the byte `offset` on.

        Raises:
            ServiceError: no answer, or a malformed one; the subclass says why.
            FetchError: the service has no such file, or meanwhile those of another build.
        """
        request = pb.FetchRequest(datastore=self._name, file=name, offset=offset, build=self._build)
        for answer in self._endpoint.stream("Fetch", request.SerializeToString()):
            piece = parse(pb.FetchResponse, answer, self.location)
            _require_checksum(piece.data, piece.checksum, f"{self.location}: a piece of {name or 'the manifest'}")
            yield piece.data

    def close(self) -> None:
        """Disconnect."""
        self._endpoint.close()


class ServiceUpstream:
    """A live datastore of a service, a `rest_store.live.upstream.Upstream`, whose methods these are.

    Args:
        location, token, tls: as for `ServiceFiles`; without a name, the only live one.

    Raises:
        TargetError: the address, the token or a certificate is not valid.
    """

    def __init__(self, location: str, token: str | None, tls: Tls | bool | None) -> None:
        self.location = location
        target, name = split_location(location)
        self._part = Part([target_of(target)], Dialer(token, tls), [name] if name else [])

    @property
    def tokenizer(self) -> TokenizerIdentity:
        """Identity of the tokenizer that the tokens are from."""
        return self._requests(time.monotonic() + _SECONDS).tokenizer

    def _requests(self, ends: float) -> Requests:
        """Return what makes requests; raise as `Requests.live_name` without one to write to."""
        if self._part.requests is None:
            self._part.learn(self._part.describe(ends))
        assert self._part.requests is not None
        self._part.requests.live_name(None)
        return self._part.requests

    def changes(self, after: int, datastore_id: str) -> Iterator[Changes]:
        """Yield the changes after number `after` without an end.

        Raises:
            ServiceError: the connection is lost, or a message is malformed, has another checksum than it says, or
                numbers that are not the next ones; the subclass says why.
            TokenizerMismatchError: the datastore has another tokenizer by now.
            TokenRangeError: a document has tokens of another one.
        """
        requests = self._requests(time.monotonic() + _SECONDS)
        for answer in self._part.first.stream("Follow", requests.follow(after, datastore_id)):
            changes = read_changes(answer, after, datastore_id, requests.vocabulary_size, self.location)
            yield changes
            after, datastore_id = changes.last, changes.datastore_id

    def add(
        self, documents: Sequence[IntSequence], ids: Sequence[str] | None, *, namespace: str, group: str, epoch: int
    ) -> tuple[AddedDocuments, int]:
        """Add documents; return their ids, and the number of a change with which all of them are visible."""
        ends = time.monotonic() + _SECONDS
        requests = self._requests(ends)
        return self._part.ask(requests.add(documents, ids, None, namespace, group, epoch), ends)

    def delete(self, ids: Sequence[str], *, namespace: str) -> tuple[int, int]:
        """Delete documents; return how many there were, and the number of a change with which they are gone."""
        ends = time.monotonic() + _SECONDS
        return self._part.ask(self._requests(ends).delete(ids, None, namespace), ends)

    def delete_before(self, epoch: int, *, namespace: str) -> tuple[int, int]:
        """Delete the documents of earlier epochs, likewise."""
        ends = time.monotonic() + _SECONDS
        return self._part.ask(self._requests(ends).delete([], None, namespace, epoch), ends)

    def close(self) -> None:
        """Disconnect; `changes` ends with an error."""
        self._part.close()


def read_changes(answer: bytes, after: int, datastore_id: str, vocabulary_size: int, where: str) -> Changes:
    """Return the changes of a message.

    Args:
        answer: the message.
        after: number of the newest change before.
        datastore_id: of that.
        vocabulary_size: ids are `0 .. vocabulary_size - 1`.
        where: who sent it, for messages.

    Raises:
        ProtocolError: it is malformed, has another checksum, or does not follow the changes before.
        TokenRangeError: a document has tokens outside the vocabulary.
        DocumentError: a namespace or a group is none.
    """
    response = parse(pb.FollowResponse, answer, where)
    _require_checksum(response.changes, response.checksum, f"{where}: a message of changes")
    message = parse(pb.Changes, response.changes, where)
    first, last, head = message.first, message.last, message.head
    follows = first == after + 1 and (datastore_id or message.datastore_id) == message.datastore_id
    if not message.datastore_id or not (first == 1 or follows) or not first - 1 <= last <= head:
        found = f"{first}..{last} of {head}"
        raise ProtocolError(describe(where, "numbers of changes", found, f"those from {after + 1} on, or all"))
    added = [
        Document(one.number, one.namespace, one.digest, one.added, one.group, one.epoch, one.symbols)
        for one in message.added
    ]
    removed = [Removal(one.number, one.first, one.last, one.deleted) for one in message.removed]
    for some in (added, removed):
        numbers = [first - 1, *(one.number for one in some), last + 1]
        if not all(before < number for before, number in pairwise(numbers)):
            raise ProtocolError(describe(where, "numbers of changes", "others", f"ascending ones in {first}..{last}"))
    if not all(0 < one.first <= one.last < one.number for one in removed):
        raise ProtocolError(describe(where, "a removal", "of later documents", "one of documents before it"))
    width = token_width(vocabulary_size)
    for document in added:
        is_whole = len(document.symbols) > 0 and len(document.symbols) % width == 0
        if not is_whole or len(document.digest) != _DIGEST_BYTES or not math.isfinite(document.added):
            raise ProtocolError(describe(where, f"document {document.number}", "malformed", "as it is stored"))
        label(where, "a namespace", document.namespace)
        label(where, "a group", document.group)
    symbols = decode_symbols(np.frombuffer(b"".join(one.symbols for one in added), np.uint8), width)
    if (greatest := int(symbols.max(initial=0))) >= vocabulary_size:
        raise TokenRangeError(describe(where, "token id in documents", greatest, f"0..{vocabulary_size - 1}"))
    return Changes(message.datastore_id, first, last, head, added, removed)


def _require_checksum(data: bytes, expected: int, what: str) -> None:
    """Raise ProtocolError unless `data` is what was sent."""
    if (found := zlib.crc32(data)) != expected:
        raise ProtocolError(describe(what, "checksum", f"{found:08x}", f"{expected:08x}"))
