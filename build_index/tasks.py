"""The work of a build that any process can do: reading files and tokenizing documents, a task at a time.

    runner = TaskRunner(setup)       # once in each process
    result = runner.run(task)
    for batch in read_batches(result.path):
        ...

What a task yields goes to a file of its own, so that nothing is held in memory until its turn comes. Tasks and results
can be pickled, and are small, except the documents of an EncodeTask.
"""

from __future__ import annotations

import os
import pickle
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np

from build_index.corpus import Corpus
from build_index.documents import CorpusCounts, CorpusFile, Document, batches
from build_index.duplicates import KnownDocuments, content_digest, digest_keys
from build_index.errors import first_line, output_errors
from build_index.memory import resident_bytes
from build_index.readers.remote_file import public_address
from build_index.target_tokenizer import TargetTokenizer
from build_index.token_batches import BatchWriter
from rest_store.errors import BuildError

BATCH_CHARACTERS = 1 << 17  # tokenized at once: by one thread, which more would not help
BATCH_DOCUMENTS = 1 << 11
_MOST_REMEMBERED = 1 << 18  # digests, of one task
ALL = 1 << 62
"""As `stored`: no document of a task needs tokens."""


@dataclass(frozen=True)
class ReadTask:
    """Read files of a corpus and tokenize their documents.

    Attributes:
        corpus: index of the corpus.
        files: its files, in order.
        stored: documents at the beginning that are in complete shards: only their digests are needed.
    """

    corpus: int
    files: tuple[CorpusFile, ...]
    stored: int = 0

    @property
    def where(self) -> str:
        """What is read, for messages."""
        more = f" and {len(self.files) - 1} more" if len(self.files) > 1 else ""
        return f"{public_address(self.files[0].path)}{more}"


@dataclass(frozen=True)
class EncodeTask:
    """Tokenize documents of a corpus; the other fields are those of `ReadTask`."""

    corpus: int
    documents: tuple[Document, ...]
    stored: int = 0

    @property
    def where(self) -> str:
        """What is tokenized, for messages."""
        return self.documents[0].origin

    @property
    def size(self) -> int:
        """Characters that are held until the task is done."""
        return sum(document.size for document in self.documents)


Task: TypeAlias = ReadTask | EncodeTask


@dataclass(frozen=True)
class Setup:
    """What a process needs for the tasks of a build.

    Attributes:
        corpora: the opened corpora.
        tokenizer: the tokenizer.
        checked_characters: how many `tokenizers` checks before it takes samples (`TargetTokenizer.accelerate`); None:
            it encodes all.
        decoder_bytes: most memory of the decoder of a file (`Corpus.decoder_bytes`).
        directory: where to write batches.
        known: the file of `KnownDocuments`; None: there is none.
        drops_duplicates: whether a document that occurred earlier in its task need not be tokenized.
    """

    corpora: Sequence[Corpus]
    tokenizer: TargetTokenizer
    checked_characters: int | None
    decoder_bytes: int
    directory: Path
    known: Path | None
    drops_duplicates: bool


@dataclass
class TaskResult:
    """What came of a task.

    Attributes:
        path: the file with its batches (`read_batches`), which the receiver removes.
        documents: documents in them.
        counts: what was read.
        error: why the task ended early; the batches before it are good.
        read_seconds: time spent reading.
        tokenize_seconds: time spent tokenizing.
        process: id of the process.
        peak_memory: peak of its resident memory.
    """

    path: Path
    documents: int = 0
    counts: CorpusCounts = field(default_factory=CorpusCounts)
    error: Exception | None = None
    read_seconds: float = 0.0
    tokenize_seconds: float = 0.0
    process: int = field(default_factory=os.getpid)
    peak_memory: int = 0


class TaskRunner:
    """Does tasks, one at a time.

    Args:
        setup: of the build.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._known = None if setup.known is None else KnownDocuments(setup.known)
        if setup.checked_characters is not None:
            setup.tokenizer.accelerate(setup.checked_characters)
        for corpus in setup.corpora:
            corpus.decoder_bytes = setup.decoder_bytes

    def run(self, task: Task) -> TaskResult:
        """Do a task. Errors are in the result."""
        result = TaskResult(self._setup.directory / uuid.uuid4().hex)
        started = time.perf_counter()
        try:
            with output_errors(result.path), BatchWriter(result.path) as writer:
                seen: set[int] = set()
                for documents in batches(self._documents(task, result.counts), BATCH_CHARACTERS, BATCH_DOCUMENTS):
                    self._write(documents, task.stored - result.documents, seen, writer, result)
                    result.documents += len(documents)
        except Exception as error:
            result.error = _portable(error)
        result.read_seconds = time.perf_counter() - started - result.tokenize_seconds
        result.peak_memory = resident_bytes("VmHWM")
        return result

    def _documents(self, task: Task, counts: CorpusCounts) -> Iterator[Document]:
        if isinstance(task, EncodeTask):
            yield from task.documents
            return
        for file in task.files:
            yield from self._setup.corpora[task.corpus].documents(file, counts)

    def _write(
        self, documents: list[Document], stored: int, seen: set[int], writer: BatchWriter, result: TaskResult
    ) -> None:
        """Write a batch, with tokens where they may be needed."""
        digests = b"".join(map(content_digest, documents))
        needed = np.arange(len(documents)) >= stored
        keys = digest_keys(digests)
        if self._known is not None:
            needed &= ~self._known.holds(keys)
        if self._setup.drops_duplicates:
            for place in np.flatnonzero(needed):
                key = int(keys[place])
                needed[place] = key not in seen
                if len(seen) < _MOST_REMEMBERED:
                    seen.add(key)
        started = time.perf_counter()
        tokens = self._setup.tokenizer.encode_documents([documents[place] for place in np.flatnonzero(needed)])
        result.tokenize_seconds += time.perf_counter() - started
        writer.append(digests, needed, tokens)


def _portable(error: Exception) -> Exception:
    """Return the error, or one that says the same, if it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # whatever its constructor does
        return BuildError(f"{type(error).__name__}: {first_line(error)}")
    return error
