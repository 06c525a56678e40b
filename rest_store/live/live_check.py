"""The verification of a live datastore: all of its documents, and its segments in files."""

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
    path: Path, *, announce: Callable[[str], object] = lambda file: None
) -> tuple[int, int]:
    """Read all documents and all segments in files, and compare their checksums.

    Another process may go on writing. A segment that it replaces meanwhile is skipped. A damaged
    segment is no loss: opening the datastore for writing sorts it again from the documents.

    Args:
        path: the directory of the live datastore.
        announce: called with the name of each segment, and of the file of documents, before it is
            read.

    Returns:
        The number of verified segments, and the number of verified tokens of documents.

    Raises:
        StorageError: documents cannot be read, or are damaged.
        DatastoreError: the subclass that names the first fault of a segment.
    """
    segments = 0
    size = 0
    with closing(Documents(path, read_only=True)) as documents:
        vocabulary_size = documents.tokenizer().vocabulary_size
        for record in documents.segment_records():
            announce(record.name)
            try:
                open_segment(path, record, vocabulary_size, verify=True)
            except DatastoreError:
                if record in documents.segment_records():
                    raise
            else:
                segments += 1
        announce(DOCUMENTS_FILE_NAME)
        for namespace in documents.namespaces():
            for document in documents.read(namespace=namespace):
                size += len(document.symbols)
    return segments, size // token_width(vocabulary_size)
