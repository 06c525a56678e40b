"""What a corpus is made of: files, documents (a text or a conversation each), counts of what was read and skipped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

LARGEST_DOCUMENT_BYTES = 16 << 20
"""Larger records and documents are not read. It does not depend on the memory, since it decides what is stored."""
BATCH_CHARACTERS = 1 << 19  # enough for the tokenizing threads; more would only take memory
BATCH_DOCUMENTS = 1 << 13

Message: TypeAlias = tuple[str, ...]
"""Role and content, such as `("user", "What is a suffix array?")`, and further fields as JSON, if there are any."""


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a corpus: either a text or a conversation.

    Attributes:
        text: the text; empty for a conversation.
        messages: the turns, oldest first; empty for a text.
        origin: path, with a line or row number where a file holds several documents; for messages, not compared.
    """

    text: str = ""
    messages: tuple[Message, ...] = ()
    origin: str = field(default="", compare=False)

    @property
    def is_conversation(self) -> bool:
        """Whether it is a conversation."""
        return bool(self.messages)

    @property
    def is_empty(self) -> bool:
        """Whether it holds only white space."""
        parts = [self.text, *(part for turn in self.messages for part in turn[1:])]
        return all(not part or part.isspace() for part in parts)

    @property
    def size(self) -> int:
        """Length in characters, over all turns, roles and further fields included."""
        return len(self.text) + sum(len(part) for turn in self.messages for part in turn)


@dataclass(frozen=True, slots=True)
class CorpusFile:
    """A file of a corpus; can be pickled.

    Attributes:
        path: where to open it.
        relative: its path from the top of the corpus, with forward slashes; bytes that are not UTF-8 as U+FFFD.
        size: bytes, compressed if it is.
        version: what changes when the file is written again: its time, or the ETag of a remote file.
    """

    path: str
    relative: str
    size: int
    version: str = ""


@dataclass
class CorpusCounts:
    """Counts of a pass over a corpus, or over some of its files; of several, they can be added up. Can be pickled.

    Attributes:
        documents: documents yielded.
        conversations: conversations among them.
        files: files opened and read.
        bytes_read: bytes of these files on disk (compressed, if they are).
        skipped: number of skipped files and documents by reason, such as `"empty"` or `"left out by --include"`.

    Written by the iterating thread; other threads may read it for a progress bar.
    """

    documents: int = 0
    conversations: int = 0
    files: int = 0
    bytes_read: int = 0
    skipped: Counter[str] = field(default_factory=Counter)

    def __iadd__(self, other: CorpusCounts) -> CorpusCounts:
        """Add the counts of other files."""
        self.documents += other.documents
        self.conversations += other.conversations
        self.files += other.files
        self.bytes_read += other.bytes_read
        self.skipped.update(other.skipped)
        return self

    def skip(self, reason: str) -> None:
        """Count a skipped file or document."""
        self.skipped[reason] += 1


def well_formed(text: str) -> str:
    r"""Return the text with surrogate pairs joined and lone surrogates replaced by U+FFFD.

    JSON can hold lone surrogates (`"\ud83d"`), and so can paths that are not UTF-8. Tokenizers and files refuse them.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def batches(
    documents: Iterable[Document], characters: int = BATCH_CHARACTERS, number: int = BATCH_DOCUMENTS
) -> Iterator[list[Document]]:
    """Yield documents in lists, each as long as it takes to hold so many characters or documents."""
    batch: list[Document] = []
    held = 0
    for document in documents:
        batch.append(document)
        held += document.size
        if held >= characters or len(batch) >= number:
            yield batch
            batch, held = [], 0
    if batch:
        yield batch
