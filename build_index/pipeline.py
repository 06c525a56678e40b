"""From documents to complete shards: one shard is sorted while the next is tokenized, each noted in the journal."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from build_index.corpus import Corpus
from build_index.document_stream import DocumentStream
from build_index.duplicates import SeenDocuments
from build_index.errors import output_errors
from build_index.journal import BuildState, Journal, TokensRecord
from build_index.memory import MemoryPlan
from build_index.progress import ProgressListener, StageProgress
from build_index.shard_sorter import ShardSorter
from build_index.shard_tokens import ShardTokens, first_cursor
from build_index.staging import Staging
from build_index.target_tokenizer import TargetTokenizer
from rest_store.datastore.manifest import ShardRecord

_SECONDS_BETWEEN_REPORTS = 0.2


class Pipeline:
    """Makes the shards of one build.

    Args:
        corpora: what to read.
        tokenizer: makes tokens of it.
        staging: where the shards are made.
        journal: takes a note of each complete file.
        state: what was there already; extended.
        memory: size of shards.
        seen: finds duplicates; None: they are kept.

    Attributes:
        shard_tokens: the tokens files.

    Runs once.
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
    ) -> None:
        self._corpora = corpora
        self._tokenizer = tokenizer
        self._staging = staging
        self._journal = journal
        self._state = state
        start = state.tokens[-1].end if state.tokens else first_cursor(len(corpora))
        size = tokenizer.identity.vocabulary_size
        self._stream = DocumentStream(corpora, seen, start, staging.out)
        self.shard_tokens = ShardTokens(
            staging.datastore, size, memory.shard_positions, start, shard_count=len(state.tokens)
        )
        self._sorter = ShardSorter(staging.datastore, size, self._note_suffixes)
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
            listener: told about progress.

        Raises:
            RestStoreError: a corpus cannot be read, the disk is full, or memory is; or ResumeError: the corpora do not
                begin with the documents of the shards that are there.
        """
        self._started = time.perf_counter()
        self._listener = listener
        if listener is not None:
            self._total_bytes = _total_bytes(self._corpora)
        try:
            for record in self._unsorted:
                self._sort(record)
            for record in self._tokenized():
                self._sort(record)
            self._seconds_until_tokenized = time.perf_counter() - self._started
            self._sorter.wait(self._report)
            self._reported = 0.0
            self._report()
        except Exception:
            # A shard being sorted will be complete when the build is resumed. An interrupt does not wait for it.
            self._sorter.finish()
            raise
        finally:
            self._sorter.abandon()
            self.shard_tokens.abandon()

    def provenance(self) -> Iterator[dict[str, Any]]:
        """Yield what the manifest says of each corpus, all having been read."""
        stream = self._stream
        counts = self.shard_tokens.end.counts
        for number, corpus in enumerate(self._corpora):
            yield {
                **corpus.provenance(),
                "documents_sha256": stream.digests[number].hexdigest(),
                "duplicates": stream.duplicates[number],
                "without_tokens": counts[number].without_tokens,
                "split_documents": counts[number].split_documents,
            }

    def stage_seconds(self) -> dict[str, float]:
        """Return the time spent reading, tokenizing, sorting and writing."""
        return {
            "read": self._stream.seconds,
            "tokenize": self._tokenize_seconds,
            "sort": self._sorter.sort_seconds,
            "write": self._write_seconds + self._sorter.write_seconds,
        }

    def _tokenized(self) -> Iterator[TokensRecord]:
        """Read and tokenize; yield each tokens file that becomes complete."""
        for batch in self._stream.batches():
            batch = [item for item in batch if not self.shard_tokens.is_done(item)]
            start = time.perf_counter()
            tokens = self._tokenizer.encode_documents([item.document for item in batch])
            written_from = time.perf_counter()
            self._tokenize_seconds += written_from - start
            for item, ids in zip(batch, tokens, strict=True):
                for record in self.shard_tokens.append(item, ids):
                    self._write_seconds += time.perf_counter() - written_from
                    yield record
                    written_from = time.perf_counter()
            self._write_seconds += time.perf_counter() - written_from
            self._sorter.require_success()
            self._report()
        yield from self.shard_tokens.finish()

    def _sort(self, record: TokensRecord) -> None:
        """Note a complete tokens file, and have it sorted as soon as the one before it is."""
        if record not in self._state.tokens:
            with output_errors(self._staging.journal_path):
                self._journal.append("tokens", record)
            self._state.tokens.append(record)
        self._sorter.wait(self._report)
        self._sorter.submit(record.name, record.position_count)

    def _note_suffixes(self, record: ShardRecord) -> None:
        self._journal.append("suffixes", record)
        self._state.suffixes[record.name] = record

    def _report(self) -> None:
        """Tell the listener how far each stage is, unless it was told a moment ago."""
        now = time.perf_counter()
        if self._listener is None or now - self._reported < _SECONDS_BETWEEN_REPORTS:
            return
        self._reported = now
        done, total = self._stream.bytes_read, self._total_bytes
        positions = sum(record.position_count for record in self._unsorted) + self.shard_tokens.position_count
        estimated: int | None = positions
        seconds = self._seconds_until_tokenized
        if seconds is None:
            seconds = now - self._started
            estimated = round(positions * total / done) if total and done else None
        else:
            total = done
        written, write_seconds = self._sorter.written_positions, self._sorter.write_seconds
        sorted_, sort_seconds = self._sorter.progress()
        sorted_ = min(sorted_, positions)  # the sorter may have gone on meanwhile
        stages = [
            StageProgress("tokenizing", done, total, "bytes", seconds),
            StageProgress("sorting", sorted_, estimated, "tokens", sort_seconds),
            StageProgress("writing", min(written, sorted_), estimated, "tokens", write_seconds),
        ]
        self._listener(stages)


def _total_bytes(corpora: Sequence[Corpus]) -> int | None:
    """Return the bytes to be read, or None where that is not known beforehand."""
    if any(corpus.spec.max_documents is not None for corpus in corpora):
        return None
    sizes = [corpus.size_hint for corpus in corpora]
    return None if None in sizes else sum(size for size in sizes if size is not None)
