"""A live datastore that holds the texts of files: transcripts of agents, and a working tree.

Four namespaces keep the kinds of text apart, so that each is a source of its own: `written`, the
answers in transcripts; `read`, their other texts; `files`, the texts of a tree; `history`, the
hunks of commits.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from build_index.corpus import Corpus, open_corpus
from build_index.corpus_spec import CorpusSpec
from build_index.documents import READ, WRITTEN, CorpusCounts, CorpusFile, Document
from build_index.duplicates import content_digest
from build_index.fast_encoder import EncoderError
from build_index.readers.source_tree import Globs, LocalCorpus
from build_index.secrets import LEFT_OUT, text_without_secrets, without_secrets
from build_index.target_tokenizer import TargetTokenizer, Tokens
from build_index.texts import read, written
from build_index.tokenization import load_in_process, load_tokenizer
from rest_store.agents.record import Key, Record
from rest_store.errors import CorpusError, CorpusNotFoundError, TokenizerLoadError, describe
from rest_store.live.agent_memory import FILES, NAMESPACES
from rest_store.live.directory import is_live
from rest_store.live.live_datastore import LiveDatastore
from rest_store.loading.local_path import local_path

# Read before they are added. Each addition becomes a segment, and small ones are sorted once more.
_BATCH_CHARACTERS = 1 << 24
_BATCH_FILES = 1 << 14
_MAX_GROUP = 200  # characters of a session's name
_RACY_NANOSECONDS = 100_000_000  # in which a file may be written twice without another time


class Place(NamedTuple):
    """A path that is remembered.

    Attributes:
        corpus: reads the files.
        source: lists it.
    """

    corpus: Corpus
    source: LocalCorpus


class Texts(NamedTuple):
    """What is new in a file, or in a part of a history.

    Attributes:
        name: of the file.
        version: a mark that changes when the file does; "": it is to be read again, or is gone.
        documents: by their keys, all that there are.
    """

    name: str
    version: str
    documents: Mapping[Key, Document]


def name_of(path: str) -> str:
    """Return the name of a path in the record: bytes that are not UTF-8 are escaped."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


