"""Corpora: files and directories, here or at an address, read as a stream of documents.

    corpus = open_corpus(CorpusSpec("the-stack/", include=("*.parquet",)))
    for document in corpus:
        ...
    corpus.provenance()                       # the counts of documents, files and skipped records

The order of documents is fixed, and memory is bounded (`MAX_DOCUMENT_BYTES`). Malformed input is an
error that names the file and the line or row. In a directory, damaged files and malformed records
are skipped and counted, and so are files that are clearly not documents (binary files, text that is
not UTF-8, tables without a known column).

Instead of iterating, `files` and `documents` can be called in any process and order: corpora, files
and counts can be pickled, and the counts of all files added up are those of an iteration.
"""

from __future__ import annotations

import io
import sys
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from typing import Any, BinaryIO

from build_index.corpus_spec import CorpusSpec
from build_index.documents import CorpusCounts, CorpusFile, Document, well_formed
from build_index.readers.arrow import read_arrow
from build_index.readers.containers import (
    Member,
    archive_errors,
    seekable,
    tar_members,
    zip_members,
)
from build_index.readers.detection import (
    CONTAINERS,
    HEAD_BYTES,
    NO_RECORDS,
    NoDocumentsError,
    detect_reader,
    has_magic,
)
from build_index.readers.files import open_content, open_file, read_errors
from build_index.readers.json_documents import read_json_document
from build_index.readers.json_records import read_json
from build_index.readers.parquet import read_parquet
from build_index.readers.record_reader import KNOWN_FIELDS, RecordReader
from build_index.readers.remote_corpus import RemoteCorpus
from build_index.readers.separated_values import read_separated_values
from build_index.readers.source_tree import Globs, LocalCorpus
from build_index.readers.sqlite import read_sqlite
from build_index.readers.text import read_text
from build_index.readers.transcripts import KINDS, read_transcript
from build_index.readers.unreadable_files import (
    DAMAGED,
    HINTS,
    WITHOUT_TEXT,
    reason_text,
    unreadable_kind,
)
from build_index.secrets import without_secrets
from build_index.texts import select_texts
from rest_store.errors import CorpusError, CorpusFormatError, CorpusNotFoundError, describe
from rest_store.loading.remote_files import scheme_of


def open_corpus(spec: CorpusSpec) -> Corpus:
    """Look at a corpus and choose its reader; its documents are not read yet.

    Raises:
        CorpusNotFoundError: no such file or directory.
        CorpusFormatError: the file holds no documents in a known layout.
        CorpusError: it cannot be read, or a glob is malformed.
    """
    is_local = scheme_of(spec.path) is None
    source = (
        LocalCorpus.at(spec.path, gitignore=spec.gitignore)
        if is_local
        else RemoteCorpus.at(spec.path)
    )
    if source.is_directory:
        return Corpus(spec, "tree", source)
    try:
        with read_errors(spec.path), open_file(source.top) as file:
            return Corpus(spec, detect_reader(file, spec.path, spec.field, is_named=True), source)
    except NoDocumentsError as error:
        expected = f"text, or records with one of the fields {KNOWN_FIELDS}; --field names another"
        if spec.field is not None:
            expected = f"records (JSON, JSONL or parquet) with the field '{spec.field}'"
        if hint := HINTS.get(str(error)):
            expected = f"text or records; {hint}"
        problem = f"{error} ({error.fields})" if error.fields else str(error)
        raise CorpusFormatError(describe(spec.path, "content", problem, expected)) from None


def empty_corpora(corpora: Sequence[Corpus], without_tokens: int = 0) -> CorpusError:
    """Return the error for corpora without any document that has tokens.

    Its message counts the files and records that were skipped, by reason.

    Args:
        corpora: all of them.
        without_tokens: documents that were read, and have no tokens.
    """
    skipped = Counter({"without tokens": without_tokens})
    for corpus in corpora:
        skipped.update(corpus.counts.skipped)
    notes = ", ".join(_note(reason, number) for reason, number in skipped.most_common() if number)
    notes += next((f"; {corpus.counts.refusal}" for corpus in corpora if corpus.counts.refusal), "")
    where = ", ".join(corpus.spec.path for corpus in corpora)
    return CorpusError(
        f"{where}: corpus is without a text to store ({notes or 'no files'}), expected at least"
        " one; check the path, --include, --exclude and --field"
    )


def _note(reason: str, number: int) -> str:
    """Return the number of things skipped for a reason, with a hint that helps."""
    hint = HINTS.get(reason)
    return reason_text(reason, number) + (f": {hint}" if hint else "")


