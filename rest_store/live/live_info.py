"""What a live datastore says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from rest_store.datastore.tokenizer import TokenizerIdentity


@dataclass(frozen=True)
class LiveInfo:
    """A description of a live datastore.

    Attributes:
        path: its directory.
        tokenizer: identity of the tokenizer that its tokens are from.
        token_count: tokens of all documents.
        document_count: documents.
        shard_count: segments.
        size: bytes of the segments in files; the documents take about two fifths of that besides.
        built: when the newest document was added; None: there is none.
        oldest: when the oldest document was added.
        max_tokens: most tokens kept; None: no limit.
        max_age: most seconds that a document is kept; None: no limit.
        max_epochs: epochs that are kept; None: no limit. All three are of namespaces that have no
            limits of their own.
        failure: why compaction, or reading what was added, failed last; None since it has succeeded
            again.
        location: of the live datastore that this is a replica of; None: of none.
        behind: changes that a replica lacks of those that it knows of; None: another process keeps
            it up to date.
    """

    path: Path
    tokenizer: TokenizerIdentity
    token_count: int
    document_count: int
    shard_count: int
    size: int
    built: datetime | None
    oldest: datetime | None
    max_tokens: int | None
    max_age: float | None
    max_epochs: int | None
    failure: str | None
    location: str | None
    behind: int | None
