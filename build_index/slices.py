"""The first stage of a build: corpora, cut into slices, to a tokens file for each slice.

    for part in cut(corpora):                # a function of the corpora alone
        tokenize(setup, part)                # in any process and order
    for batch in read_slice(setup.directory / part.name):
        ...

A slice is some files, or documents of a file that is too large for one slice. Its file depends on nothing but the
slice, and appears when it is complete. It holds batches, each of 24 bytes of numbers, the 32-byte digests of its
documents, their lengths in tokens as 8-byte numbers, and the token ids of all of them; at the end, counts as JSON. The
bytes are those of the machine: the files live no longer than the build.
"""

from __future__ import annotations

import json
import os
import struct
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from build_index.corpus import Corpus
from build_index.documents import CorpusCounts, CorpusFile, Document, batches
from build_index.duplicates import DIGEST_BYTES, content_digest, digest_keys
from build_index.errors import output_errors
from build_index.memory import resident_bytes
from build_index.staging import whole_file
from build_index.target_tokenizer import TargetTokenizer, Tokens

SLICE_BYTES = 1 << 22  # of the files of a slice
SLICE_FILES = 1 << 10
SLICE_CHARACTERS = 1 << 20  # of the documents of a slice of a large file
_LARGE_SHARE = 32  # a file of this share of all corpora is cut
_BATCH_CHARACTERS = 1 << 18  # tokenized at once
_BATCH_DOCUMENTS = 1 << 12
_NUMBERS = struct.Struct("=QQQ")  # documents, token ids, bytes of each; 0 documents: the counts follow
_NO_TOKENS = -1


@dataclass(frozen=True)
class Slice:
    """Consecutive documents of a corpus: those of some files, or some that were read already.

    Attributes:
        name: of its file.
        corpus: index of the corpus.
        files: whole files, in order.
        documents: if there are no files.
    """

    name: str
    corpus: int
    files: tuple[CorpusFile, ...] = ()
    documents: tuple[Document, ...] = ()

    @property
    def where(self) -> str:
        """What it is, for messages."""
        if not self.files:
            return self.documents[0].origin
        more = f" and {len(self.files) - 1} more" if len(self.files) > 1 else ""
        return f"{self.files[0].path}{more}"


@dataclass(frozen=True)
class Setup:
    """What a process needs to tokenize slices.

    Attributes:
        corpora: the opened corpora.
        tokenizer: the tokenizer.
        is_accelerated: whether `fastokens` encodes, which has to be said again in a new process.
        directory: of the files of slices.
        keeps_duplicates: whether a document that occurred earlier in its slice is tokenized.
    """

    corpora: Sequence[Corpus]
    tokenizer: TargetTokenizer
    is_accelerated: bool
    directory: Path
    keeps_duplicates: bool


@dataclass
class SliceReport:
    """How the work on a slice went.

    Attributes:
        read_seconds: time spent reading.
        tokenize_seconds: time spent tokenizing.
        process: id of the process.
        peak_memory: peak of its resident memory in bytes.
    """

    read_seconds: float = 0.0
    tokenize_seconds: float = 0.0
    process: int = 0
    peak_memory: int = 0


