"""Corpora as they exist: files, directories and data sets of the hub, read as a stream of documents.

    corpus = open_corpus(CorpusSpec("the-stack/", langs=("python",)))
    for document in corpus:
        ...
    corpus.provenance()                       # what was read, what was passed over

The order of documents is fixed, memory is bounded by the largest document, and an input that is not as it should be is
an error that names the file and the line or row. In a directory, what is plainly no document (binary files, text that
is not UTF-8, tables without a known column) is passed over and counted.
"""

from __future__ import annotations

import stat
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from build_index.counts import CorpusCounts
from build_index.documents import Document
from build_index.readers.compression import compression_of, is_decodable, open_file, open_stream, read_error
from build_index.readers.detection import Detection, detect, is_named_jsonl
from build_index.readers.hub import HUB_PREFIX, HubAddress, read_hub
from build_index.readers.json_values import read_json_lines, read_json_values
from build_index.readers.parquet import read_parquet
from build_index.readers.records import KNOWN_FIELDS, RecordReader
from build_index.readers.source_tree import TreeFile, walk
from build_index.readers.text import read_text
from rest_store.errors import CorpusError, CorpusFormatError, describe

__all__ = ["READERS", "Corpus", "CorpusSpec", "Document", "open_corpus"]

READERS = ("parquet", "jsonl", "json", "chat", "text", "tree")
"""Readers that can be forced. `chat` is JSON or JSONL whose records must be conversations; `tree` a directory."""
_HEAD_BYTES = 4096


@dataclass(frozen=True)
class CorpusSpec:
    """What to read.

    Attributes:
        path: a file, a directory, or `hf://owner/name[/config][@split]`.
        reader: one of `READERS`; None: chosen by content, for each file of a directory on its own.
        field: the field of each record that holds the document, a dotted path perhaps; None: by known layouts.
        langs: languages wanted, in any case, compared with the field `lang` or `language`; empty: all.
        include: globs of files wanted in a directory; empty: all.
        exclude: globs of files and directories left out, besides `source_tree.DEFAULT_EXCLUDES`.
        max_documents: stop after so many; None: read all.

    With `field` or `langs`, files of a directory that hold no records are passed over.
    """

    path: str
    reader: str | None = None
    field: str | None = None
    langs: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    max_documents: int | None = None


def open_corpus(spec: CorpusSpec) -> Corpus:
    """Look at a corpus and choose its reader.

    Args:
        spec: what to read.

    Returns:
        The corpus, nothing of it read yet.

    Raises:
        CorpusNotFoundError: no such file or directory.
        CorpusFormatError: the file is not what the reader takes, or holds no document that is recognised.
        CorpusError: options that contradict each other, or a file that cannot be read.
    """
    where = spec.path
    if spec.reader is not None and spec.reader not in READERS:
        raise CorpusError(describe(where, "reader", f"'{spec.reader}'", "one of " + ", ".join(READERS)))
    if spec.max_documents is not None and spec.max_documents < 1:
        raise CorpusError(describe(where, "max_documents", spec.max_documents, "at least 1"))
    if where.startswith(HUB_PREFIX):
        HubAddress.parse(where)
        if spec.reader not in (None, "chat"):
            raise CorpusError(
                describe(where, "reader", f"'{spec.reader}'", "none, or 'chat', for a data set of the hub")
            )
        return Corpus(spec, "hub")
    path = Path(where).expanduser()
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise read_error(where, error) from error
    if stat.S_ISDIR(mode):
        return Corpus(spec, spec.reader or "tree")
    if not stat.S_ISREG(mode):
        raise CorpusError(describe(where, "corpus", "a pipe, socket or device", "a regular file or a directory"))
    if spec.reader == "tree":
        raise CorpusError(describe(where, "corpus", "a file", "a directory for the reader 'tree'"))
    if spec.include or spec.exclude:
        raise CorpusError(describe(where, "corpus", "a file", "a directory where include or exclude is given"))
    return Corpus(spec, spec.reader or _reader_of_file(path, spec))


