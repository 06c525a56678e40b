"""What keeps the file of documents small and free of what was deleted: its log is emptied, what is unused rewritten."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from rest_store.errors import StorageError
from rest_store.live.documents import Document, Documents
from rest_store.live.locks import ThreadLocks
from rest_store.live.segment_files import SegmentFiles

_PURGED_AT_ONCE = 500  # documents, in one commit
_MOST_EMPTY = 1 << 12  # rows of deleted documents that are kept, if there are not as many others
_LOG_PAGES = 1 << 10  # of the write-ahead log, about, from which on it is written into the file
_PAGE = 1 << 12  # bytes
_LOG_PATIENCE = 2.0  # seconds for which a deletion waits for readers of older states
_LOG_PAUSE = 0.01  # seconds between its looks for them


class Housekeeping:
    """Cleans up behind additions, evictions and deletions.

    Args:
        directory: of the live datastore.
        documents: its documents, for the holder of `locks.commit`.
        segment_files: of its segments.
        locks: of the writer.
        change: a block that changes what is stored; for the holder of `locks.commit`.

    Methods that are called by a thread of their own take the locks that they need; the others say whose they are.
    """

    def __init__(
        self,
        directory: Path,
        documents: Documents,
        segment_files: SegmentFiles,
        locks: ThreadLocks,
        change: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._directory = directory
        self._documents = documents
        self._beside = Documents(directory)  # for checkpoints beside additions, by the holder of `locks.memory`
        self._segment_files = segment_files
        self._locks = locks
        self._change = change
        self._log_pages = 0  # written to the log, about
        self._log_holds_deleted = True  # whether it may: of a deletion that a kill has ended, for instance
        self._unpurged = True  # whether evicted documents may still be stored

    def close(self) -> None:
        """Close its file, for the holder of `locks.memory`; may be called again."""
        self._beside.close()

    # --- What others have done; for the holder of `locks.commit` ------------------------------------------------------

    def purged_with(self, count: int) -> int:
        """Return how many evicted documents to remove in the commit that adds `count`.

        So the file stays as small as what is kept, however fast documents come and go.
        """
        return 2 * count if self._unpurged else 0

    def note_added(self, documents: Sequence[Document], *, purged: int, removed: int) -> None:
        """Note that `documents` were stored, and of `purged` evicted ones the `removed` that were there removed."""
        self._log_pages += 3 + sum(2 + len(document.symbols) // _PAGE for document in documents)
        self._unpurged = self._unpurged and removed == purged

    def note_evicted(self) -> None:
        """Note that documents were evicted, which are still stored."""
        self._unpurged = True

    def note_deleted(self) -> None:
        """Note that documents are being deleted: the log may hold them from now on."""
        self._log_holds_deleted = True

    # --- Jobs of a thread ---------------------------------------------------------------------------------------------

    def purge(self) -> bool:
        """Remove some evicted documents, and files that could not be removed; return whether there are more of them."""
        with self._locks.memory:
            if self._unpurged:
                with self._locks.commit, self._change():
                    purged = self._documents.purge(_PURGED_AT_ONCE)
                    self._unpurged = purged == _PURGED_AT_ONCE
                    self._log_pages += 2 * purged
            self._segment_files.remove_leftovers()
            return self._unpurged

    def checkpoint(self) -> bool:
        """Write a long log into the file, and empty it if it may hold what was deleted; return False: no more to do."""
        with self._locks.memory:
            if self._log_holds_deleted:
                self.clear_log()
            if self._log_pages > _LOG_PAGES:
                self._beside.checkpoint()  # most of it, beside additions
                with self._locks.commit, self._change():
                    self._documents.checkpoint()  # the rest: otherwise the log never begins anew
                    self._log_pages = 0
            return False

    # --- After a deletion; for the holder of `locks.memory` -----------------------------------------------------------

    def clear(self) -> None:
        """Remove what is left of deleted documents in unused bytes and in the log.

        Raises:
            StorageError: the file cannot be rewritten; or the log, or a file of a segment, still holds something.
        """
        try:
            with self._locks.commit:
                self.rewrite()
        finally:
            ends = time.monotonic() + _LOG_PATIENCE
            while self._log_holds_deleted and not self.clear_log() and time.monotonic() < ends:
                time.sleep(_LOG_PAUSE)
        if self._log_holds_deleted:
            where = "in the log, while another process reads an older state"
            raise StorageError(f"{self._directory}: what was deleted is still {where}")
        if self._segment_files.leftovers:
            where = min(self._segment_files.leftovers)
            raise StorageError(f"{self._directory}: what was deleted is still in {where}")

    def rewrite(self) -> None:
        """Write the file of documents anew if that is to be done; for the holder of `locks.commit`, too."""
        if self._documents.is_to_be_rewritten:
            self._log_holds_deleted = True  # the file is as it was until the log is written into it
            self._documents.rewrite()

    def clear_log(self) -> bool:
        """Empty the log; return False if readers of older states keep it."""
        self._beside.checkpoint()  # most of it, beside additions
        with self._locks.commit:
            self._log_holds_deleted = not self._documents.clear_log()
        return not self._log_holds_deleted


def is_mostly_empty(documents: Documents, count: int) -> bool:
    """Return whether a file with `count` documents has more rows of deleted ones, so that it is worth rewriting."""
    return documents.deleted_rows() > max(_MOST_EMPTY, count)
