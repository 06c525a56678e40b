"""Both stages of a build at once.

Corpora are tokenized slice by slice, and complete shards are sorted meanwhile.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np

from build_index.corpus import Corpus
from build_index.documents import CorpusCounts
from build_index.duplicates import SeenDocuments, digest_keys
from build_index.output_errors import output_errors
from build_index.progress import ProgressListener, StageProgress
from build_index.shard_tokens import ShardTokens
from build_index.slices import Slice, SliceReport, TokenBatch, cut, read_slice
from build_index.staging import Staging
from build_index.workers import Workers, worker_error

_SECONDS_BETWEEN_REPORTS = 0.2
_SLICES_A_WORKER = 2  # at once, so that no worker waits


class Stages:
    """Makes the shards of one build, as far as they are not there; runs once.

    Args:
        corpora: the corpora to read.
        staging: the directory in which the slices and shards are made.
        shard_tokens: writes the tokens files.
        seen: finds duplicates.
        workers: tokenize and sort.
        listener: called with the progress; None: nobody.

    Attributes:
        seconds: time by stage: `read`, `tokenize` and `sort`.
        peaks: peak of the resident memory of each worker process.
    """

    def __init__(
        self,
        corpora: Sequence[Corpus],
        staging: Staging,
        shard_tokens: ShardTokens,
        seen: SeenDocuments,
        workers: Workers,
        listener: ProgressListener | None = None,
    ) -> None:
        self.seconds = dict.fromkeys(("read", "tokenize", "sort"), 0.0)
        self.peaks: dict[int, int] = {}
        self._corpora = corpora
        self._staging = staging
        self._shard_tokens = shard_tokens
        self._seen = seen
        self._workers = workers
        self._listener = listener
        self._counts = [CorpusCounts() for _ in corpora]  # of the slices of files
        self._duplicates = [0] * len(corpora)
        self._digests = [hashlib.sha256() for _ in corpora]
        self._sorting: dict[Future[float], int] = {}  # positions of shards that are being sorted
        self._sorted_positions = 0
        self._started = self._reported = time.perf_counter()
        self._is_tokenized = False

    def run(self) -> list[str]:
        """Make the shards, and return their names.

        Raises:
            RestStoreError: a corpus cannot be read, or disk or memory is full.
            EncoderError: `fastokens` was wrong.
            WorkerError: a worker has ended.
        """
        names = []
        try:
            before = 0
            for name in self._shards():
                names.append(name)
                self._sort(name, self._shard_tokens.position_count - before)
                before = self._shard_tokens.position_count
            self._report(at_once=True)
            self._is_tokenized = True
            while self._sorting:
                self._collect(_SECONDS_BETWEEN_REPORTS)
        except Exception:
            wait(self._sorting)  # they need not be sorted again; an interrupt does not wait
            raise
        finally:
            self._shard_tokens.abandon()
        self._report(at_once=True)
        for corpus, counts in zip(self._corpora, self._counts, strict=True):
            corpus.counts.add(counts)
        return names

    def provenance(self) -> list[dict[str, Any]]:
        """Return the manifest's entry of each corpus, after all are read."""
        return [
            {
                **corpus.provenance(),
                "documents_sha256": self._digests[number].hexdigest(),
                "duplicates": self._duplicates[number],
                "without_tokens": self._shard_tokens.without_tokens[number],
                "split_documents": self._shard_tokens.split_documents[number],
            }
            for number, corpus in enumerate(self._corpora)
        ]

    # --- Tokens -----------------------------------------------------------------------------------

    def _shards(self) -> Iterator[str]:
        """Yield the name of each shard whose tokens file is complete."""
        for slice_, path in self._slices():
            for batch in read_slice(path):
                if isinstance(batch, CorpusCounts):
                    self._counts[slice_.corpus].add(batch)
                else:
                    yield from self._store(slice_.corpus, batch)
            self._collect(0)
        yield from self._shard_tokens.finish()

    def _slices(self) -> Iterator[tuple[Slice, Path]]:
        """Yield all slices in order, with the files of their tokens; absent files are made."""
        max_pending = 1 if self._workers.count == 1 else _SLICES_A_WORKER * self._workers.count
        pending: deque[tuple[Slice, Path, Future[SliceReport] | None]] = deque()
        for slice_ in cut(self._corpora):
            path = self._staging.slices / slice_.name
            future = None if path.exists() else self._workers.submit(slice_)
            pending.append((slice_, path, future))
            if len(pending) >= max_pending:
                yield self._finished(*pending.popleft())
        while pending:
            yield self._finished(*pending.popleft())

    def _finished(
        self, slice_: Slice, path: Path, future: Future[SliceReport] | None
    ) -> tuple[Slice, Path]:
        """Wait for the file of a slice."""
        if future is not None:
            while not wait([future], _SECONDS_BETWEEN_REPORTS).done:
                self._report()
            try:
                report = future.result()
            except BrokenProcessPool as error:
                raise worker_error(slice_) from error
            self.seconds["read"] += report.read_seconds
            self.seconds["tokenize"] += report.tokenize_seconds
            if report.process != os.getpid():
                self.peaks[report.process] = report.peak_memory
        return slice_, path

    def _store(self, corpus: int, batch: TokenBatch) -> Iterator[str]:
        """Store the documents that are no duplicates, and yield the names of complete shards."""
        self._digests[corpus].update(batch.digests)
        with output_errors(self._seen.directory):
            is_new = self._seen.add(digest_keys(batch.digests))
        self._duplicates[corpus] += len(is_new) - int(is_new.sum())
        for index in np.flatnonzero(is_new):
            yield from self._shard_tokens.append(corpus, batch.tokens[index])

    # --- Suffixes ---------------------------------------------------------------------------------

    def _sort(self, name: str, positions: int) -> None:
        """Begin to sort a shard, as soon as there is room."""
        while len(self._sorting) >= self._workers.sorts:
            self._collect(_SECONDS_BETWEEN_REPORTS)
        future = self._workers.sort(
            self._staging.datastore, name, self._shard_tokens.vocabulary_size
        )
        self._sorting[future] = positions

    def _collect(self, timeout: float) -> None:
        """Wait for a shard that is being sorted; raise its error, if it failed."""
        for future in wait(self._sorting, timeout, FIRST_COMPLETED).done:
            self._sorted_positions += self._sorting.pop(future)
            self.seconds["sort"] += future.result()
        self._report()

    # --- Progress ---------------------------------------------------------------------------------

    def _report(self, *, at_once: bool = False) -> None:
        """Report the progress of the stage that the build waits for.

        Without `at_once`, do nothing if the last report is recent.
        """
        now = time.perf_counter()
        if self._listener is None:
            return
        if now - self._reported < _SECONDS_BETWEEN_REPORTS and not at_once:
            return
        self._reported = now
        seconds = now - self._started
        if self._is_tokenized:
            total = self._shard_tokens.position_count
            progress = StageProgress("sorting", self._sorted_positions, total, "tokens", seconds)
            self._listener(progress)
        else:
            done = sum(corpus.counts.bytes_read for corpus in self._corpora)
            done += sum(counts.bytes_read for counts in self._counts)
            is_known = all(corpus.spec.max_documents is None for corpus in self._corpora)
            size = sum(corpus.size for corpus in self._corpora) if is_known else None
            self._listener(StageProgress("tokenizing", done, size, "bytes", seconds))
