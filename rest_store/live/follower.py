"""The processes that read a live datastore while another writes it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path

from rest_store.errors import MissingShardError
from rest_store.live.documents import Documents
from rest_store.live.segment import Segment, joined_segment
from rest_store.live.segments import Bounds, Segments, to_merge
from rest_store.live.stored import stored_segments

_ATTEMPTS = 20  # the writer may remove files that it has just replaced


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
        self._bounds = Bounds()
        self._lock = threading.Lock()
        self._version = -1
        self._deletions, self._first = -1, -1
        with ExitStack() as stack:
            self._documents = stack.enter_context(closing(Documents(directory, read_only=True)))
            self.tokenizer = self._documents.tokenizer()
            self.segments = Segments(self.tokenizer.vocabulary_size)
            self.refresh()
            stack.pop_all()

    def close(self) -> None:
        """Close the file of documents."""
        with self._lock:
            self.segments = Segments(self.tokenizer.vocabulary_size)  # which keeps no files mapped
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
                with suppress(MissingShardError):
                    self._read(last_attempt=attempt == _ATTEMPTS - 1, verify=self._version == -1)
                    break
            self._version = version
            return True

    def _read(self, *, last_attempt: bool, verify: bool) -> None:
        opened: Sequence[Segment] = self.segments.all
        with self._documents.one_state():
            state = self._documents.state()
            if state.deletions != self._deletions:
                opened = self.segments.in_files
            present = [
                replace(segment, record=record)
                for record, segment in stored_segments(
                    self._directory,
                    self._documents,
                    state,
                    opened,
                    self._bounds,
                    self.segments.vocabulary_size,
                    verify=verify,
                    removed_meanwhile=not last_attempt,
                )
            ]
        files = [segment for segment in present if segment.record is not None]
        memory = [segment for segment in present if segment.record is None]
        while run := to_merge(memory, self._bounds):
            start = memory.index(run[0])
            memory[start : start + len(run)] = [joined_segment(run, self.segments.vocabulary_size)]
        without_some = (state.deletions, state.first) != (self._deletions, self._first)
        self.segments.set([*files, *memory], without_some=without_some)
        self._deletions, self._first = state.deletions, state.first
