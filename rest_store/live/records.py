"""The records of a live datastore, as its file stores them and as its replicas receive them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, TypeVar

_SEGMENT_NAME = re.compile("segment-[0-9a-f]{32}")
_MAX_TIME = 2.5e11  # seconds since 1970; later years have no date


class DocumentRecord(NamedTuple):
    """A document as it is stored.

    Attributes:
        number: the number of its addition. One counter numbers the additions and removals of a live
            datastore, in their order.
        namespace: only queries of this namespace read the document.
        digest: 16 bytes that stand for its id and namespace.
        added: the time of its addition, in seconds since 1970.
        group: a label that documents share, such as the prompt that they answer; "": none.
        epoch: the epoch of the model that wrote it.
        symbols: its tokens in the bytes of a tokens file, without a separator.
    """

    number: int
    namespace: str
    digest: bytes
    added: float
    group: str
    epoch: int
    symbols: bytes


class Removal(NamedTuple):
    """The removal of all documents `first .. last`, of every namespace.

    Attributes:
        number: the number of the removal, greater than `last`.
        first: the number of the first document.
        last: the number of the last document.
        deleted: True: they were deleted, and no file may hold them. False: they were evicted.
    """

    number: int
    first: int
    last: int
    deleted: bool


class Changes(NamedTuple):
    """All changes with numbers `first .. last`, except for documents that were removed later.

    Attributes:
        datastore_id: the id of the datastore since the first change of its latest opening; "":
            the datastore made these changes itself.
        first: the number of the first change. 1 although the replica has earlier changes: these
            changes replace everything that it holds.
        last: the number of the last change; `first - 1` if there are none.
        head: the number of the datastore's newest change; `head - last` changes are still to come.
        added: documents, by number.
        removed: removals, by number.
        shared_after: how many groups have to write a text before queries tell others of it, at an
            upstream.
    """

    datastore_id: str
    first: int
    last: int
    head: int
    added: Sequence[DocumentRecord]
    removed: Sequence[Removal]
    shared_after: int = 1


class SegmentRecord(NamedTuple):
    """A segment in files: those of the documents `first .. last` that still exist.

    Attributes:
        name: the name of its files.
        namespace: the namespace of its documents.
        first: the number of the first document.
        last: the number of the last document.
        oldest: the time when the first document was added, in seconds since 1970.
        newest: the time when the last document was added.
        sha256: the checksum of its tokens. The header of the suffixes file repeats it.
    """

    name: str
    namespace: str
    first: int
    last: int
    oldest: float
    newest: float
    sha256: bytes


class _InNamespace(Protocol):
    @property
    def namespace(self) -> str: ...


Item = TypeVar("Item", bound=_InNamespace)


def id_digest(id: str, namespace: str) -> bytes:
    """Return the 16 bytes that stand for an id of a namespace. The id itself is not stored."""
    return hashlib.blake2b(f"{namespace}\0{id}".encode(), digest_size=16).digest()


def group_by_namespace(items: Iterable[Item]) -> dict[str, list[Item]]:
    """Return the items of each namespace, in their order."""
    groups: dict[str, list[Item]] = {}
    for item in items:
        groups.setdefault(item.namespace, []).append(item)
    return groups


def is_time(value: object) -> bool:
    """Return whether `value` is a number of seconds since 1970 that has a date."""
    return isinstance(value, float) and 0 <= value < _MAX_TIME


def is_segment_record(row: Sequence[object]) -> bool:
    """Return whether a row of the file has the fields of a SegmentRecord."""
    name, namespace, first, last, oldest, newest, sha256 = row
    has_names = (
        isinstance(name, str)
        and _SEGMENT_NAME.fullmatch(name) is not None
        and isinstance(namespace, str)
    )
    has_numbers = isinstance(first, int) and isinstance(last, int) and first <= last
    has_times = is_time(oldest) and is_time(newest)
    return has_names and has_numbers and has_times and isinstance(sha256, bytes)
