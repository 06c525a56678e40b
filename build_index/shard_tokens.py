"""The tokens files of a datastore, written one after another, in the order of documents."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from build_index.output_errors import output_errors
from build_index.staging import shard_name, temporary_path
from build_index.target_tokenizer import Tokens
from rest_store.datastore.durable_files import publish
from rest_store.datastore.shard import TokensFile, TokensWriter
from rest_store.errors import ResumeError, describe


class ShardTokens:
    """Writes tokens files of a given size; it passes over the files that are there already.

    A document that does not fit into the rest of a shard begins the next one. A document longer
    than a shard is split: each piece fills a shard, except the last, which other documents follow.

    Args:
        directory: the directory of the new datastore's files.
        vocabulary_size: `V`.
        shard_positions: bound on the tokens and separators of a shard, at least 2.
        corpus_count: number of corpora.

    Attributes:
        vocabulary_size: `V`.
        position_count: tokens and separators so far.
        stored_documents: documents so far that have tokens.
        without_tokens: for each corpus, documents that have no tokens.
        split_documents: for each corpus, documents longer than a shard.

    Not thread-safe. Raises OutputError if files cannot be written, and ResumeError if a file that
    is there has other tokens.
    """

    def __init__(
        self, directory: Path, vocabulary_size: int, shard_positions: int, corpus_count: int
    ) -> None:
        self.vocabulary_size = vocabulary_size
        self.position_count = 0
        self.stored_documents = 0
        self.without_tokens = [0] * corpus_count
        self.split_documents = [0] * corpus_count
        self._directory = directory
        self._shard_positions = shard_positions
        self._number = 0  # of the current shard
        self._positions = 0  # in it
        self._writer: TokensWriter | None = None  # None: it is empty, or there already

    @property
    def path(self) -> Path:
        """The tokens file of the current shard."""
        return self._directory / f"{shard_name(self._number)}.tokens"

    def append(self, corpus: int, ids: Tokens) -> Iterator[str]:
        """Append a document, and yield the name of each shard that becomes complete.

        Args:
            corpus: number of its corpus.
            ids: its token ids.
        """
        if not len(ids):
            self.without_tokens[corpus] += 1
            return
        if self._positions and self._positions + len(ids) + 1 > self._shard_positions:
            yield self._complete()
        self.stored_documents += 1
        self.split_documents[corpus] += len(ids) + 1 > self._shard_positions
        while len(ids) + 1 > self._shard_positions:
            self._write(ids[: self._shard_positions - 1])
            ids = ids[self._shard_positions - 1 :]
            yield self._complete()
        self._write(ids)

    def finish(self) -> Iterator[str]:
        """Complete the last shard, and yield its name if there is one."""
        if self._positions:
            yield self._complete()

    def abandon(self) -> None:
        """Remove the unfinished file, which is not a shard."""
        if self._writer is not None:
            with suppress(OSError):
                self._writer.abandon()
                self._writer.path.unlink(missing_ok=True)
            self._writer = None

    def _write(self, ids: Tokens) -> None:
        """Write a document or piece to the current shard."""
        with output_errors(self.path):
            if not self._positions and not self.path.exists():
                self._writer = TokensWriter(temporary_path(self.path), self.vocabulary_size)
            if self._writer is not None:
                self._writer.append(ids)
        self._positions += len(ids) + 1
        self.position_count += len(ids) + 1

    def _complete(self) -> str:
        """End the current tokens file, and rename it when it is on the disk."""
        with output_errors(self.path):
            if self._writer is not None:
                self._writer.close()
                publish(self._writer.path, self.path)
            count = TokensFile.open(self.path).header.position_count
        if count != self._positions:
            expected = f"{self._positions}; or build without --resume"
            raise ResumeError(describe(self.path, "the number of positions", count, expected))
        name = shard_name(self._number)
        self._writer = None
        self._number += 1
        self._positions = 0
        return name
