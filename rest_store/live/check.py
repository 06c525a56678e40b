"""A full read of a live datastore: its documents, its segments, and the segments against the documents."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from rest_store.datastore.check import Sort, check_shard
from rest_store.datastore.header import separator_id, token_width
from rest_store.datastore.manifest import DOCUMENTS_FILE_NAME
from rest_store.datastore.shard import Shard
from rest_store.datastore.store import Snapshot
from rest_store.errors import ChecksumError, DatastoreError, StorageError, describe
from rest_store.live.documents import Documents, SegmentRecord
from rest_store.live.segment import open_segment


def check_live(
    path: Path, *, sort: Sort | None = None, announce: Callable[[str], object] = lambda stage: None
) -> tuple[int, int]:
    """Verify the documents of a live datastore, and that its segments in files hold them, sorted.

    Another process may go on writing: a segment that it replaces meanwhile is left out. Damaged segments are no loss:
    opening the datastore for writing sorts them anew from the documents.

    Args:
        path: its directory.
        sort: as in `check_datastore`.
        announce: as in `check_datastore`.

    Returns:
        How many segments in files, and tokens of documents, were verified.

    Raises:
        StorageError: documents cannot be read.
        DatastoreError: the subclass that names the first fault of a segment.
        DatastoreUnavailableError: a file was truncated meanwhile, or its disk fails.
    """
    with closing(Documents(path, read_only=True)) as documents:
        size = documents.tokenizer().vocabulary_size
        segments = 0
        for record in documents.records():
            try:
                segment = open_segment(path, record, size)
                kernel = Snapshot.of([segment.view], size).kernel
                shard = Shard.open(path, record.name)
                check_shard(shard, record.name, kernel.require_readable, sort=sort, announce=announce)
                _check_content(path, record, documents, size)
                segments += 1
            except (DatastoreError, OSError) as error:
                if isinstance(error, StorageError) or record in documents.records():
                    raise
        announce(DOCUMENTS_FILE_NAME)
        stored = (document for name in documents.namespaces() for document in documents.read(namespace=name))
        tokens = sum(len(document.symbols) // token_width(size) for document in stored)
    return segments, tokens


def _check_content(path: Path, record: SegmentRecord, documents: Documents, vocabulary_size: int) -> None:
    """Raise ChecksumError unless a segment holds exactly the documents that are stored."""
    separator = separator_id(vocabulary_size).to_bytes(token_width(vocabulary_size), "big")
    sha256 = hashlib.sha256()
    for document in documents.read(record.first, record.last, namespace=record.namespace):
        sha256.update(document.symbols + separator)
    if sha256.digest() != record.sha256:
        where = path / f"{record.name}.tokens"
        raise ChecksumError(describe(where, "SHA-256 of the content", record.sha256.hex(), sha256.hexdigest()))
