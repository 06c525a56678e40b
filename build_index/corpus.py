"""Corpora: files and directories, here or at an address, read as a stream of documents.

    corpus = open_corpus(CorpusSpec("the-stack/", include=("*.parquet",)))
    for document in corpus:
        ...
    corpus.provenance()                       # what was read and what was skipped

The order of documents is fixed, and memory is bounded (`LARGEST_DOCUMENT_BYTES`). Malformed input is an error that
names the file and the line or row. In a directory, files that are clearly not documents (binary files, text that is not
UTF-8, tables without a known column) are skipped and counted.

Instead of iterating, `files` and `documents` can be called in any process and order: corpora, files and counts can be
pickled, and the counts of all files added up are those of an iteration.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from functools import cached_property
from typing import Any, BinaryIO

from build_index.corpus_spec import CorpusSpec
from build_index.documents import CorpusCounts, CorpusFile, Document, well_formed
from build_index.readers.detection import NoDocumentsError, reader_of
from build_index.readers.files import content_of, open_file, read_errors
from build_index.readers.json_records import read_json
from build_index.readers.parquet import read_parquet
from build_index.readers.records import KNOWN_FIELDS, RecordReader
from build_index.readers.remote_corpus import RemoteCorpus
from build_index.readers.source_tree import Globs, LocalCorpus
from build_index.readers.text import read_text
from rest_store.errors import CorpusFormatError, CorpusNotFoundError, EmptyCorpusError, describe
from rest_store.loading.remote_files import scheme_of


def open_corpus(spec: CorpusSpec) -> Corpus:
    """Look at a corpus and choose its reader; its documents are not read yet.

    Raises:
        CorpusNotFoundError: no such file or directory.
        CorpusFormatError: the file holds no documents in a known layout.
        CorpusError: it cannot be read, or a glob is malformed.
    """
    source = LocalCorpus.at(spec.path) if scheme_of(spec.path) is None else RemoteCorpus.at(spec.path)
    if source.is_directory:
        return Corpus(spec, "tree", source)
    try:
        with read_errors(spec.path), open_file(source.top) as file:
            return Corpus(spec, reader_of(file, spec.path, spec.field, is_named=True), source)
    except NoDocumentsError as error:
        expected = f"text, or records with one of the fields {KNOWN_FIELDS}; --field names another"
        if spec.field is not None:
            expected = f"records (JSON, JSONL or parquet) with the field '{spec.field}'"
        found = f"{error} ({error.fields})" if error.fields else str(error)
        raise CorpusFormatError(describe(spec.path, "content", found, expected)) from None


def empty_corpora(corpora: Sequence[Corpus], without_tokens: int = 0) -> EmptyCorpusError:
    """Return the error for corpora without a document that has tokens: what was skipped and left out.

    Args:
        corpora: all of them.
        without_tokens: documents that were read, and have no tokens.
    """
    skipped = Counter({"without tokens": without_tokens})
    for corpus in corpora:
        skipped.update(corpus.counts.skipped)
    notes = ", ".join(f"{number:,} {reason}" for reason, number in skipped.most_common() if number)
    found = f"without a text to store ({notes or 'no files'})"
    where = ", ".join(corpus.spec.path for corpus in corpora)
    expected = "at least one; check the path, --include, --exclude and --field"
    return EmptyCorpusError(describe(where, "corpus", found, expected))


class Corpus:
    """An opened corpus; made by `open_corpus`.

    Attributes:
        spec: what to read.
        source: where its files are.
        reader: see `reader_of`; `"tree"`: each file of a directory has its own.
        row_group_bytes: most bytes of the documents in a row group of a parquet file; None: no bound.
        counts: of the current iteration.

    Iterating yields the documents in a fixed order, each time from the beginning and with new counts. One iteration at
    a time. Can be pickled.

    Iterating raises CorpusFormatError for malformed content (the message names file and line or row),
    DocumentSizeError for a record that is too large, MemoryBudgetError for a row group above `row_group_bytes`,
    CorpusNotFoundError and CorpusError for what has become unreadable or cannot be reached.
    """

    def __init__(self, spec: CorpusSpec, reader: str, source: LocalCorpus | RemoteCorpus) -> None:
        self.spec = spec
        self.reader = reader
        self.row_group_bytes: int | None = None
        self.counts = CorpusCounts()
        self.source = source
        self._globs = Globs(spec.include, spec.exclude)

    def __iter__(self) -> Iterator[Document]:
        self.counts = CorpusCounts()
        for file in self.files(self.counts):
            yield from self.wanted(file)
            if self.counts.documents == self.spec.max_documents:
                return

    def wanted(self, file: CorpusFile) -> Iterator[Document]:
        """Yield the documents of a file, as many as are wanted of the corpus; adds to `counts`."""
        with closing(self.documents(file, self.counts)) as documents:
            for document in documents:
                yield document
                if self.counts.documents == self.spec.max_documents:
                    return

    def files(self, counts: CorpusCounts) -> Iterator[CorpusFile]:
        """Yield the files in the order in which they are read.

        Args:
            counts: counts what listing skips and leaves out.

        Raises:
            CorpusNotFoundError: the corpus has vanished.
            CorpusError: a directory or the metadata of a file cannot be read.
        """
        return self.source.files(self._globs, counts)

    def documents(self, file: CorpusFile, counts: CorpusCounts) -> Generator[Document, None, None]:
        """Yield the documents of one file; `max_documents` of the spec is for all files together, not for this one.

        Args:
            file: one of `files`.
            counts: counts what is read and skipped, document by document; other counts may be in it already.

        Raises:
            RestStoreError: as iterating does.
        """
        is_named = not self.source.is_directory
        where = self.spec.path if is_named else f"{self.source.top}/{file.relative}"
        records = RecordReader(counts, self.spec.field, strict=is_named)
        before = counts.bytes_read
        try:
            with read_errors(where), open_file(file.path) as opened:
                for document in self._documents_of(opened, where, records):
                    counts.bytes_read = before + min(opened.tell(), file.size)
                    counts.documents += 1
                    counts.conversations += document.is_conversation
                    yield document
        except CorpusNotFoundError:
            if is_named:
                raise
            counts.skip("vanished")
        counts.bytes_read = before + file.size

    @cached_property
    def size(self) -> int:
        """Total bytes of the files (compressed, if they are).

        The first use lists all files of a directory, which takes a while for very many.
        """
        return sum(file.size for file in self.files(CorpusCounts()))

    def provenance(self) -> dict[str, Any]:
        """Return what was read in the latest iteration, for the manifest.

        Returns:
            An object for JSON: `corpus` (the path of the spec), `reader`, the fields of `CorpusCounts` (`bytes_read` as
            `bytes`), the `etag` of a remote file, and the options that were set. Equal for equal content and options.
            What is not UTF-8 in a path or an option is U+FFFD.
        """
        counts, spec = self.counts, self.spec
        globs = (spec.include, spec.exclude) if self.source.is_directory else ((), ())
        include, exclude = ([well_formed(glob) for glob in some] for some in globs)
        options: dict[str, Any] = {"etag": self.source.etag, "include": include, "exclude": exclude}
        options |= {"field": well_formed(spec.field or ""), "max_documents": spec.max_documents}
        return {
            "corpus": well_formed(spec.path),
            "reader": self.reader,
            "documents": counts.documents,
            "conversations": counts.conversations,
            "files": counts.files,
            "bytes": counts.bytes_read,
            "skipped": dict(sorted(counts.skipped.items())),
            **{name: value for name, value in options.items() if value},
        }

    def _documents_of(self, file: BinaryIO, where: str, records: RecordReader) -> Iterator[Document]:
        """Yield the documents of an open file, which are not counted yet."""
        counts, reader = records.counts, self.reader
        if reader == "tree":
            try:
                reader = reader_of(file, where, self.spec.field, is_named=False)
            except NoDocumentsError as error:
                counts.skip(str(error))
                return
        counts.files += 1
        if reader == "parquet":
            yield from read_parquet(file, where, records, self.row_group_bytes or sys.maxsize)
            return
        with content_of(file, where) as stream:
            if reader == "text":
                yield from read_text(stream, where, counts, strict=records.strict)
            else:
                yield from read_json(stream, where, records)
