"""The journal of an unfinished build: one JSON object a line, each synced to disk before the build continues.

    {"plan": {...}}            first: inputs, options and tokenizer
    {"encoder": {...}}         what tokenizes from here on
    {"tokens": {...}}          a tokens file is complete, and where in the corpora it ends
    {"suffixes": {...}}        its suffix array is complete
    {"complete": {...}}        all files are complete; the datastore can be put in place

A line cut short by a crash does not count.
"""

from __future__ import annotations

import errno
import json
import os
import threading
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from build_index.errors import output_errors
from rest_store.datastore.manifest import ShardRecord

FILE_NAME = "journal.jsonl"
CHAIN_START = b"\0" * 32
"""The chain before the first document, see `Cursor`."""


@dataclass
class TokenizedCounts:
    """Counts of one corpus's documents that are known only after tokenization.

    Attributes:
        without_tokens: documents that have no tokens.
        split_documents: documents longer than a shard.
    """

    without_tokens: int = 0
    split_documents: int = 0


@dataclass(frozen=True)
class Cursor:
    """A place in the corpora; everything before it is in complete shards.

    Attributes:
        documents: documents read, over all corpora; the last one may be stored in part.
        chain: SHA-256 of the chain before the last document and the SHA-256 of its content, hexadecimal.
        tokens_stored: stored tokens of the last document, if it continues in the next shard; otherwise 0.
        stored_documents: documents stored.
        counts: one for each corpus.
    """

    documents: int
    chain: str
    tokens_stored: int
    stored_documents: int
    counts: tuple[TokenizedCounts, ...]


@dataclass(frozen=True)
class TokensRecord:
    """A complete tokens file.

    Attributes:
        name: name of the shard.
        position_count: tokens and separators.
        sha256: SHA-256 of the payload, hexadecimal.
        end: where the next shard begins.
    """

    name: str
    position_count: int
    sha256: str
    end: Cursor


@dataclass(frozen=True)
class Completion:
    """A complete datastore that may not be in place yet.

    Attributes:
        manifest_sha256: SHA-256 of its `manifest.json`, hexadecimal.
        summary: fields of the summary, for a resumed build with nothing left to do.
    """

    manifest_sha256: str
    summary: dict[str, Any]


@dataclass
class BuildState:
    """The state of a build, as its journal records it.

    Attributes:
        plan: inputs, options and tokenizer.
        encoders: names and versions of the packages that tokenized, in order.
        tokens: complete tokens files in order.
        suffixes: complete shards by name.
        completion: the complete datastore, or None.
    """

    plan: dict[str, Any]
    encoders: list[str] = field(default_factory=list)
    tokens: list[TokensRecord] = field(default_factory=list)
    suffixes: dict[str, ShardRecord] = field(default_factory=dict)
    completion: Completion | None = None

    @property
    def gave_up_fastokens(self) -> bool:
        """Whether `tokenizers` has tokenized; then it goes on to."""
        return any(encoder.startswith("tokenizers ") for encoder in self.encoders)


_Record: TypeAlias = BuildState | str | TokensRecord | ShardRecord | Completion


class Journal:
    """The journal of a build, open for appending.

    Args:
        path: the file; created if absent, otherwise continued after its last whole line.

    Thread-safe. `append` raises OutputError if the file cannot be written, making a journal OSError.
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._path = path
        self._file = path.open("ab", buffering=0)
        try:
            self._end = sum(len(line) for line, _ in _whole_lines(path))
            self._file.truncate(self._end)
        except BaseException:
            self._file.close()
            raise

    def append(self, kind: str, record: Any) -> None:
        """Append a record, a dictionary or dataclass, and sync it to disk."""
        fields = record if isinstance(record, dict) else asdict(record)
        line = json.dumps({kind: fields}, sort_keys=True).encode() + b"\n"
        with self._lock, output_errors(self._path):
            self._file.truncate(self._end)  # removes the rest of a failed append
            if self._file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._file.fileno())
            self._end += len(line)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_journal(path: Path) -> BuildState | None:
    """Return the state up to the last whole line of a journal, or None if there is no journal or no plan in it.

    Raises:
        OSError: the file exists and cannot be read.
    """
    state: BuildState | None = None
    for _, record in _whole_lines(path):
        if isinstance(record, BuildState):
            state = record
        elif state is None:
            return None
        elif isinstance(record, str):
            state.encoders.append(record)
        elif isinstance(record, TokensRecord):
            state.tokens.append(record)
        elif isinstance(record, ShardRecord):
            state.suffixes[record.name] = record
        else:
            state.completion = record
    return state


def _whole_lines(path: Path) -> list[tuple[bytes, _Record]]:
    """Return the lines up to the first that is cut short or damaged, and what each records."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    whole = []
    for line in data.splitlines(keepends=True):
        if not line.endswith(b"\n"):
            break
        try:
            whole.append((line, _record(line)))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            break
    return whole


def _record(line: bytes) -> _Record:
    """Return what a line records; a damaged one raises ValueError, TypeError, KeyError or AttributeError."""
    ((kind, fields),) = json.loads(line).items()
    if kind == "plan":
        return BuildState(dict(fields))
    if kind == "encoder":
        return str(fields["program"])
    if kind == "tokens":
        end = fields.pop("end")
        counts = tuple(TokenizedCounts(**corpus) for corpus in end.pop("counts"))
        return TokensRecord(**fields, end=Cursor(**end, counts=counts))
    if kind == "suffixes":
        return ShardRecord(**fields)
    if kind == "complete":
        return Completion(**fields)
    raise KeyError(kind)
