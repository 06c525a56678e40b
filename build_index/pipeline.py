"""From documents to complete shards: some are sorted while the next is tokenized."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from build_index.corpus import Corpus
from build_index.document_stream import DocumentStream
from build_index.duplicates import KnownDocuments, SeenDocuments
from build_index.journal import BuildState, Journal, TokensRecord
from build_index.memory import MemoryPlan
from build_index.progress import ProgressListener, StageProgress
from build_index.shard_sorter import ShardSorter
from build_index.shard_tokens import ShardTokens, first_cursor
from build_index.staging import Staging
from build_index.target_tokenizer import TargetTokenizer
from build_index.workers import Workers
from rest_store.datastore.manifest import ShardRecord

SECONDS_BETWEEN_REPORTS = 0.2


class Pipeline:
    """Makes the shards of one build; runs once.

    Args:
        corpora: what to read.
        tokenizer: the tokenizer.
        staging: where the shards are made.
        journal: records each complete file.
        state: state of the build so far; updated.
        memory: size of shards.
        seen: finds duplicates; None: they are kept.
        workers: who reads and tokenizes; None: this process alone.
        known: takes the documents that are stored, which workers look up.

    Attributes:
        shard_tokens: the tokens files.
    """

    def __init__(
        self,
        corpora: Sequence[Corpus],
        tokenizer: TargetTokenizer,
        staging: Staging,
        journal: Journal,
        state: BuildState,
        memory: MemoryPlan,
        seen: SeenDocuments | None,
        workers: Workers | None = None,
        known: KnownDocuments | None = None,
    ) -> None:
        self._corpora = corpora
        self._staging = staging
        self._journal = journal
        self._state = state
        start = state.tokens[-1].end if state.tokens else first_cursor(len(corpora))
        size = tokenizer.identity.vocabulary_size
        self._stream = DocumentStream(corpora, tokenizer, seen, start, staging.out, workers, known)
        self.shard_tokens = ShardTokens(
            staging.datastore, size, memory.shard_positions, start, shard_count=len(state.tokens)
        )
        most = memory.sorts if workers is None or workers.sort is None else workers.count
        elsewhere = None if workers is None else workers.sort
        self._sorter = ShardSorter(staging.datastore, size, self.record_suffixes, most=most, elsewhere=elsewhere)
        self._unsorted = [record for record in state.tokens if record.name not in state.suffixes]
        self._listener: ProgressListener | None = None
        self._reported = 0.0
        self._started = 0.0
        self._seconds_until_tokenized: float | None = None
        self._total_bytes: int | None = None
        self._tokenize_seconds = 0.0
        self._write_seconds = 0.0

    def run(self, listener: ProgressListener | None) -> None:
        """Make the shards.

        Args:
            listener: called with the progress.

        Raises:
            RestStoreError: a corpus cannot be read, or disk or memory is full.
            ResumeError: the corpora do not begin with the documents of the existing shards.
        """
        self._started = time.perf_counter()
        self._listener = listener
        if listener is not None:
            self._total_bytes = _total_bytes(self._corpora)
        try:
            for record in self._unsorted:
                self.sort(record)
            for record in self._tokenized():
                self.sort(record)
            self._seconds_until_tokenized = time.perf_counter() - self._started
            self._sorter.wait(self._report)
            self._reported = 0.0
            self._report()
        except Exception:
            # The current shards will be complete when the build is resumed. An interrupt does not wait for it.
            self._sorter.finish()
            raise
        finally:
            self._sorter.abandon()
            self.shard_tokens.abandon()

    def provenance(self) -> Iterator[dict[str, Any]]:
        """Yield the manifest's entry of each corpus, after all are read."""
        for number, (corpus, counts) in enumerate(zip(self._corpora, self.shard_tokens.end.counts, strict=True)):
            yield {
                **corpus.provenance(),
                "documents_sha256": self._stream.digests[number].hexdigest(),
                "duplicates": self._stream.duplicates[number],
                "without_tokens": counts.without_tokens,
                "split_documents": counts.split_documents,
            }

    def stage_seconds(self) -> dict[str, float]:
        """Return the time spent reading, tokenizing, sorting and writing."""
        return {
            "read": self._stream.read_seconds,
            "tokenize": self._tokenize_seconds + self._stream.tokenize_seconds,
            "sort": self._sorter.sort_seconds,
            "write": self._write_seconds + self._sorter.write_seconds,
        }

    def sort(self, record: TokensRecord) -> None:
        """Record a complete tokens file, and begin to sort it as soon as there is room."""
        if record not in self._state.tokens:
            self._journal.append("tokens", record)
            self._state.tokens.append(record)
        self._sorter.submit(record.name, record.position_count, self._report)

    def record_suffixes(self, record: ShardRecord) -> None:
        """Record a complete shard."""
        self._journal.append("suffixes", record)
        self._state.suffixes[record.name] = record

    def _tokenized(self) -> Iterator[TokensRecord]:
        """Read and tokenize; yield each tokens file that becomes complete."""
        for batch in self._stream.batches(self._report):
            documents = [document for document in batch.documents if not self.shard_tokens.is_done(document)]
            start = time.perf_counter()
            tokens = batch.source.tokens([document.place for document in documents])
            written_from = time.perf_counter()
            self._tokenize_seconds += written_from - start
            for item, ids in zip(documents, tokens, strict=True):
                for record in self.shard_tokens.append(item, ids):
                    self._write_seconds += time.perf_counter() - written_from
                    yield record
                    written_from = time.perf_counter()
            self._write_seconds += time.perf_counter() - written_from
            self._sorter.require_success()
            self._report()
        yield from self.shard_tokens.finish()

    def _report(self) -> None:
        """Report the progress of all stages, unless the last report is recent."""
        now = time.perf_counter()
        if self._listener is None or now - self._reported < SECONDS_BETWEEN_REPORTS:
            return
        self._reported = now
        done, total = self._stream.bytes_read, self._total_bytes
        positions = sum(record.position_count for record in self._unsorted) + self.shard_tokens.position_count
        if self._seconds_until_tokenized is None:
            seconds = now - self._started
            estimate = round(positions * total / done) if total and done else None
        else:
            seconds, total, estimate = self._seconds_until_tokenized, done, positions
        written, write_seconds = self._sorter.written_positions, self._sorter.write_seconds
        sorted_, sort_seconds = self._sorter.progress()
        sorted_ = min(sorted_, positions)  # the sorter may have gone on meanwhile
        self._listener(
            [
                StageProgress("tokenizing", done, total, "bytes", seconds),
                StageProgress("sorting", sorted_, estimate, "tokens", sort_seconds),
                StageProgress("writing", min(written, sorted_), estimate, "tokens", write_seconds),
            ]
        )


def _total_bytes(corpora: Sequence[Corpus]) -> int | None:
    """Return the bytes to read, or None if that is not known beforehand."""
    if any(corpus.spec.max_documents is not None for corpus in corpora):
        return None
    sizes = [corpus.size_hint for corpus in corpora]
    return None if None in sizes else sum(size for size in sizes if size is not None)