class AgentMemory:
    """A memory that is open for writing.

    Args:
        directory: of the live datastore; a new one is begun if it is absent or empty.
        tokenizer: of the target model; None: the one that the memory was begun with.
        chat_template: a file with a Jinja template, or its text; None: that of the tokenizer, or
            the one that the memory was begun with.
        keep_secrets: whether lines that look like secrets are kept.
        keep_versions: versions of each file that are kept, the present one counted.

    Attributes:
        live: the datastore.
        counts: of texts that were read, and of those that were left out.
        added: documents added so far.
        discarded: documents discarded so far.

    Raises:
        TokenizerLoadError: there is no tokenizer, or it cannot be loaded.
        DatastoreError, TokenizerMismatchError: as `LiveDatastore.open` raises.
        StorageError: the record of the memory cannot be written.
    """

    def __init__(
        self,
        directory: Path,
        *,
        tokenizer: str | None = None,
        chat_template: str | None = None,
        keep_secrets: bool = False,
        keep_versions: int = 1,
    ) -> None:
        self.counts = CorpusCounts()
        self.added = 0
        self.discarded = 0
        self._keep_secrets = keep_secrets
        self._keep_versions = keep_versions
        self._target, settings = _tokenizer(directory, tokenizer, chat_template)
        self.live = LiveDatastore.open(directory, tokenizer=self._target)
        try:
            self._record = Record(directory)
            for name, value in settings.items():
                if self._record.setting(name) != value:
                    self._record.set_setting(name, value)
        except BaseException:
            self.live.close()
            raise
        self._target.accelerate()

    def close(self) -> None:
        """Close the memory; documents that wait to be discarded are, the next time."""
        self.live.close()
        self._record.close()

    def __enter__(self) -> AgentMemory:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def place(self, path: str, **reading: object) -> Place:
        """Look at a path; `reading`: as `CorpusSpec` takes it.

        Raises:
            CorpusError: as `open_corpus` raises, or it is an address.
        """
        spec = CorpusSpec(path, keep_secrets=True, **reading)  # type: ignore[arg-type]
        corpus = open_corpus(spec)
        if not isinstance(corpus.source, LocalCorpus):
            expected = "a file or a directory of this machine"
            raise CorpusError(describe(path, "path to remember", "an address", expected))
        return Place(corpus, corpus.source)

    def sync(self, place: Place, paths: Iterable[str] = ("",)) -> None:
        """Make the memory hold the texts of files: changed ones are read, absent ones forgotten.

        Args:
            place: that they are in.
            paths: relative to it, of files and directories; "": all. If the place itself is
                absent, its documents stay.

        Raises:
            CorpusError: there is no chat template for a transcript.
            StorageError: the memory cannot be written.
        """
        self.store(self._changes(place, paths))

    def store(self, changes: Iterable[Texts]) -> None:
        """Store the texts of files; those that they replace are discarded by `discard`.

        While some are stored, by another thread, the next ones are read.
        """
        batch: list[Texts] = []
        size = 0
        storing: Future[CorpusCounts] | None = None
        with ThreadPoolExecutor(1) as thread:
            for texts in changes:
                batch.append(texts)
                size += sum(document.size for document in texts.documents.values())
                if size >= _BATCH_CHARACTERS or len(batch) >= _BATCH_FILES:
                    if storing is not None:
                        self.counts.add(storing.result())
                    storing = thread.submit(self._store, batch)
                    batch = []
                    size = 0
            if storing is not None:
                self.counts.add(storing.result())
        if batch:
            self.counts.add(self._store(batch))

    def discard(self) -> None:
        """Discard documents that were replaced, also those of a run that was killed."""
        for namespace, ids in self._record.discarded().items():
            self.discarded += self.live.namespace(namespace).discard(ids)
            self._record.forget(namespace, ids)

    def known(self, name: str) -> dict[str, str]:
        """Return the versions of the files that are known below a name."""
        return self._record.versions(name)

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Return the numbers of files and of documents of each namespace that has some."""
        return self._record.counts()

    # --- Reading ----------------------------------------------------------------------------------

    def _changes(self, place: Place, paths: Iterable[str]) -> Iterator[Texts]:
        globs = Globs(place.corpus.spec.include, place.corpus.spec.exclude)
        for relative in paths:
            top = f"{place.source.top}/{relative}" if relative else place.source.top
            known = self._record.versions(name_of(top))
            try:
                for file in place.source.below(relative, globs, CorpusCounts()):
                    version = known.pop(name_of(file.path), None)
                    if version is None or version != _version(file):
                        yield from self._texts(place, file)
            except CorpusNotFoundError:
                if not relative:
                    continue
            for name in known:
                yield Texts(name, "", {})

    def _texts(self, place: Place, file: CorpusFile) -> Iterator[Texts]:
        """Yield the documents of a file; nothing if it cannot be read now."""
        documents: dict[Key, Document] = {}
        version = _version(file)
        if version and time.time_ns() - int(file.version) < _RACY_NANOSECONDS:
            version = ""
        counts = CorpusCounts()
        try:
            with closing(place.corpus.documents(file, counts)) as of_file:
                for document in of_file:
                    for key, one in self._keyed(document):
                        documents.setdefault(key, one)
        except CorpusError as error:
            self.counts.skip_file("unreadable now", str(error), file.size)
            return
        self.counts.add(counts)
        yield Texts(name_of(file.path), version or "?", documents)

    def _keyed(self, document: Document) -> Iterator[tuple[Key, Document]]:
        if not document.is_conversation:
            yield self._keyed_text(FILES, document)
            return
        for answer in written(document):
            clean = self.clean(answer)
            yield Key(WRITTEN, content_digest(clean).hex()), clean
        for text in read(document):
            yield self._keyed_text(READ, text)

    def _keyed_text(self, namespace: str, document: Document) -> tuple[Key, Document]:
        clean = self.clean(document)
        return Key(namespace, content_digest(clean).hex()), clean

    def clean(self, document: Document) -> Document:
        """Return a document without secrets."""
        if self._keep_secrets:
            return document
        if document.is_conversation:
            return without_secrets(document, self.counts)
        text, lines = text_without_secrets(document.text)
        if not lines:
            return document
        self.counts.left_out[LEFT_OUT] += lines
        return replace(document, text=text)

    # --- Storing ----------------------------------------------------------------------------------

    def _store(self, batch: Sequence[Texts]) -> CorpusCounts:
        """Store texts; return the counts of those that are left out."""
        new = {key: document for texts in batch for key, document in texts.documents.items()}
        absent = {key: new[key] for key in new.keys() - self._record.stored(new)}
        counts = CorpusCounts()
        encoded = self._encoded(absent, counts)
        refused = absent.keys() - encoded.keys()
        keys = {texts.name: texts.documents.keys() - refused for texts in batch}
        self._record.announce(keys)
        for namespace in NAMESPACES:
            some = [key for key in encoded if key.namespace == namespace]
            if some:
                added = self.live.namespace(namespace).add(
                    [encoded[key] for key in some],
                    [key.id for key in some],
                    group=[new[key].session[:_MAX_GROUP] for key in some],
                    epoch=[new[key].order for key in some],
                )
                self.added += len(added.added)
        versions = {texts.name: texts.version for texts in batch}
        self._record.replace(versions, keys, keep=self._keep_versions)
        return counts

    def _encoded(
        self, documents: Mapping[Key, Document], counts: CorpusCounts
    ) -> dict[Key, Tokens]:
        """Return the tokens of documents, without those that have none or are refused."""
        some = list(documents.values())
        try:
            tokens = self._target.encode_counted(some, counts)
        except EncoderError:
            self._target.decelerate()
            tokens = self._target.encode_counted(some, counts)
        pairs = zip(documents, tokens, strict=True)
        return {key: ids for key, ids in pairs if ids is not None and len(ids)}


def _version(file: CorpusFile) -> str:
    try:
        inode = os.stat(file.path).st_ino  # noqa: PTH116 - of one of many files
    except OSError:
        return ""
    return f"{file.size} {file.version} {inode}"


def _tokenizer(
    directory: Path, tokenizer: str | None, chat_template: str | None
) -> tuple[TargetTokenizer, dict[str, str]]:
    """Return the tokenizer of a memory, and the settings that name it from now on."""
    settings: dict[str, str] = {}
    if is_live(directory):
        with closing(Record(directory)) as record:
            for name in ("tokenizer", "chat_template"):
                if (value := record.setting(name)) is not None:
                    settings[name] = value
    if tokenizer is not None:
        path = local_path(tokenizer)
        settings["tokenizer"] = str(path.absolute()) if path.exists() else tokenizer
    if chat_template is not None:
        is_file = "{" not in chat_template
        settings["chat_template"] = (
            str(local_path(chat_template).absolute()) if is_file else chat_template
        )
    if "tokenizer" not in settings:
        raise TokenizerLoadError(
            describe(directory, "tokenizer", "unknown", "--tokenizer, for a memory that is begun")
        )
    template = settings.get("chat_template")
    loaded = load_in_process(settings["tokenizer"])
    return load_tokenizer(loaded, chat_template=template), settings
