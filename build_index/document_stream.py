"""The documents of several corpora in their fixed order, without exact duplicates: read here, or by workers.

Workers read whole files, several at once. What cannot be divided so is read here, and workers tokenize its documents: a
file larger than a worker's share of all, a data set of the Hub, a corpus of which only the first documents are wanted.
One process reads records at least four times as fast as one tokenizes them.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Protocol

from build_index.corpus import Corpus
from build_index.documents import CorpusCounts, CorpusFile, Document
from build_index.duplicates import DIGEST_BYTES, KnownDocuments, SeenDocuments, content_digest, digest_keys
from build_index.encoder import Tokens
from build_index.errors import output_errors
from build_index.journal import CHAIN_START, Cursor
from build_index.staging import building_place
from build_index.target_tokenizer import TargetTokenizer
from build_index.tasks import ALL, EncodeTask, ReadTask, Task, TaskResult
from build_index.token_batches import read_batches
from build_index.workers import Workers
from rest_store.datastore.render import counted
from rest_store.errors import OutputError, ResumeError, describe

BATCH_CHARACTERS = 1 << 19  # enough for the tokenizing threads; more would only take memory
BATCH_DOCUMENTS = 1 << 13
TASK_BYTES = 1 << 22  # of the files of a task
TASK_FILES = 1 << 10
_TASKS_A_WORKER = 4  # at most, that are begun and not stored yet
_HELD_CHARACTERS = 1 << 23  # of the documents of such tasks
_SECONDS_BETWEEN_TICKS = 0.2


class Batch(Protocol):
    """Documents of one corpus, in order."""

    @property
    def digests(self) -> bytes:
        """All digests, one after another."""

    def tokens(self, places: Sequence[int]) -> list[Tokens]:
        """Return the tokens of the documents at `places`."""


@dataclass(frozen=True, slots=True)
class StreamedDocument:
    """The place of a document.

    Attributes:
        place: in its batch.
        corpus: index of its corpus.
        number: documents read so far, this one included, over all corpora, duplicates included.
        chain: digest of all these documents (`Cursor.chain`).
    """

    place: int
    corpus: int
    number: int
    chain: bytes


@dataclass(frozen=True, slots=True)
class StreamedBatch:
    """Documents that are no duplicates, and what knows their tokens."""

    documents: list[StreamedDocument]
    source: Batch


class _ReadHere:
    """A batch of documents that are tokenized when they are asked for."""

    def __init__(self, documents: Sequence[Document], tokenizer: TargetTokenizer) -> None:
        self.digests = b"".join(map(content_digest, documents))
        self._documents = documents
        self._tokenizer = tokenizer

    def tokens(self, places: Sequence[int]) -> list[Tokens]:
        return self._tokenizer.encode_documents([self._documents[place] for place in places])


class DocumentStream:
    """Reads corpora one after another.

    Args:
        corpora: what to read.
        tokenizer: tokenizes what is read here.
        seen: finds duplicates; None: they are kept.
        start: where an earlier build stopped.
        where: the place of the datastore, for messages.
        workers: who reads and tokenizes; None: this process alone.
        known: takes the documents that are stored, which workers look up.

    Attributes:
        documents_read: documents read, duplicates included.
        chain: digest of their content and order.
        duplicates: duplicates dropped, for each corpus.
        digests: SHA-256 of the digests of the documents read, for each corpus.
        read_seconds: time spent reading and finding duplicates, over all processes.
        tokenize_seconds: time that workers spent tokenizing.

    Not thread-safe. Iterating raises the errors of reading a corpus and of tokenizing, in their order, ResumeError if
    the documents up to `start` are not those of the earlier build, WorkerError if a worker ends, and OutputError if the
    disk is full.
    """

    def __init__(
        self,
        corpora: Sequence[Corpus],
        tokenizer: TargetTokenizer,
        seen: SeenDocuments | None,
        start: Cursor,
        where: Path,
        workers: Workers | None = None,
        known: KnownDocuments | None = None,
    ) -> None:
        self.corpora = corpora
        self.documents_read = 0
        self.chain = CHAIN_START
        self.duplicates = [0] * len(corpora)
        self.digests = [hashlib.sha256() for _ in corpora]
        self.read_seconds = 0.0
        self.tokenize_seconds = 0.0
        self._tokenizer = tokenizer
        self._seen = seen
        self._start = start
        self._where = where
        self._workers = workers
        self._known = known
        self._read_here = CorpusCounts()  # of the current corpus
        self._share = 0 if workers is None else known_bytes(corpora) // workers.count

    @property
    def bytes_read(self) -> int:
        """Bytes read so far of all corpora, as `size_hint` counts them."""
        return sum(corpus.bytes_read for corpus in self.corpora) + self._read_here.bytes_read

    def batches(self, tick: Callable[[], None] = lambda: None) -> Iterator[StreamedBatch]:
        """Yield documents without duplicates in batches of about 2^19 characters; a batch may be empty.

        Args:
            tick: called now and then while workers are waited for.
        """
        tasks = self._tasks()
        if self._workers is None:
            batches = self._here(tasks)
        else:
            batches = chain.from_iterable(self._by_workers(self._workers, self._timed(tasks), tick))
        start = time.perf_counter()
        for corpus, batch in batches:
            streamed = self._without_duplicates(corpus, batch)
            if self._workers is None:
                self.read_seconds += time.perf_counter() - start
            yield streamed
            start = time.perf_counter()
        if self.documents_read < self._start.documents:
            raise self._changed(f"{counted(self.documents_read, 'document')} long")

    # --- What is to be done -------------------------------------------------------------------------------------------

    def _tasks(self) -> Iterator[Task]:
        """Yield all tasks in order. What is read here is read meanwhile."""
        for number, corpus in enumerate(self.corpora):
            corpus.counts = CorpusCounts()
            self._read_here = CorpusCounts()
            yield from self._tasks_of(number, corpus)
            corpus.counts += self._read_here
            self._read_here = CorpusCounts()

    def _tasks_of(self, number: int, corpus: Corpus) -> Iterator[Task]:
        files: list[CorpusFile] = []
        documents: list[Document] = []
        size = characters = 0
        for file in corpus.files(corpus.counts):
            if not self._is_read_here(corpus, file):
                if documents:
                    yield EncodeTask(number, tuple(documents))
                    documents, characters = [], 0
                files.append(file)
                size += file.size or 0
                if size >= TASK_BYTES or len(files) >= TASK_FILES:
                    yield ReadTask(number, tuple(files))
                    files, size = [], 0
                continue
            if files:
                yield ReadTask(number, tuple(files))
                files, size = [], 0
            with closing(corpus.documents(file, self._read_here)) as read:
                for document in read:
                    documents.append(document)
                    characters += document.size
                    is_last = self._read_here.documents == corpus.spec.max_documents
                    if is_last or characters >= BATCH_CHARACTERS or len(documents) >= BATCH_DOCUMENTS:
                        yield EncodeTask(number, tuple(documents))
                        documents, characters = [], 0
                    if is_last:
                        return
        if files:
            yield ReadTask(number, tuple(files))
        if documents:
            yield EncodeTask(number, tuple(documents))

    def _timed(self, tasks: Iterator[Task]) -> Iterator[Task]:
        """Yield the tasks, and add up the time that is spent reading here."""
        while True:
            start = time.perf_counter()
            task = next(tasks, None)
            self.read_seconds += time.perf_counter() - start
            if task is None:
                return
            yield task

    def _is_read_here(self, corpus: Corpus, file: CorpusFile) -> bool:
        if self._workers is None or file.size is None or corpus.spec.max_documents is not None:
            return True
        return file.size > max(self._share, TASK_BYTES)

    # --- Who does it --------------------------------------------------------------------------------------------------

    def _here(self, tasks: Iterator[Task]) -> Iterator[tuple[int, Batch]]:
        for task in tasks:
            assert isinstance(task, EncodeTask), "files are read here where there are no workers"
            yield task.corpus, _ReadHere(task.documents, self._tokenizer)

    def _by_workers(
        self, workers: Workers, tasks: Iterator[Task], tick: Callable[[], None]
    ) -> Iterator[Iterator[tuple[int, Batch]]]:
        """Yield the batches of each task."""
        # All documents of complete shards, except one whose tokens are stored in part.
        stored = self._start.documents - bool(self._start.tokens_stored)
        window = _Window(workers, tasks, tick, stored=stored > 0)
        while (done := window.next()) is not None:
            task, result = done
            left = stored - self.documents_read
            if window.stored and result.documents > left:
                # The first task with documents that need tokens, which it was not asked for.
                first = replace(task, stored=left)
                window = _Window(workers, window.rest(first), tick, stored=False)
                continue
            yield self._batches_of(task, result)

    def _batches_of(self, task: Task, result: TaskResult) -> Iterator[tuple[int, Batch]]:
        if isinstance(result.error, OutputError):  # the last batch may be cut short
            raise result.error
        with output_errors(result.path):
            for batch in read_batches(result.path):
                yield task.corpus, batch
            result.path.unlink()
        self.corpora[task.corpus].counts += result.counts
        self.read_seconds += result.read_seconds
        self.tokenize_seconds += result.tokenize_seconds
        if result.error is not None:
            raise result.error

    # --- What comes of it ---------------------------------------------------------------------------------------------

    def _without_duplicates(self, corpus: int, batch: Batch) -> StreamedBatch:
        digests = batch.digests
        documents = [
            self._next(place, corpus, digests[start : start + DIGEST_BYTES])
            for place, start in enumerate(range(0, len(digests), DIGEST_BYTES))
        ]
        if self._seen is not None:
            keys = digest_keys(digests)
            with output_errors(self._seen.directory):
                is_new = self._seen.add(keys)
            if self._known is not None:
                self._known.add(keys)
            self.duplicates[corpus] += len(documents) - int(is_new.sum())
            documents = [document for document in documents if is_new[document.place]]
        return StreamedBatch(documents, batch)

    def _next(self, place: int, corpus: int, digest: bytes) -> StreamedDocument:
        self.digests[corpus].update(digest)
        self.chain = hashlib.sha256(self.chain + digest).digest()
        self.documents_read += 1
        if self.documents_read == self._start.documents and self.chain.hex() != self._start.chain:
            raise self._changed(f"different in its first {counted(self.documents_read, 'document')}")
        return StreamedDocument(place, corpus, self.documents_read, self.chain)

    def _changed(self, problem: str) -> ResumeError:
        expected = f"one that begins with the {counted(self._start.documents, 'document')} of the unfinished build"
        remedy = f"or remove {building_place(self._where)}"
        return ResumeError(describe(self._where, "corpus", problem, f"{expected}; {remedy}"))


def known_bytes(corpora: Sequence[Corpus]) -> int:
    """Return the bytes that there are to read, without data sets of the Hub and corpora that are read in part."""
    return sum(corpus.size_hint or 0 for corpus in corpora if corpus.spec.max_documents is None)


class _Window:
    """The tasks that workers have begun, in order: as many as are needed to keep all of them busy.

    Args:
        workers: do the tasks.
        tasks: all tasks; taken as there is room.
        tick: called now and then while a result is waited for.
        stored: whether the documents need no tokens.
    """

    def __init__(self, workers: Workers, tasks: Iterator[Task], tick: Callable[[], None], *, stored: bool) -> None:
        self.stored = stored
        self._workers = workers
        self._tasks = tasks
        self._tick = tick
        self._begun: deque[tuple[Task, Future[TaskResult]]] = deque()
        self._characters = 0  # held by tasks that are begun
        self._most_characters = max(_HELD_CHARACTERS, 2 * BATCH_CHARACTERS * workers.count)
        self._error: Exception | None = None  # of the tasks themselves, whose turn is after those that are begun

    def next(self) -> tuple[Task, TaskResult] | None:
        """Return the next task and its result; None: there is none. Raise the error of reading here in its turn."""
        self._begin()
        if not self._begun:
            if self._error is not None:
                raise self._error
            return None
        task, future = self._begun[0]
        while not wait([future], _SECONDS_BETWEEN_TICKS).done:
            self._tick()
        self._begun.popleft()
        self._characters -= _size(task)
        result = future.result()
        self._begin()
        return task, result

    def rest(self, first: Task) -> Iterator[Task]:
        """Return `first`, the tasks that are begun, whose results are not awaited, and all others."""
        begun = [task for task, _ in self._begun]
        for _, future in self._begun:
            future.cancel()
        self._begun.clear()
        return chain([first], begun, self._not_begun())

    def _not_begun(self) -> Iterator[Task]:
        yield from self._tasks
        if self._error is not None:
            raise self._error

    def _begin(self) -> None:
        while len(self._begun) < _TASKS_A_WORKER * self._workers.count and self._characters < self._most_characters:
            try:
                task = next(self._tasks, None)
            except Exception as error:
                self._error = error
                return
            if task is None:
                return
            self._characters += _size(task)
            self._begun.append((task, self._workers.submit(replace(task, stored=ALL) if self.stored else task)))


def _size(task: Task) -> int:
    return task.size if isinstance(task, EncodeTask) else 0
