"""What an unfinished build has reached, on disk: one JSON object a line, each synced before the build goes on.

    {"plan": {...}}            first: inputs, options and tokenizer
    {"tokens": {...}}          a tokens file is complete, and where in the corpora it ends
    {"suffixes": {...}}        its suffix array is
    {"complete": {...}}        all files are; what remains is to put the datastore in place

A line cut short by a crash does not count.
"""

from __future__ import annotations

import errno
import json
import os
import threading
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rest_store.datastore.manifest import ShardRecord

FILE_NAME = "journal.jsonl"
CHAIN_START = b"\0" * 32
"""The chain before the first document, see `Cursor`."""


@dataclass
class TokenizedCounts:
    """What became of one corpus's documents, as far as reading alone does not tell.

    Attributes:
        without_tokens: documents of which the tokenizer leaves nothing.
        split_documents: documents longer than a shard.
    """

    without_tokens: int = 0
    split_documents: int = 0


@dataclass(frozen=True)
class Cursor:
    """A place in the corpora: what is before it is in complete shards.

    Attributes:
        documents: documents read, over all corpora, the last one perhaps in part.
        chain: SHA-256 over the chain before the last of them and the SHA-256 of its content, hexadecimal.
        tokens_stored: tokens of the last document that are stored, if it continues in the next shard; otherwise 0.
        stored_documents: of the documents read, those stored.
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
        name: of its shard.
        position_count: its tokens and separators.
        sha256: of its payload, hexadecimal.
        end: where the next shard begins.
    """

    name: str
    position_count: int
    sha256: str
    end: Cursor


@dataclass(frozen=True)
class Completion:
    """A datastore that is complete and perhaps not yet in place.

    Attributes:
        manifest_sha256: of its `manifest.json`, hexadecimal.
        summary: numbers of the summary, for a build that resumes only to find everything done.
    """

    manifest_sha256: str
    summary: dict[str, Any]


@dataclass
class BuildState:
    """The content of a journal.

    Attributes:
        plan: inputs, options and tokenizer.
        tokens: complete tokens files in order.
        suffixes: complete shards by name.
        completion: whether the whole datastore is.
    """

    plan: dict[str, Any]
    tokens: list[TokensRecord] = field(default_factory=list)
    suffixes: dict[str, ShardRecord] = field(default_factory=dict)
    completion: Completion | None = None


class Journal:
    """The journal of a build, open for appending.

    Args:
        path: the file; created if absent, otherwise continued after its last whole line.

    Thread-safe. Appending raises OSError when it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._file = path.open("ab", buffering=0)
        try:
            self._end = sum(map(len, _whole_lines(path)))
            self._file.truncate(self._end)
        except BaseException:
            self._file.close()
            raise

    def append(self, kind: str, record: Any) -> None:
        """Add a record, a dictionary or a dataclass of this module or a ShardRecord, and see it on the disk."""
        fields = record if isinstance(record, dict) else asdict(record)
        line = json.dumps({kind: fields}, sort_keys=True).encode() + b"\n"
        with self._lock:
            self._file.truncate(self._end)  # what an append that failed left behind
            if self._file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._file.fileno())
            self._end += len(line)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_journal(path: Path) -> BuildState | None:
    """Return what a journal says, or None if there is none or not even its plan was written.

    Args:
        path: the file.

    Returns:
        What it says up to the last whole line.

    Raises:
        OSError: it is there and cannot be read.
    """
    state: BuildState | None = None
    for line in _whole_lines(path):
        ((kind, fields),) = json.loads(line).items()
        if kind == "plan":
            state = BuildState(fields)
        elif state is None:
            return None
        elif kind == "tokens":
            end = fields.pop("end")
            counts = tuple(TokenizedCounts(**of_corpus) for of_corpus in end.pop("counts"))
            state.tokens.append(TokensRecord(**fields, end=Cursor(**end, counts=counts)))
        elif kind == "suffixes":
            record = ShardRecord(**fields)
            state.suffixes[record.name] = record
        elif kind == "complete":
            state.completion = Completion(**fields)
    return state


def _whole_lines(path: Path) -> list[bytes]:
    """Return the lines up to the first that is cut short or damaged."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    whole = []
    for line in data.splitlines(keepends=True):
        try:
            if not line.endswith(b"\n") or len(json.loads(line)) != 1:
                break
        except (ValueError, TypeError):
            break
        whole.append(line)
    return whole
