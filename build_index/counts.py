"""What was read of a corpus so far, and what was passed over and why."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class CorpusCounts:
    """Counts of one pass over a corpus.

    Attributes:
        documents: documents given out.
        conversations: those of them that are conversations.
        files: files opened and read, data sets of the hub included.
        bytes_read: bytes of these files, as they are on disk (compressed, if they are); of a data set of the hub, the
            UTF-8 length of what was given out.
        split_files: text files so large that they were given out in several documents.
        skipped: what was passed over, by reason.

    Written by the thread that iterates; other threads may read it for a progress bar.
    """

    documents: int = 0
    conversations: int = 0
    files: int = 0
    bytes_read: int = 0
    split_files: int = 0
    skipped: Counter[str] = field(default_factory=Counter)

    def skip(self, reason: str, number: int = 1) -> None:
        """Count something passed over.

        Args:
            reason: a few words, the same each time: `"empty"`, `"binary"`.
            number: how many.
        """
        self.skipped[reason] += number

    def advance(self, number: int) -> None:
        """Count bytes read."""
        self.bytes_read += number
