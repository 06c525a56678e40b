"""A datastore, opened: from shards to drafts (REST, arXiv 2311.08252, sections 3.1 and 3.2)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rest_store.datastore.kernel import MAX_DEPTH, MAX_NODES, MAX_SUFFIX, kernel_name, open_kernel
from rest_store.datastore.manifest import FILE_NAME, Manifest, ShardRecord
from rest_store.datastore.mapped_file import MappedFile
from rest_store.datastore.memory import available_bytes
from rest_store.datastore.shard import Shard
from rest_store.datastore.tokenizer import TokenizerIdentity, identity_of
from rest_store.datastore.tree import SuffixMatch, TokenTree
from rest_store.datastore.validation import (
    Contexts,
    IntSequence,
    array_or_batch,
    explain,
    limit,
    limits,
    plain,
    plain_batch,
    too_many_tokens,
)
from rest_store.errors import QueryError


@dataclass(frozen=True)
class DatastoreInfo:
    """What a datastore is.

    Attributes:
        path: its directory.
        tokenizer: identity of the tokenizer that it was built with.
        token_count: tokens of all shards.
        document_count: documents of all shards.
        shard_count: number of shards.
        size: bytes of all shard files.
        built: when its manifest was written.
        kernel: what answers its queries here, "native" or "reference".
        manifest: the whole manifest, with provenance and build options.
    """

    path: Path
    tokenizer: TokenizerIdentity
    token_count: int
    document_count: int
    shard_count: int
    size: int
    built: datetime
    kernel: str
    manifest: Manifest


class Datastore:
    """All shards of one directory, mapped into memory and ready to be asked. Make one with `Datastore.open`.

    Thread-safe; the native kernel releases the GIL.
    """

    def __init__(self, path: Path, manifest: Manifest, shards: list[Shard]) -> None:
        self.path = path
        self.manifest = manifest
        self.shards = shards
        self.vocabulary_size = manifest.tokenizer.vocabulary_size
        self._kernel = open_kernel(shards, self.vocabulary_size)
        self._draft = self._kernel.draft
        self._kernel_name = kernel_name()
        self._built = datetime.fromtimestamp((path / FILE_NAME).stat().st_mtime, timezone.utc)

    @classmethod
    def open(cls, path: str | Path, *, tokenizer: object = None) -> Datastore:
        """Open the datastore in directory `path`.

        Maps its files and validates their structure; takes neither time nor memory in proportion to their size. Of a
        datastore larger than the memory available, only those pages are read that queries touch.

        Args:
            path: a directory that `rest-build` wrote.
            tokenizer: if given, the tokenizer in use (a `transformers` or `tokenizers` tokenizer, or a
                `TokenizerIdentity`); the datastore must have been built with the same.

        Raises:
            DatastoreError: the subclass that names what is wrong with the files (FORMAT.md, section 6).
            TokenizerMismatchError: `tokenizer` differs from the datastore's.
        """
        directory = Path(path)
        manifest = Manifest.read(directory)
        if tokenizer is not None:
            manifest.tokenizer.require_same(identity_of(tokenizer), directory)
        shards = []
        for record in manifest.shards:
            shard = Shard.open(directory, record.name)
            record.require_same(ShardRecord.of(record.name, shard), directory)
            shard.require_vocabulary(manifest.tokenizer.vocabulary_size)
            shards.append(shard)
        store = cls(directory, manifest, shards)
        available = available_bytes()
        if available is not None and store.info().size > available:
            for shard in shards:
                shard.expect_scattered_reads()
        return store

    @property
    def files(self) -> list[MappedFile[Any]]:
        """The mapped files that answers are read from."""
        return [file for shard in self.shards for file in (shard.tokens, shard.suffixes)]

    def info(self) -> DatastoreInfo:
        """Return what this datastore is."""
        return DatastoreInfo(
            path=self.path,
            tokenizer=self.manifest.tokenizer,
            token_count=self.manifest.token_count,
            document_count=self.manifest.document_count,
            shard_count=len(self.shards),
            size=sum(file.raw.size for file in self.files),
            built=self._built,
            kernel=self._kernel_name,
            manifest=self.manifest,
        )

    def longest_suffix_match(self, context: IntSequence, *, max_suffix: int = 16) -> SuffixMatch:
        """Find the longest suffix of `context` that occurs in this datastore (REST, Algorithm 1).

        Args:
            context: 1-D integers, oldest first; only the last `max_suffix` are read.
            max_suffix: longest suffix tried, in tokens, 1..64.

        Returns:
            SuffixMatch(length, count): `length` in tokens, 0 if even the last token is absent.

        Raises:
            QueryError: `context` is not 1-D integers, is empty, or holds an id outside the vocabulary, or a limit is
                out of range.

        Thread-safe; releases the GIL.
        """
        max_suffix = limit("max_suffix", max_suffix, MAX_SUFFIX)
        try:
            return SuffixMatch(*self._kernel.longest_suffix_match(plain(context), max_suffix))
        except (TypeError, ValueError) as error:
            raise explain(context, max_suffix, self.vocabulary_size) or QueryError(f"query: {error}") from error

    def draft(
        self, context: IntSequence, *, max_nodes: int = 64, max_suffix: int = 16, max_depth: int = 10
    ) -> TokenTree:
        """Return the most frequent continuations of the longest suffix match of `context` as a tree.

        Counts are exact, over all matches. Nodes come by count, greatest first; of equal counts the one with fewer
        tokens first, of those the lexicographically first (FORMAT.md, section 7).

        Args:
            context: 1-D integers, oldest first; only the last `max_suffix` are read.
            max_nodes: most draft tokens, 1..1024.
            max_suffix: longest suffix tried, in tokens, 1..64.
            max_depth: longest continuation, in tokens, 1..32.

        Returns:
            The draft tree, with its suffix match; empty if nothing matches or no match is continued. Who asks for the
            same again may get the same instance.

        Raises:
            QueryError: `context` is not 1-D integers, is empty, or holds an id outside the vocabulary, or a limit is
                out of range.

        Thread-safe; releases the GIL.
        """
        if not (type(max_nodes) is int and type(max_suffix) is int and type(max_depth) is int) or not (
            1 <= max_nodes <= MAX_NODES and 1 <= max_suffix <= MAX_SUFFIX and 1 <= max_depth <= MAX_DEPTH
        ):
            max_nodes, max_suffix, max_depth = limits(max_nodes, max_suffix, max_depth)
        try:
            return self._draft(context if type(context) is list else plain(context), max_nodes, max_suffix, max_depth)
        except (TypeError, ValueError) as error:
            raise explain(context, max_suffix, self.vocabulary_size) or QueryError(f"query: {error}") from error

    def draft_batch(
        self, contexts: Contexts, *, max_nodes: int = 64, max_suffix: int = 16, max_depth: int = 10
    ) -> list[TokenTree]:
        """Return what `draft` returns, for each of `contexts`; faster than one call each.

        Args:
            contexts: a sequence of contexts, or int[B, N], one array or tensor with a context a row; the array is read
                in less time than lists are.
            max_nodes: as `draft`, as the other limits.
            max_suffix: longest suffix tried, in tokens.
            max_depth: longest continuation, in tokens.

        Returns:
            B draft trees, in the order of the contexts.

        Raises:
            QueryError: as `draft`; the message names the context's place.

        Thread-safe; releases the GIL.
        """
        max_nodes, max_suffix, max_depth = limits(max_nodes, max_suffix, max_depth)
        asked = array_or_batch(contexts)
        try:
            return self._kernel.draft_batch(plain_batch(asked), max_nodes, max_suffix, max_depth)
        except (TypeError, ValueError) as error:
            for place, context in enumerate(asked):
                reason = explain(context, max_suffix, self.vocabulary_size, f"context {place}")
                if reason is not None:
                    raise reason from error
            raise QueryError(f"query: {error}") from error

    def count(self, tokens: IntSequence) -> int:
        """Return how often the sequence `tokens` occurs within documents of this datastore.

        Args:
            tokens: 1-D integers, 1 to 64 of them.

        Raises:
            QueryError: `tokens` is not 1-D integers, is empty or too long, or holds an id outside the vocabulary.

        Thread-safe; releases the GIL.
        """
        try:
            return self._kernel.count(plain(tokens))
        except (TypeError, ValueError) as error:
            reason = explain(tokens, MAX_SUFFIX, self.vocabulary_size, "tokens")
            raise reason or too_many_tokens(len(tokens)) from error

    def __repr__(self) -> str:
        return f"Datastore({str(self.path)!r}, {self.manifest.token_count} tokens, {len(self.shards)} shards)"
