"""The first stage of a build: corpora, cut into slices, to a tokens file for each slice.

    for slice_ in cut(corpora):              # a function of the corpora alone
        tokenize(setup, slice_)              # in any process and order
    for batch in read_slice(setup.directory / slice_.name):
        ...

A slice is some files, or documents of a file that is too large for one slice. Its file depends on
nothing but the slice, and appears when it is complete. It holds batches of three arrays as
`numpy.save` writes them: the digests of its documents, their lengths in tokens, and the token ids
of all of them. Counts follow as JSON after an empty array. For a slice of files they are all
counts; documents of a large file were counted as they were read, so the counts of their slice are
those of rendering alone.
"""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from build_index.corpus import Corpus
from build_index.documents import CorpusCounts, CorpusFile, Document, batches
from build_index.duplicates import content_digest
from build_index.memory_plan import resident_bytes
from build_index.output_errors import output_errors
from build_index.staging import whole_file
from build_index.target_tokenizer import TargetTokenizer, Tokens

SLICE_BYTES = 1 << 22  # of the files of a slice
SLICE_FILES = 1 << 10
SLICE_CHARACTERS = 1 << 20  # of the documents of a slice of a large file
_LARGE_SHARE = 32  # a file of this share of all corpora is cut
_BATCH_CHARACTERS = 1 << 18  # tokenized at once
_BATCH_DOCUMENTS = 1 << 12


@dataclass(frozen=True)
class Slice:
    """Consecutive documents of a corpus, in files or read already.

    Attributes:
        name: the name of its file.
        corpus: index of the corpus.
        files: whole files, in order.
        documents: the documents, if there are no files.
    """

    name: str
    corpus: int
    files: tuple[CorpusFile, ...] = ()
    documents: tuple[Document, ...] = ()

    @property
    def where(self) -> str:
        """Its first file or document, for messages."""
        if not self.files:
            return self.documents[0].origin
        more = f" and {len(self.files) - 1} more" if len(self.files) > 1 else ""
        return f"{self.files[0].path}{more}"


@dataclass(frozen=True)
class Setup:
    """The data that a process needs to tokenize slices.

    Attributes:
        corpora: the opened corpora.
        tokenizer: the tokenizer.
        is_accelerated: whether `fastokens` encodes; a new process has to set that again.
        directory: the directory of the files of slices.
    """

    corpora: Sequence[Corpus]
    tokenizer: TargetTokenizer
    is_accelerated: bool
    directory: Path


@dataclass(frozen=True)
class SliceReport:
    """The work on a slice: its time, the id of the process and the peak of its resident memory."""

    read_seconds: float
    tokenize_seconds: float
    process: int
    peak_memory: int


def slice_bytes(corpora: Sequence[Corpus]) -> int:
    """Return the bytes of the largest file that is not cut.

    They are a power of two, so that few changes of a file change them.
    """
    size = sum(corpus.size for corpus in corpora) // _LARGE_SHARE
    return max(SLICE_BYTES, 1 << size.bit_length() >> 1)


def cut(corpora: Sequence[Corpus]) -> Iterator[Slice]:
    """Yield the slices of corpora in order.

    Meanwhile it reads large files, and corpora of which only some documents are wanted. The counts
    of listing and of this reading go to the corpora; the counts of slices with files are in the
    files of the slices.

    Raises:
        RestStoreError: as reading a corpus does.
    """
    largest = slice_bytes(corpora)
    for index, corpus in enumerate(corpora):
        corpus.counts = CorpusCounts()
        for number, content in enumerate(_slice_contents(corpus, largest)):
            name = f"{index:04}-{number:07}"
            if isinstance(content[0], CorpusFile):
                yield Slice(name, index, files=tuple(content))
            else:
                yield Slice(name, index, documents=tuple(content))


def _slice_contents(corpus: Corpus, largest: int) -> Iterator[list[CorpusFile] | list[Document]]:
    files: list[CorpusFile] = []
    size = 0
    for file in corpus.files(corpus.counts):
        is_cut = file.size > largest or corpus.spec.max_documents is not None
        if files and (is_cut or size >= SLICE_BYTES or len(files) >= SLICE_FILES):
            yield files
            files = []
            size = 0
        if is_cut:
            yield from batches(corpus.documents_up_to_limit(file), SLICE_CHARACTERS)
            if corpus.counts.documents == corpus.spec.max_documents:
                return
        else:
            files.append(file)
            size += file.size
    if files:
        yield files


def tokenize(setup: Setup, slice_: Slice) -> SliceReport:
    """Write the file of a slice.

    Raises:
        RestStoreError: a file cannot be read, or the disk is full.
        EncoderError: `fastokens` was wrong.
    """
    started = time.perf_counter()
    tokenize_seconds = 0.0
    counts = CorpusCounts()
    with whole_file(setup.directory / slice_.name) as unfinished, unfinished.open("xb") as file:
        documents = _documents(setup, slice_, counts)
        for batch in batches(documents, _BATCH_CHARACTERS, _BATCH_DOCUMENTS):
            before = time.perf_counter()
            encoded = setup.tokenizer.encode_counted(batch, counts)
            tokenize_seconds += time.perf_counter() - before
            digests = []
            tokens = []
            for document, ids in zip(batch, encoded, strict=True):
                if ids is not None:
                    digests.append(content_digest(document))
                    tokens.append(ids)
            if not tokens:
                continue
            lengths = np.array([len(ids) for ids in tokens])
            # numpy would report a full disk only as fewer bytes written.
            arrays = io.BytesIO()
            np.save(arrays, np.frombuffer(b"".join(digests), np.uint8))
            np.save(arrays, lengths)
            np.save(arrays, np.concatenate(tokens))
            file.write(arrays.getbuffer())
        np.save(file, np.empty(0))
        file.write(json.dumps(counts.to_json()).encode())
    read_seconds = time.perf_counter() - started - tokenize_seconds
    return SliceReport(read_seconds, tokenize_seconds, os.getpid(), resident_bytes("VmHWM"))


def _documents(setup: Setup, slice_: Slice, counts: CorpusCounts) -> Iterator[Document]:
    yield from slice_.documents
    for file in slice_.files:
        yield from setup.corpora[slice_.corpus].documents(file, counts)


@dataclass(frozen=True)
class TokenBatch:
    """Documents of a slice.

    Attributes:
        digests: digests of their content, 32 bytes each.
        tokens: tokens of each document.
    """

    digests: bytes
    tokens: Sequence[Tokens]


def read_slice(path: Path) -> Iterator[TokenBatch | CorpusCounts]:
    """Yield the batches of a slice's file in order, and then its counts."""
    with output_errors(path), path.open("rb") as file:
        while len(digests := np.load(file)):
            lengths = np.load(file)
            ids = np.load(file)
            yield TokenBatch(digests.tobytes(), np.split(ids, np.cumsum(lengths)[:-1]))
        yield CorpusCounts.from_json(json.load(file))
