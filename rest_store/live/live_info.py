"""What a live datastore says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from rest_store.datastore.tokenizer import TokenizerIdentity


@dataclass
class WriterCounts:
    """What a writer has done since it was opened.

    Attributes:
        added: documents that were added.
        added_tokens: their tokens.
        deleted: documents that were deleted.
        evicted: documents that were too much or too old.
    """

    added: int = 0
    added_tokens: int = 0
    deleted: int = 0
    evicted: int = 0


@dataclass(frozen=True)
class LiveInfo:
    """A description of a live datastore.

    Attributes:
        path: its directory.
        tokenizer: identity of the tokenizer that its tokens are from.
        token_count: tokens of all documents.
        document_count: documents.
        shard_count: segments.
        memory_token_count: tokens of the segments that are in memory.
        memory_size: bytes of these segments.
        size: bytes of the segments in files; the documents take about two fifths of that besides.
        built: when the newest document was added; None: there is none.
        oldest: when the oldest document was added.
        max_tokens: most tokens kept; None: no limit.
        max_age: most seconds that a document is kept; None: no limit.
        kernel: the kernel that answers its queries in this process, "native" or "reference".
        failure: why merging, sealing or reading what was added failed last; None since it has succeeded again.
        counts: what this process has written since it opened the datastore; None if it only reads.
    """

    path: Path
    tokenizer: TokenizerIdentity
    token_count: int
    document_count: int
    shard_count: int
    memory_token_count: int
    memory_size: int
    size: int
    built: datetime | None
    oldest: datetime | None
    max_tokens: int | None
    max_age: float | None
    kernel: str
    failure: str | None
    counts: WriterCounts | None
