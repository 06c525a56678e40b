"""The description of a live datastore: `LiveInfo`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from rest_store.datastore.tokenizer import TokenizerIdentity


@dataclass(frozen=True)
class LiveInfo:
    """A description of a live datastore.

    `max_tokens`, `max_age` and `max_epochs` are those of namespaces without a retention of their
    own.

    Attributes:
        path: its directory.
        tokenizer: identity of the tokenizer of all tokens.
        token_count: the tokens of all documents.
        document_count: the documents.
        shard_count: the segments.
        size: bytes of the segments in files. The documents take about two fifths of that besides.
        built: when the newest document was added; None: there is none.
        oldest: when the oldest document was added; None: there is none.
        max_tokens: the most tokens that are kept; None: no limit.
        max_age: the most seconds that a document is kept; None: no limit.
        max_epochs: how many epochs are kept; None: all.
        shared_after: how many groups have to write a text before queries tell others of it.
        failure: why compaction, or reading additions, failed last; None once it has succeeded
            again.
        location: the location of the live datastore that this is a replica of; None: it is none.
        behind: how many of the upstream's changes a replica still lacks; None: another process
            applies them.
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
    shared_after: int
    failure: str | None
    location: str | None
    behind: int | None