class Corpus:
    """An opened corpus; made by `open_corpus`.

    Attributes:
        spec: the options of the corpus.
        source: the place of its files.
        reader: see `detect_reader`; `"tree"`: each file of a directory has its own.
        held_bytes: bound on the bytes of a file that pyarrow may hold at once; None: no bound.
        counts: the counts of the current iteration.

    Iterating yields the documents in a fixed order, each time from the beginning and with new
    counts. One iteration at a time. Can be pickled.

    Iterating raises CorpusFormatError for malformed content of a file that was named (the message
    names file and line or row), CorpusError for a record of it that is too large, MemoryBudgetError
    for data that must be held at once and exceeds `held_bytes`, CorpusNotFoundError and CorpusError
    for files that cannot be read or reached.
    """

    def __init__(self, spec: CorpusSpec, reader: str, source: LocalCorpus | RemoteCorpus) -> None:
        self.spec = spec
        self.reader = reader
        self.held_bytes: int | None = None
        self.counts = CorpusCounts()
        self.source = source
        self._globs = Globs(spec.include, spec.exclude)

    def __iter__(self) -> Iterator[Document]:
        self.counts = CorpusCounts()
        for file in self.files(self.counts):
            yield from self.documents_up_to_limit(file)
            if self.counts.documents == self.spec.max_documents:
                return

    def documents_up_to_limit(self, file: CorpusFile) -> Iterator[Document]:
        """Yield the documents of a file, up to the spec's `max_documents` of the whole corpus.

        Adds to `counts`.
        """
        with closing(self.documents(file, self.counts)) as documents:
            for document in documents:
                yield document
                if self.counts.documents == self.spec.max_documents:
                    return

    def files(self, counts: CorpusCounts) -> Iterator[CorpusFile]:
        """Yield the files in the order in which they are read.

        Args:
            counts: counts the files that listing skips and leaves out.

        Raises:
            CorpusNotFoundError: the corpus has vanished.
            CorpusError: a directory or the metadata of a file cannot be read.
        """
        return self.source.files(self._globs, counts)

    def documents(self, file: CorpusFile, counts: CorpusCounts) -> Generator[Document, None, None]:
        """Yield the documents of one file.

        `max_documents` of the spec is for all files together, not for this one.

        Args:
            file: one of `files`.
            counts: counts the documents that are read and skipped; other counts may be in it
                already.

        Raises:
            RestStoreError: as iterating does.
        """
        is_named = not self.source.is_directory
        where = self.spec.path if is_named else f"{self.source.top}/{file.relative}"
        records = RecordReader(counts, self.spec.field, strict=is_named)
        before = counts.bytes_read
        try:
            with read_errors(where), open_file(file.path) as opened:
                for document in self._selected_texts(opened, where, records, file):
                    counts.bytes_read = before + min(opened.tell(), file.size)
                    counts.documents += 1
                    counts.conversations += document.is_conversation
                    yield document
        except CorpusNotFoundError:
            if is_named:
                raise
            counts.skip_file("vanished", where, file.size)
        except CorpusFormatError as error:
            if is_named:
                raise
            counts.skip_file(DAMAGED, str(error), file.size)
        counts.bytes_read = before + file.size

    @cached_property
    def size(self) -> int:
        """Total bytes of the files (compressed, if they are).

        The first use lists all files of a directory, which takes a while for very many.
        """
        return sum(file.size for file in self.files(CorpusCounts()))

    def provenance(self) -> dict[str, Any]:
        """Return a description of the latest iteration, for the manifest.

        Returns:
            An object for JSON: `corpus` (the path of the spec), `reader`, the fields of
            `CorpusCounts` (`bytes_read` as `bytes`), the `etag` of a remote file, and the options
            that were set. Equal for equal content and options. Bytes of a path or an option that
            are not UTF-8 become U+FFFD.
        """
        counts = self.counts
        spec = self.spec
        has_files = self.source.is_directory or self.reader in ("tar", "zip")
        options: dict[str, Any] = {
            "etag": self.source.etag,
            "include": [well_formed(glob) for glob in spec.include] if has_files else [],
            "exclude": [well_formed(glob) for glob in spec.exclude] if has_files else [],
            "field": well_formed(spec.field or ""),
            "max_documents": spec.max_documents,
        }
        options["gitignore"] = (
            "" if spec.gitignore or not self.source.is_directory else "not looked at"
        )
        options["texts"] = "" if spec.texts == "all" else spec.texts
        options["keep_secrets"] = spec.keep_secrets
        options["left_out"] = dict(sorted(counts.left_out.items()))
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

    def _selected_texts(
        self, file: BinaryIO, where: str, records: RecordReader, entry: CorpusFile
    ) -> Iterator[Document]:
        """Yield the texts of a file's documents that the spec selects.

        `entry` is the entry of the corpus's listing.
        """
        reader: str | None = self.reader
        if reader == "tree":
            reader = self._detect(file, where, records.counts, entry.size)
        if reader is None:
            return
        for document in self._read_documents(file, where, records, reader, entry.size, entry):
            if document.session and not self.spec.keep_secrets:
                document = without_secrets(document, records.counts)
            yield from select_texts(document, self.spec.texts)

    def _detect(
        self,
        file: BinaryIO,
        where: str,
        counts: CorpusCounts,
        size: int,
        *,
        is_in_archive: bool = False,
    ) -> str | None:
        """Return the reader that the content of a file needs, as `detect_reader` does.

        The file is one of a directory or an archive. None: it is skipped, and counted.
        """
        try:
            reader = detect_reader(file, where, self.spec.field, is_named=False)
        except NoDocumentsError as error:
            kind = str(error)
            example = f"{where} ({error.fields})" if error.fields else where
            if kind == NO_RECORDS or kind in WITHOUT_TEXT:
                counts.leave_out(kind, example, size)
            else:
                counts.skip_file(kind, example, size)
            return None
        if reader in CONTAINERS and is_in_archive:
            counts.skip_file(f"{CONTAINERS[reader]} in an archive", where, size)
            return None
        if reader in CONTAINERS and not self.spec.include:
            counts.skip_file(CONTAINERS[reader], where, size)
            return None
        return reader

    def _read_documents(
        self,
        file: BinaryIO,
        where: str,
        records: RecordReader,
        reader: str,
        size: int,
        entry: CorpusFile | None = None,
    ) -> Iterator[Document]:
        """Yield the documents of an open file, which are not counted yet.

        Args:
            file: a seekable file.
            where: its name in messages.
            records: extracts the documents of records; has the counts.
            reader: see `detect_reader`.
            size: of the file, in bytes.
            entry: the entry of the corpus's listing; None: the file is in an archive.
        """
        records.counts.files += 1
        if reader == "parquet":
            yield from read_parquet(file, where, records, self.held_bytes or sys.maxsize)
        elif reader == "arrow":
            row_files = entry.row_files if entry is not None else ()
            yield from read_arrow(file, where, records, self.held_bytes or sys.maxsize, row_files)
        elif reader == "sqlite":
            assert entry is not None  # a database in an archive is skipped
            if scheme_of(entry.path) is not None:
                raise CorpusFormatError(
                    describe(where, "SQLite database", "at an address", "a file of this machine")
                )
            yield from read_sqlite(entry.path, where, records)
        elif reader == "zip":
            members = zip_members(file, where)
            yield from self._documents_of_archive(members, where, records, size)
        else:
            with open_content(file, where) as stream:
                if reader == "tar":
                    members = tar_members(stream, where)
                    yield from self._documents_of_archive(members, where, records, size)
                else:
                    yield from _documents_in_stream(stream, where, records, reader, size)

    def _documents_of_archive(
        self, members: Iterator[Member], where: str, records: RecordReader, size: int
    ) -> Iterator[Document]:
        """Yield the documents of an archive of `size` bytes.

        The files in it are read as the files of a directory are.
        """
        # In a directory, --include has chosen the archive itself.
        include = () if self.source.is_directory else self.spec.include
        globs = Globs(include, self.spec.exclude)
        counts = CorpusCounts()
        total = 0
        inside = replace(records, counts=counts, strict=False)
        try:
            for member in members:
                if globs.choose(member.name, counts):
                    total += member.size
                    yield from self._read_member(member, f"{where}/{member.name}", inside)
        finally:
            # The bytes of a corpus count as they are on disk.
            counts.lost_bytes = counts.lost_bytes * size // total if total else 0
            records.counts.add(counts)

    def _read_member(self, member: Member, where: str, records: RecordReader) -> Iterator[Document]:
        """Yield the documents of a file in an archive; one that is damaged is skipped."""
        counts = records.counts
        if member.content is None:
            counts.skip_file("encrypted file", where, member.size)
            return
        try:
            with archive_errors(where):
                head = member.content.read(HEAD_BYTES)
            kind = None if has_magic(head) else unreadable_kind(head, where)
            if kind is not None:
                if kind in WITHOUT_TEXT:
                    counts.leave_out(kind, where, member.size)
                else:
                    counts.skip_file(kind, where, member.size)
                return
            with seekable(head, member.content, where) as file, read_errors(where):
                size = _size(file)
                reader = self._detect(file, where, counts, size, is_in_archive=True)
                if reader is not None:
                    yield from self._read_documents(file, where, records, reader, size)
        except CorpusFormatError as error:
            counts.skip_file(DAMAGED, str(error), member.size)


def _documents_in_stream(
    stream: io.BufferedReader, where: str, records: RecordReader, reader: str, size: int
) -> Iterator[Document]:
    """Yield the documents of a file's content, whose reader does not seek."""
    if reader == "text":
        yield from read_text(stream, where, records.counts, size, strict=records.strict)
    elif reader == "table":
        yield from read_separated_values(stream, where, records)
    elif reader in KINDS:
        yield from read_transcript(stream, where, records, reader)
    elif reader in ("notebook", "trajectory"):
        yield from read_json_document(stream, where, records)
    elif reader in ("json", "jsonl"):
        yield from read_json(stream, where, records)
    else:
        raise AssertionError(f"no reader is named {reader!r}")


def _size(file: BinaryIO) -> int:
    """Return the bytes of a file, whose position changes."""
    return file.seek(0, io.SEEK_END)
