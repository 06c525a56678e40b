"""The processes that read a live datastore while another writes it."""

from __future__ import annotations

import threading
from pathlib import Path

from rest_store.errors import MissingShardError
from rest_store.live.documents import Documents, SegmentRecord
from rest_store.live.segment import Segment, joined_segment, open_segment, segment_of
from rest_store.live.segments import Segments

_ATTEMPTS = 20  # the writer may remove files that it has just replaced
_MOST_IN_MEMORY = 8  # segments; then they are sorted as one


class Follower:
    """Reads one live datastore: maps the writer's files, and sorts the newest documents itself. Thread-safe.

    Args:
        directory: of the datastore.

    Raises:
        StorageError, DatastoreError: documents or segments cannot be read.

    Attributes:
        tokenizer: identity of the tokenizer that the tokens are from.
        segments: the segments at the latest `refresh`.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._documents = Documents(directory, read_only=True)
        self._lock = threading.Lock()
        self._version = -1
        self._deletions = -1
        self.tokenizer = self._documents.tokenizer()
        self.segments = Segments(self.tokenizer.vocabulary_size)
        self.refresh()

    def close(self) -> None:
        """Close the file of documents."""
        with self._lock:
            self._documents.close()

    def refresh(self) -> bool:
        """Show what the writer has committed; return False if that is nothing new.

        Raises:
            StorageError, DatastoreError: documents or segments cannot be read.
        """
        with self._lock:
            version = self._documents.version()
            if version == self._version:
                return False
            for attempt in range(_ATTEMPTS):
                try:
                    self._read()
                    break
                except MissingShardError:
                    if attempt == _ATTEMPTS - 1:
                        raise
            self._version = version
            return True

    def _read(self) -> None:
        with self._documents.one_state():
            state = self._documents.state()
            start = max([state.first, *(record.last + 1 for record in state.records)])
            memory = self.segments.in_memory
            if not memory or memory[0].span.first < start or state.deletions != self._deletions:
                memory = ()
            else:
                start = memory[-1].span.last + 1
            new = list(self._documents.read(start))
        opened = {segment.record: segment for segment in self.segments.in_files}
        files = [opened.get(record) or self._open(record) for record in state.records]
        if new:
            memory = (*memory, segment_of(new, self.segments.vocabulary_size))
        if len(memory) > _MOST_IN_MEMORY:
            memory = (joined_segment(memory, self.segments.vocabulary_size),)
        self._deletions = state.deletions
        self.segments.set([*files, *memory])

    def _open(self, record: SegmentRecord) -> Segment:
        return open_segment(self._directory, record, self.segments.vocabulary_size)
