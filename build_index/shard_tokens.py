"""The tokens files of a datastore, written one after another: documents are stored in the order they are read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from pathlib import Path

from build_index.document_stream import StreamedDocument
from build_index.encoder import Tokens
from build_index.errors import output_errors
from build_index.journal import CHAIN_START, Cursor, TokenizedCounts, TokensRecord
from build_index.staging import sync_directory
from rest_store.datastore.shard import TokensWriter


def shard_name(number: int) -> str:
    """Return the name of a shard, counted from 0."""
    return f"shard-{number:05}"


def first_cursor(corpus_count: int) -> Cursor:
    """Return the cursor before the first document."""
    return Cursor(0, CHAIN_START.hex(), 0, 0, tuple(TokenizedCounts() for _ in range(corpus_count)))


class ShardTokens:
    """Writes tokens files of a given size.

    A document that does not fit into the rest of a shard begins the next one. A document longer than a shard is split:
    each piece fills a shard, except the last, which other documents follow.

    Args:
        directory: where to write.
        vocabulary_size: `V`.
        shard_positions: most tokens and separators of a shard, at least 2.
        start: the end of the existing shards.
        shard_count: number of existing shards.

    Attributes:
        position_count: tokens and separators written, of complete and unfinished shards.
        end: the place after the last document appended.

    Not thread-safe. Raises OutputError if files cannot be written.
    """

    def __init__(
        self, directory: Path, vocabulary_size: int, shard_positions: int, start: Cursor, shard_count: int
    ) -> None:
        self.position_count = 0
        self.end = start
        self._directory = directory
        self._vocabulary_size = vocabulary_size
        self._shard_positions = shard_positions
        self._start = start
        self._shard_count = shard_count
        self._stored_documents = start.stored_documents
        self._counts = deepcopy(start.counts)
        self._writer: TokensWriter | None = None

    @property
    def path(self) -> Path:
        """The tokens file of the current shard."""
        return self._directory / f"{shard_name(self._shard_count)}.tokens"

    def is_done(self, item: StreamedDocument) -> bool:
        """Whether a document is in the existing shards, to its last token."""
        partial = self._start.tokens_stored > 0 and item.number == self._start.documents
        return item.number <= self._start.documents and not partial

    def append(self, item: StreamedDocument, ids: Tokens) -> Iterator[TokensRecord]:
        """Append a document that is not done, with the token ids `ids`; yield each shard that becomes complete."""
        done = self._start.tokens_stored if item.number == self._start.documents else 0
        if not len(ids):
            self._counts[item.corpus].without_tokens += 1
            self._move(item)
            return
        written = 0 if self._writer is None else self._writer.position_count
        if written and written + len(ids) - done + 1 > self._shard_positions:
            yield self.complete_shard()
        if done == 0:
            self._stored_documents += 1
            self._counts[item.corpus].split_documents += len(ids) + 1 > self._shard_positions
        while len(ids) - done + 1 > self._shard_positions:
            piece = ids[done : done + self._shard_positions - 1]
            self.write(piece)
            done += len(piece)
            self._move(item, done)
            yield self.complete_shard()
        self.write(ids[done:])
        self._move(item)

    def finish(self) -> Iterator[TokensRecord]:
        """Complete the last shard, and yield its record if there is one."""
        if self._writer is not None:
            yield self.complete_shard()

    def abandon(self) -> None:
        """Close the unfinished file, which is not a shard."""
        if self._writer is not None:
            with suppress(OSError):
                self._writer.abandon()
            self._writer = None

    def _move(self, item: StreamedDocument, tokens_stored: int = 0) -> None:
        self.end = Cursor(item.number, item.chain.hex(), tokens_stored, self._stored_documents, deepcopy(self._counts))

    def write(self, ids: Tokens) -> None:
        """Write a document or piece to the current shard."""
        with output_errors(self.path):
            if self._writer is None:
                self._writer = TokensWriter(self.path, self._vocabulary_size)
            self._writer.append(ids)
        self.position_count += len(ids) + 1

    def complete_shard(self) -> TokensRecord:
        """Close the current tokens file and sync it to disk."""
        assert self._writer is not None
        with output_errors(self.path):
            header = self._writer.close()
            sync_directory(self._directory)
        name = shard_name(self._shard_count)
        self._writer = None
        self._shard_count += 1
        return TokensRecord(name, header.position_count, header.sha256.hex(), self.end)