def cut(corpora: Sequence[Corpus]) -> Iterator[Slice]:
    """Yield the slices of corpora in order; large files and corpora in part are read meanwhile.

    Raises:
        RestStoreError: as reading a corpus does.

    Adds to the counts of a corpus what listing and reading here finds; those of the slices with files are in their
    files.
    """
    largest = max(SLICE_BYTES, sum(corpus.size_hint or 0 for corpus in corpora) // _LARGE_SHARE)
    for index, corpus in enumerate(corpora):
        corpus.counts = CorpusCounts()
        for number, part in enumerate(_parts(corpus, largest)):
            name = f"{index:04}-{number:07}"
            if isinstance(part[0], CorpusFile):
                yield Slice(name, index, files=tuple(part))
            else:
                yield Slice(name, index, documents=tuple(part))


def _parts(corpus: Corpus, largest: int) -> Iterator[list[CorpusFile] | list[Document]]:
    files: list[CorpusFile] = []
    size = 0
    for file in corpus.files(corpus.counts):
        is_cut = file.size is None or file.size > largest or corpus.spec.max_documents is not None
        if files and (is_cut or size >= SLICE_BYTES or len(files) >= SLICE_FILES):
            yield files
            files, size = [], 0
        if is_cut:
            yield from batches(_wanted(corpus, file), SLICE_CHARACTERS)
            if corpus.counts.documents == corpus.spec.max_documents:
                return
        else:
            files.append(file)
            size += file.size or 0
    if files:
        yield files


def _wanted(corpus: Corpus, file: CorpusFile) -> Iterator[Document]:
    """Yield the documents of a file, as many as are wanted of the corpus."""
    with closing(corpus.documents(file, corpus.counts)) as documents:
        for document in documents:
            yield document
            if corpus.counts.documents == corpus.spec.max_documents:
                return


def tokenize(setup: Setup, part: Slice) -> SliceReport:
    """Write the file of a slice.

    Raises:
        RestStoreError: a file cannot be read, or the disk is full.
        EncoderError: `fastokens` was wrong.
    """
    report = SliceReport(process=os.getpid())
    started = time.perf_counter()
    counts = CorpusCounts()
    path = setup.directory / part.name
    with whole_file(path) as unfinished, unfinished.open("xb") as file:
        seen: set[int] = set()
        documents = _documents(setup, part, counts)
        for batch in batches(documents, _BATCH_CHARACTERS, _BATCH_DOCUMENTS):
            digests = b"".join(map(content_digest, batch))
            is_needed = np.ones(len(batch), dtype=bool)
            if not setup.keeps_duplicates:
                for place, key in enumerate(digest_keys(digests).tolist()):
                    is_needed[place] = key not in seen
                    seen.add(key)
            before = time.perf_counter()
            needed = [document for document, wanted in zip(batch, is_needed, strict=True) if wanted]
            tokens = setup.tokenizer.encode_documents(needed)
            report.tokenize_seconds += time.perf_counter() - before
            _write_batch(file, digests, is_needed, tokens)
        data = json.dumps(vars(counts) if part.files else None).encode()
        file.write(_NUMBERS.pack(0, len(data), 1) + data)
    report.read_seconds = time.perf_counter() - started - report.tokenize_seconds
    report.peak_memory = resident_bytes("VmHWM")
    return report


def _documents(setup: Setup, part: Slice, counts: CorpusCounts) -> Iterator[Document]:
    yield from part.documents
    for file in part.files:
        yield from setup.corpora[part.corpus].documents(file, counts)


def _write_batch(file: BinaryIO, digests: bytes, is_tokenized: npt.NDArray[np.bool_], tokens: Sequence[Tokens]) -> None:
    lengths = np.full(len(is_tokenized), _NO_TOKENS, dtype=np.int64)
    lengths[is_tokenized] = [len(ids) for ids in tokens]
    ids = np.concatenate(tokens) if tokens else np.empty(0, dtype=np.uint16)
    file.write(_NUMBERS.pack(len(lengths), len(ids), ids.itemsize))
    for data in (digests, lengths.tobytes(), ids.tobytes()):
        file.write(data)


@dataclass(frozen=True)
class TokenBatch:
    """Documents of a slice, tokenized except duplicates within the slice.

    Attributes:
        digests: their digests, 32 bytes each.
        lengths: int64[n], in tokens; -1: a document was not tokenized.
        ids: token ids of all documents.
    """

    digests: bytes
    lengths: npt.NDArray[np.int64]
    ids: Tokens

    def tokens(self, places: npt.NDArray[np.intp]) -> list[Tokens]:
        """Return the tokens of the documents at `places`, which must have been tokenized."""
        ends = np.cumsum(np.maximum(self.lengths, 0))
        assert (self.lengths[places] != _NO_TOKENS).all(), "a document without tokens"
        return [self.ids[ends[place] - self.lengths[place] : ends[place]] for place in places]


def read_slice(path: Path) -> Iterator[TokenBatch | CorpusCounts]:
    """Yield the batches of a slice's file in order, and then the counts, if it is one of files."""
    with output_errors(path), path.open("rb") as file:
        while True:
            documents, count, width = _NUMBERS.unpack(file.read(_NUMBERS.size))
            if not documents:
                if (fields := json.loads(file.read(count))) is not None:
                    yield CorpusCounts(**{**fields, "skipped": Counter(fields["skipped"])})
                return
            digests = file.read(documents * DIGEST_BYTES)
            lengths = np.frombuffer(file.read(documents * 8), dtype=np.int64)
            ids = np.frombuffer(file.read(count * width), dtype=np.dtype(f"u{width}"))
            yield TokenBatch(digests, lengths, ids)