class Corpus:
    """A corpus, opened; made by `open_corpus`.

    Attributes:
        spec: what was asked for.
        reader: the reader in use: one of `READERS`, or `"hub"`.

    Iterating yields its documents in a fixed order; each time from the beginning, with the counts set to zero. One
    iteration at a time; `bytes_read` and `documents_read` may be read by other threads meanwhile.

    Iterating raises CorpusFormatError for content that is not as expected (the message names file and line or row),
    CorpusNotFoundError and CorpusError for what has become unreadable or cannot be state.
    """

    def __init__(self, spec: CorpusSpec, reader: str) -> None:
        self.spec = spec
        self.reader = reader
        self._path = Path(spec.path).expanduser()
        self._counts = CorpusCounts()

    def __iter__(self) -> Iterator[Document]:
        self._counts = counts = CorpusCounts()
        with closing(self._documents(counts)) as documents:
            for document in documents:
                counts.documents += 1
                counts.conversations += document.is_conversation
                yield document
                if counts.documents == self.spec.max_documents:
                    return

    @property
    def bytes_read(self) -> int:
        """Bytes read so far in the current iteration, in the units of `size_hint`."""
        return self._counts.bytes_read

    @property
    def documents_read(self) -> int:
        """Documents given out so far in the current iteration."""
        return self._counts.documents

    @cached_property
    def size_hint(self) -> int | None:
        """Bytes in all, as on disk (compressed, where files are); None for a data set of the hub.

        For a directory the files are listed once more: this takes a while for very many.
        """
        if self.reader == "hub":
            return None
        return sum(file.size for file in self._files(CorpusCounts()))

    def provenance(self) -> dict[str, Any]:
        """Return what was read in the latest iteration, for the manifest.

        Returns:
            An object for JSON: `corpus` (the path as given), `reader`, `documents`, `conversations`, `files`, `bytes`
            (on disk; of the hub, of text), `skipped` (numbers by reason), `split_files` (text files so large that
            they were read in pieces), and those options that were given. Equal for equal content and options.
        """
        counts, spec = self._counts, self.spec
        options: dict[str, Any] = {
            "forced_reader": spec.reader,
            "field": spec.field,
            "langs": list(spec.langs),
            "include": list(spec.include),
            "exclude": list(spec.exclude),
            "max_documents": spec.max_documents,
        }
        return {
            "corpus": spec.path,
            "reader": self.reader,
            "documents": counts.documents,
            "conversations": counts.conversations,
            "files": counts.files,
            "bytes": counts.bytes_read,
            "split_files": counts.split_files,
            "skipped": dict(sorted(counts.skipped.items())),
            **{name: value for name, value in options.items() if value},
        }

    def _documents(self, counts: CorpusCounts) -> Generator[Document, None, None]:
        records = self._records(counts)
        if self.reader == "hub":
            counts.files += 1
            yield from read_hub(self.spec.path, records)
            return
        strict = not self._path.is_dir()
        for file in self._files(counts):
            where = self.spec.path if strict else f"{self.spec.path.rstrip('/')}/{file.relative}"
            before = counts.bytes_read
            yield from self._file_documents(file.path, where, records, strict=strict)
            counts.bytes_read = before + file.size

    def _files(self, counts: CorpusCounts) -> Iterator[TreeFile]:
        if self._path.is_dir():
            yield from walk(self._path, self.spec.include, self.spec.exclude, self.spec.path, counts)
            return
        try:
            yield TreeFile(self._path, self._path.name, self._path.stat().st_size)
        except OSError as error:
            raise read_error(self.spec.path, error) from error

    def _records(self, counts: CorpusCounts) -> RecordReader:
        langs = frozenset(language.lower() for language in self.spec.langs)
        return RecordReader(counts, self.spec.field, langs, conversations_only=self.spec.reader == "chat")

    def _file_documents(self, path: Path, where: str, records: RecordReader, *, strict: bool) -> Iterator[Document]:
        """Yield the documents of one file; `strict`: it was named, so that passing it over would be an error."""
        reader: str | None = self.reader
        counts = records.counts
        if reader == "tree":
            reader = self._reader_in_tree(path, where, counts)
        elif reader == "chat":
            reader = "json" if detect(path, where, self.spec.field).in_list else "jsonl"
        if reader is None:
            return
        counts.files += 1
        if reader == "parquet":
            yield from read_parquet(path, where, records, counts.advance)
            return
        with open_stream(path, where, counts.advance) as stream:
            if reader == "text":
                yield from read_text(stream, where, counts, strict=strict)
            else:
                read = read_json_lines if reader == "jsonl" else read_json_values
                yield from read(stream, where, records)

    def _reader_in_tree(self, path: Path, where: str, counts: CorpusCounts) -> str | None:
        """Choose the reader of a file in a directory; None, and a count, for what is no document."""
        found = _detect_in_tree(path, where, self.spec.field)
        if found.reader == "binary":
            counts.skip("binary")
            return None
        if found.reader == "parquet" and not found.has_documents:
            counts.skip("table without a known column")
            return None
        # JSON in a source tree is mostly configuration and test data, that is, text.
        is_records = found.reader != "text" and found.has_documents and (found.reader != "json" or found.in_list)
        if is_records:
            return found.reader
        if self.spec.field is not None or self.spec.langs:
            counts.skip("no records")
            return None
        if found.reader == "jsonl" and is_named_jsonl(path):
            counts.skip("JSONL without a known field")
            return None
        return "text"


def _detect_in_tree(path: Path, where: str, field: str | None) -> Detection:
    """Detect; a file that only begins like a compressed one is binary, one that is cut off remains an error."""
    with open_file(path, where) as file:
        head = file.read(_HEAD_BYTES)
    if compression_of(head) is not None and not is_decodable(head, where):
        return Detection("binary")
    return detect(path, where, field)


def _reader_of_file(path: Path, spec: CorpusSpec) -> str:
    """Choose the reader of a file that was named."""
    found = detect(path, spec.path, spec.field)
    if found.reader == "binary":
        raise CorpusFormatError(describe(spec.path, "content", "binary", "UTF-8 text, JSON, JSONL or parquet"))
    if found.reader == "text" and (spec.field is not None or spec.langs):
        option = f"--field {spec.field}" if spec.field is not None else "--lang"
        expected = f"records (JSON, JSONL or parquet), as {option} asks for"
        raise CorpusFormatError(describe(spec.path, "content", "text", expected))
    if not found.has_documents:
        missing = "a known layout" if spec.field is None else f"the field '{spec.field}'"
        expected = f"one of the fields {KNOWN_FIELDS}; or --field NAME, or --reader text"
        raise CorpusFormatError(describe(spec.path, "its first record", f"without {missing}", expected))
    return found.reader
