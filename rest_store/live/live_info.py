"""What a live datastore says of itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rest_store.datastore.tokenizer import TokenizerIdentity

if TYPE_CHECKING:
    from rest_store.live.retention import Retention
    from rest_store.live.segment import Segment


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
        max_epochs: epochs that are kept; None: no limit. All three are of namespaces that have no limits of their own.
        failure: why compaction, or reading what was added, failed last; None since it has succeeded again.
        location: of the live datastore that this is a replica of; None: of none.
        behind: changes that a replica lacks of those that it knows of; None: another process keeps it up to date.
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

    @classmethod
    def of(cls, segments: Sequence[Segment], retention: Retention, **described: Any) -> LiveInfo:
        """Return the description of a datastore with these segments and limits; `described`: what else there is."""
        return cls(
            token_count=sum(segment.token_count for segment in segments),
            document_count=sum(segment.document_count for segment in segments),
            shard_count=len(segments),
            size=sum(file.raw.size for segment in segments for file in segment.view.files),
            built=_time(max(segment.newest for segment in segments)) if segments else None,
            oldest=_time(min(segment.oldest for segment in segments)) if segments else None,
            max_tokens=retention.max_tokens,
            max_age=retention.max_age,
            max_epochs=retention.max_epochs,
            **described,
        )


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc)
