"""A full read of a live datastore: its documents, and its segments in files."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from rest_store.datastore.header import token_width
from rest_store.datastore.manifest import DOCUMENTS_FILE_NAME
from rest_store.errors import DatastoreError
from rest_store.live.documents import Documents
from rest_store.live.segment import open_segment


def check_live(
    path: Path, *, announce: Callable[[str], object] = lambda stage: None
) -> tuple[int, int]:
    """Compare the documents of a live datastore, and its segments in files, with their checksums.

    Another process may go on writing: a segment that it replaces meanwhile is left out. Damaged
    segments are no loss: opening the datastore for writing sorts them anew from the documents.

    Args:
        path: its directory.
        announce: called with what is read next.

    Returns:
        How many segments in files, and tokens of documents, were verified.

    Raises:
        StorageError: documents cannot be read, or are damaged.
        DatastoreError: the subclass that names the first fault of a segment.
    """
    segments = tokens = 0
    with closing(Documents(path, read_only=True)) as documents:
        size = documents.tokenizer().vocabulary_size
        for record in documents.records():
            announce(record.name)
            try:
                open_segment(path, record, size, verify=True)
                segments += 1
            except DatastoreError:
                if record in documents.records():
                    raise
        announce(DOCUMENTS_FILE_NAME)
        for name in documents.namespaces():
            tokens += sum(
                len(document.symbols) for document in documents.read(namespace=name)
            ) // token_width(size)
    return segments, tokens
