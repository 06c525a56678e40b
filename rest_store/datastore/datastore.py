"""An open datastore and its exact queries (REST, arXiv 2311.08252, sections 3.1 and 3.2)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rest_store.datastore.kernel import MAX_SUFFIX, kernel_name, open_kernel
from rest_store.datastore.manifest import FILE_NAME, Manifest, ShardRecord
from rest_store.datastore.mapped_file import MappedFile
from rest_store.datastore.memory import available_bytes
from rest_store.datastore.shard import Shard
from rest_store.datastore.tokenizer import TokenizerIdentity, identity_of
from rest_store.datastore.tree import SuffixMatch, TokenTree
from rest_store.datastore.validation import Contexts, IntSequence, limit, limits, tail, tails, too_many_tokens


@dataclass(frozen=True)
class DatastoreInfo:
    """A description of a datastore.

    Attributes:
        path: its directory.
        tokenizer: identity of the tokenizer that it was built with.
        token_count: tokens of all shards.
        document_count: documents of all shards.
        shard_count: number of shards.
        size: bytes of all shard files.
        built: when its manifest was written.
        kernel: the kernel that answers its queries in this process, "native" or "reference".
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
    """The shards of one directory, mapped into memory. Open one with `Datastore.open`.

    Thread-safe; the native kernel releases the GIL.
    """

    def __init__(self, path: Path, manifest: Manifest, shards: list[Shard]) -> None:
        self.path = path
        self.manifest = manifest
        self.shards = shards
        self.vocabulary_size = manifest.tokenizer.vocabulary_size
        self._kernel = open_kernel(shards, self.vocabulary_size)
        self._kernel_name = kernel_name()
        self._built = datetime.fromtimestamp((path / FILE_NAME).stat().st_mtime, timezone.utc)

    @classmethod
    def open(cls, path: str | Path, *, tokenizer: object = None) -> Datastore:
        """Open the datastore in directory `path`.

        Maps its files and validates their structure in time and memory that do not depend on their size. If the
        datastore is larger than the available memory, only the pages that queries touch are read.

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
        """The mapped files that queries read."""
        return [file for shard in self.shards for file in (shard.tokens, shard.suffixes)]

    def info(self) -> DatastoreInfo:
        """Return a description of this datastore."""
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
        suffix = tail(context, max_suffix, self.vocabulary_size)
        return SuffixMatch(*self._kernel.longest_suffix_match(suffix))

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
            The draft tree with its suffix match; empty if nothing matches or no occurrence is continued.

        Raises:
            QueryError: `context` is not 1-D integers, is empty, or holds an id outside the vocabulary, or a limit is
                out of range.

        Thread-safe; releases the GIL.
        """
        max_nodes, max_suffix, max_depth = limits(max_nodes, max_suffix, max_depth)
        suffix = tail(context, max_suffix, self.vocabulary_size)
        return TokenTree.from_packed(*self._kernel.draft(suffix, max_nodes, max_depth))

    def draft_batch(
        self, contexts: Contexts, *, max_nodes: int = 64, max_suffix: int = 16, max_depth: int = 10
    ) -> list[TokenTree]:
        """Return what `draft` returns for each of `contexts`.

        Args:
            contexts: a sequence of contexts, or an array or tensor int[B, N] with one context per row.
            max_nodes: as in `draft`.
            max_suffix: as in `draft`.
            max_depth: as in `draft`.

        Returns:
            B draft trees, in the order of the contexts.

        Raises:
            QueryError: as in `draft`; the message names the place of the context.

        Thread-safe; releases the GIL.
        """
        max_nodes, max_suffix, max_depth = limits(max_nodes, max_suffix, max_depth)
        suffixes = tails(contexts, max_suffix, self.vocabulary_size)
        return [TokenTree.from_packed(*self._kernel.draft(suffix, max_nodes, max_depth)) for suffix in suffixes]

    def count(self, tokens: IntSequence) -> int:
        """Return how often the sequence `tokens` occurs within documents of this datastore.

        Args:
            tokens: 1-D integers, 1 to 64 of them.

        Raises:
            QueryError: `tokens` is not 1-D integers, is empty or too long, or holds an id outside the vocabulary.

        Thread-safe; releases the GIL.
        """
        sequence = tail(tokens, MAX_SUFFIX + 1, self.vocabulary_size, "tokens")
        if len(sequence) > MAX_SUFFIX:
            raise too_many_tokens(len(tokens))
        return self._kernel.count(sequence)

    def __repr__(self) -> str:
        return f"Datastore({str(self.path)!r}, {self.manifest.token_count} tokens, {len(self.shards)} shards)"
