"""The documents of several corpora, in batches, without exact duplicates."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from build_index.corpus import Corpus
from build_index.documents import Document
from build_index.duplicates import SeenDocuments, content_digest
from build_index.errors import output_errors
from build_index.journal import CHAIN_START, Cursor
from rest_store.datastore.render import counted
from rest_store.errors import ResumeError, describe

BATCH_CHARACTERS = 1 << 19  # enough for the tokenizing threads; more would only take memory
BATCH_DOCUMENTS = 1 << 13


@dataclass(frozen=True, slots=True)
class StreamedDocument:
    """A document and its place.

    Attributes:
        document: the document.
        corpus: index of its corpus.
        number: documents read so far, this one included, over all corpora, duplicates included.
        chain: digest of all these documents (`Cursor.chain`).
    """

    document: Document
    corpus: int
    number: int
    chain: bytes


class DocumentStream:
    """Reads corpora one after another.

    Args:
        corpora: what to read.
        seen: finds duplicates; None: they are kept.
        start: where an earlier build stopped.
        where: the datastore, for messages.

    Attributes:
        documents_read: documents read, duplicates included.
        chain: digest of their content and order.
        duplicates: duplicates dropped, for each corpus.
        digests: SHA-256 of the digests of the documents read, for each corpus.
        seconds: time spent reading and finding duplicates.

    Not thread-safe. Iterating raises the errors of reading a corpus, ResumeError if the documents up to `start` are not
    those of the earlier build, and OutputError if the disk is full.
    """

    def __init__(self, corpora: Sequence[Corpus], seen: SeenDocuments | None, start: Cursor, where: Path) -> None:
        self.corpora = corpora
        self.documents_read = 0
        self.chain = CHAIN_START
        self.duplicates = [0] * len(corpora)
        self.digests = [hashlib.sha256() for _ in corpora]
        self.seconds = 0.0
        self._seen = seen
        self._start = start
        self._where = where

    @property
    def bytes_read(self) -> int:
        """Bytes read so far of all corpora, as `size_hint` counts them."""
        return sum(corpus.bytes_read for corpus in self.corpora)

    def batches(self) -> Iterator[list[StreamedDocument]]:
        """Yield documents without duplicates in batches of about 2^19 characters; a batch may be empty."""
        start = time.perf_counter()
        batch: list[StreamedDocument] = []
        digests: list[bytes] = []
        characters = 0
        for number, corpus in enumerate(self.corpora):
            for document in corpus:
                batch.append(self._next(document, number, digests))
                characters += document.size
                if characters >= BATCH_CHARACTERS or len(batch) >= BATCH_DOCUMENTS:
                    distinct = self._without_duplicates(batch, digests)
                    batch, digests, characters = [], [], 0
                    self.seconds += time.perf_counter() - start
                    yield distinct
                    start = time.perf_counter()
        distinct = self._without_duplicates(batch, digests)
        self.seconds += time.perf_counter() - start
        if self.documents_read < self._start.documents:
            raise self._changed(f"{counted(self.documents_read, 'document')} long")
        yield distinct

    def _next(self, document: Document, corpus: int, digests: list[bytes]) -> StreamedDocument:
        digest = content_digest(document)
        digests.append(digest)
        self.digests[corpus].update(digest)
        self.chain = hashlib.sha256(self.chain + digest).digest()
        self.documents_read += 1
        if self.documents_read == self._start.documents and self.chain.hex() != self._start.chain:
            raise self._changed(f"different in its first {counted(self.documents_read, 'document')}")
        return StreamedDocument(document, corpus, self.documents_read, self.chain)

    def _without_duplicates(self, batch: list[StreamedDocument], digests: list[bytes]) -> list[StreamedDocument]:
        if self._seen is None or not batch:
            return batch
        keys = np.frombuffer(b"".join(digests), dtype="<u8")[::4].astype(np.uint64)
        with output_errors(self._seen.directory):
            is_new = self._seen.add(keys)
        distinct = []
        for item, new in zip(batch, is_new.tolist(), strict=True):
            if new:
                distinct.append(item)
            else:
                self.duplicates[item.corpus] += 1
        return distinct

    def _changed(self, problem: str) -> ResumeError:
        expected = f"one that begins with the {counted(self._start.documents, 'document')} of the unfinished build"
        return ResumeError(describe(self._where, "corpus", problem, f"{expected}; or build without --resume"))
