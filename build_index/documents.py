"""The pieces of a corpus: files, documents (a text or a conversation each), and counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

MAX_DOCUMENT_BYTES = 16 << 20
"""Larger records and documents are not read.

The size is fixed and does not follow the memory, because it decides which documents are stored.
"""
# Kinds of a document: an answer of a model, and a text that it read.
WRITTEN = "written"
READ = "read"
BATCH_CHARACTERS = 1 << 19  # enough for the tokenizing threads; more would only take memory
BATCH_DOCUMENTS = 1 << 13

Message: TypeAlias = tuple[str, ...]
"""Role and content, such as `("user", "What is a suffix array?")`.

Further fields follow as JSON, if there are any.
"""


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a corpus: either a text or a conversation.

    Attributes:
        text: the text; empty for a conversation.
        messages: the turns, oldest first; empty for a text.
        origin: path, with a line or row number where a file holds several documents; for messages,
            not compared.
        session: the session of an agent that it is from; empty: none.
        order: its place among the documents of its session and kind.
        kind: `WRITTEN`: only the last message is stored, with the end of its prompt; `READ`; empty:
            all messages are stored.
    """

    text: str = ""
    messages: tuple[Message, ...] = ()
    origin: str = field(default="", compare=False)
    session: str = field(default="", compare=False)
    order: int = field(default=0, compare=False)
    kind: str = field(default="", compare=False)

    @property
    def is_conversation(self) -> bool:
        """Whether it is a conversation."""
        return bool(self.messages)

    @property
    def is_empty(self) -> bool:
        """Whether it holds only white space."""
        texts = [self.text]
        for message in self.messages:
            texts += message[1:]
        return all(not text or text.isspace() for text in texts)

    @property
    def size(self) -> int:
        """Length in characters, over all turns, roles and further fields included."""
        return len(self.text) + sum(sum(map(len, message)) for message in self.messages)


@dataclass(frozen=True, slots=True)
class CorpusFile:
    """A file of a corpus; can be pickled.

    Attributes:
        path: its path or address.
        relative: its path from the top of the corpus, with forward slashes; bytes that are not
            UTF-8 as U+FFFD.
        size: bytes, compressed if it is.
        version: the time of the last change, or the ETag of a remote file.
        row_files: for an Arrow file, the files with the numbers of the rows that belong to its data
            set; empty: all rows do.
    """

    path: str
    relative: str
    size: int
    version: str = ""
    row_files: tuple[str, ...] = ()


@dataclass
class CorpusCounts:
    """Counts of a pass over a corpus, or over some of its files.

    Counts can be added up and pickled.

    Attributes:
        documents: documents yielded, without the conversations that the chat template refused.
        conversations: conversations among them.
        files: files opened and read.
        bytes_read: bytes on disk (compressed, if they are) of these files and of the files that
            were passed over.
        skipped: number of skipped files and records by reason, such as `"empty"` or `"left out by
            --include"`.
        sizes: their bytes, by reason, where they are known.
        largest: by reason, the size of the largest example and its name, which may describe its
            fault.
        lost_bytes: bytes of skipped files that no option asked to skip.
        lost_records: skipped records.
        left_out: by kind, such as `"tool calls"`, how many pieces stored conversations lack.
        refusal: the first conversation that the chat template refused, with the reason.

    Written by the iterating thread; other threads may read it for a progress bar.
    """

    documents: int = 0
    conversations: int = 0
    files: int = 0
    bytes_read: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    sizes: Counter[str] = field(default_factory=Counter)
    largest: dict[str, tuple[int, str]] = field(default_factory=dict)
    lost_bytes: int = 0
    lost_records: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    refusal: str = ""

    def add(self, other: CorpusCounts) -> None:
        """Add the counts of other files."""
        self.documents += other.documents
        self.conversations += other.conversations
        self.files += other.files
        self.bytes_read += other.bytes_read
        self.skipped.update(other.skipped)
        self.sizes.update(other.sizes)
        self.lost_bytes += other.lost_bytes
        self.lost_records += other.lost_records
        self.left_out.update(other.left_out)
        self.refusal = self.refusal or other.refusal
        for reason, (size, example) in other.largest.items():
            self._show(reason, example, size)

    def skip(self, reason: str, example: str = "", size: int = 0) -> None:
        """Count a record that is lost.

        Args:
            reason: in a few words.
            example: its place, or an error about it.
            size: size of the record, for the choice of the largest example.
        """
        self.lost_records += 1
        self.leave_out(reason, example, size)

    def refuse(self, refusal: str) -> None:
        """Count a conversation that was read, and that the chat template refuses, as lost.

        `refusal` says why.
        """
        self.documents -= 1
        self.conversations -= 1
        self.skip("refused by the chat template")
        self.refusal = self.refusal or refusal

    def skip_file(self, reason: str, example: str, size: int) -> None:
        """Count a file that is lost, with its bytes."""
        self.lost_bytes += size
        self.leave_out(reason, example, size)

    def leave_out(self, reason: str, example: str = "", size: int = 0) -> None:
        """Count a file or record that is no loss: an option asked for it, or it has no text."""
        self.skipped[reason] += 1
        if size:
            self.sizes[reason] += size
        self._show(reason, example, size)

    def lost_share(self) -> float:
        """Return the greater share that is lost: of the bytes of files, or of the records."""
        byte_share = self.lost_bytes / self.bytes_read if self.bytes_read else 0.0
        records = self.documents + self.lost_records
        record_share = self.lost_records / records if records else 0.0
        return max(byte_share, record_share)

    def with_skipped(self, reason: str, number: int) -> CorpusCounts:
        """Return these counts with `number` of the documents moved to the skipped ones."""
        counts = CorpusCounts()
        counts.add(self)
        if number:
            counts.documents -= number
            counts.lost_records += number
            counts.skipped[reason] += number
        return counts

    def to_json(self) -> dict[str, Any]:
        """Return an object for JSON."""
        return dict(vars(self))

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> CorpusCounts:
        """Return the counts that `to_json` described."""
        largest = {reason: (size, example) for reason, (size, example) in fields["largest"].items()}
        counters = {name: Counter(fields[name]) for name in ("skipped", "sizes", "left_out")}
        return cls(**{**fields, **counters, "largest": largest})

    def _show(self, reason: str, example: str, size: int) -> None:
        """Keep the largest example, and of equally large ones the first by name."""
        before = self.largest.get(reason)
        if example and (before is None or (-size, example) < (-before[0], before[1])):
            self.largest[reason] = (size, example)


def well_formed(text: str) -> str:
    r"""Return the text with surrogate pairs joined and lone surrogates replaced by U+FFFD.

    JSON can hold lone surrogates (`"\ud83d"`), and so can paths that are not UTF-8. Tokenizers and
    files refuse them.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def batches(
    documents: Iterable[Document], characters: int = BATCH_CHARACTERS, number: int = BATCH_DOCUMENTS
) -> Iterator[list[Document]]:
    """Yield documents in lists; a list ends once it holds so many characters or documents."""
    batch: list[Document] = []
    held = 0
    for document in documents:
        batch.append(document)
        held += document.size
        if held >= characters or len(batch) >= number:
            yield batch
            batch = []
            held = 0
    if batch:
        yield batch
