"""Transcripts of agents and logs of models, as conversations: which reader, and the documents.

A document is one conversation with the name of its session. The model wrote the turns of the
role `assistant`, and read all others (`build_index/texts.py` takes them apart).
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from build_index.documents import MAX_DOCUMENT_BYTES, Document
from build_index.readers import claude_code, codex, message_logs, openhands
from build_index.readers.aider import HEADER, AiderHistory
from build_index.readers.conversations import json_type, parse_messages
from build_index.readers.json_records import TOO_LARGE, JsonValues
from build_index.readers.json_text import decoded_json
from build_index.readers.record_reader import RecordReader
from build_index.readers.table_rows import malformed
from build_index.readers.turns import Turns
from rest_store.errors import CorpusFormatError, describe

AIDER = "aider"
CLAUDE_CODE = "claude-code"
CODEX = "codex"
MESSAGE_LOG = "message-log"
OPENHANDS = "openhands"
KINDS = (AIDER, CLAUDE_CODE, CODEX, MESSAGE_LOG, OPENHANDS)
"""Readers of transcripts, as `detection.detect_reader` names them."""
MAX_CONVERSATION = 1 << 20
"""Characters from which on a conversation goes on as another document, at the next user's turn."""
CUT_OFF = "record cut off at the end of its file"
_MAX_LINE = MAX_DOCUMENT_BYTES


class _Lines(NamedTuple):
    """How the records of a format are read that has one a line.

    Attributes:
        session_of: returns the session of a record; None: that of the record before it.
        add: adds the content of a record to the turns of its session.
    """

    session_of: Callable[[Mapping[str, Any]], str | None]
    add: Callable[[Turns, Mapping[str, Any], str], None]


_LINES = {
    CLAUDE_CODE: _Lines(claude_code.session_of, claude_code.add_record),
    CODEX: _Lines(codex.session_of, codex.add_record),
}


def transcript_kind(record: Mapping[str, Any]) -> str | None:
    """Return which of `KINDS` a file is by its first record, or None; Aider's has no records."""
    if claude_code.is_claude_code(record):
        return CLAUDE_CODE
    if codex.is_codex(record):
        return CODEX
    if openhands.is_event(record) or openhands.history_of(record) is not None:
        return OPENHANDS
    return MESSAGE_LOG if message_logs.is_message_log(record) else None


def read_transcript(
    stream: io.BufferedReader, where: str, records: RecordReader, kind: str
) -> Iterator[Document]:
    """Yield the conversations of a transcript, session after session.

    A malformed record is an error if the file was named, and counted otherwise. A last line without
    an end is still being written, and only counted.

    Args:
        stream: content of the file.
        where: the file, for messages.
        records: has the counts.
        kind: one of `KINDS`.

    Raises:
        CorpusFormatError: a record is not JSON.
        CorpusError: see `RecordReader.too_large`.
    """
    if kind == AIDER:
        yield from _read_aider(stream, where, records)
    elif kind in _LINES:
        yield from _read_lines(stream, where, records, _LINES[kind])
    elif kind == OPENHANDS:
        yield from _read_openhands(stream, where, records)
    else:
        yield from _read_logs(stream, where, records)


def conversations(turns: Turns, session: str, origin: str) -> Iterator[Document]:
    """Yield the conversation of a session as documents of bounded size."""
    begin = 0
    size = 0
    order = 0
    for number, turn in enumerate(turns.turns):
        is_cut = size > MAX_CONVERSATION and turn["role"] == "user"
        if is_cut or size > MAX_DOCUMENT_BYTES // 2:
            yield from _conversation(turns, begin, number, session, origin, order)
            order += sum(turn["role"] == "assistant" for turn in turns.turns[begin:number])
            begin = number
            size = 0
        size += _size(turn)
    yield from _conversation(turns, begin, len(turns.turns), session, origin, order)


def _conversation(
    turns: Turns, begin: int, end: int, session: str, origin: str, order: int
) -> Iterator[Document]:
    section = turns.turns[begin:end]
    if section:
        messages = parse_messages(section, origin, "turns", turns.left_out)
        if messages:
            yield Document(messages=messages, origin=origin, session=session, order=order)


def _size(turn: Mapping[str, Any]) -> int:
    calls = sum(len(str(call)) for call in turn.get("tool_calls", ()))
    return len(turn["content"]) + len(turn.get("reasoning_content", "")) + calls


def name_of(where: str) -> str:
    """Return the name of a session that has none of its own: that of its file."""
    return PurePosixPath(where).name.partition(".")[0] or PurePosixPath(where).name


def _read_lines(
    stream: io.BufferedReader, where: str, records: RecordReader, lines: _Lines
) -> Iterator[Document]:
    sessions: dict[str, Turns] = {}
    name = name_of(where)
    for record, origin in _records(stream, where, records):
        name = lines.session_of(record) or name
        turns = sessions.setdefault(name, Turns(records.counts))
        lines.add(turns, record, origin)
    for session, turns in sessions.items():
        yield from conversations(turns, session, where)


def _records(
    stream: io.BufferedReader, where: str, records: RecordReader
) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Yield the objects of JSON lines, each with its place."""
    number = 0
    while line := stream.readline(_MAX_LINE):
        number += 1
        origin = f"{where}:{number}"
        is_whole = line.endswith(b"\n")
        if len(line) == _MAX_LINE and not is_whole:
            records.too_large(origin)
            while line and not line.endswith(b"\n"):
                line = stream.readline(_MAX_LINE)
            continue
        if not line.strip():
            continue
        try:
            value = decoded_json(line.decode("utf-8-sig" if number == 1 else "utf-8"))
        except ValueError as error:  # also of UTF-8
            if not is_whole:
                records.counts.leave_out(CUT_OFF, origin)
                continue
            actual = f"not JSON ({error})"
            malformed(records, CorpusFormatError(describe(origin, "record", actual, "JSON")))
            continue
        if isinstance(value, Mapping):
            yield value, origin
        else:
            actual = f"a {json_type(value)}"
            malformed(records, CorpusFormatError(describe(origin, "record", actual, "an object")))


def _read_openhands(
    stream: io.BufferedReader, where: str, records: RecordReader
) -> Iterator[Document]:
    turns = Turns(records.counts)
    for value, line in JsonValues(stream, where):
        origin = f"{where}:{line}"
        if value is TOO_LARGE:
            records.too_large(origin)
            continue
        history = openhands.history_of(value) if isinstance(value, Mapping) else None
        if history is None:
            openhands.add_event(turns, value, origin)
            continue
        record_turns = Turns(records.counts)
        for number, event in enumerate(history):
            openhands.add_event(record_turns, event, f"{origin}, event {number}")
        session = str(value.get("instance_id") or f"{name_of(where)}-{line}")
        yield from conversations(record_turns, session, origin)
    yield from conversations(turns, name_of(where), where)


def _read_logs(stream: io.BufferedReader, where: str, records: RecordReader) -> Iterator[Document]:
    for value, line in JsonValues(stream, where):
        origin = f"{where}:{line}"
        if value is TOO_LARGE:
            records.too_large(origin)
        elif isinstance(value, Mapping) and message_logs.is_message_log(value):
            turns = Turns(records.counts)
            message_logs.add_exchange(turns, value, origin)
            session = message_logs.session_of(value) or f"{name_of(where)}-{line}"
            yield from conversations(turns, session, origin)
        else:
            records.counts.skip("record without a request and its answer", origin)


def _read_aider(stream: io.BufferedReader, where: str, records: RecordReader) -> Iterator[Document]:
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="replace", newline=None)
    turns = Turns(records.counts)
    history = None
    session = ""
    for line in text:
        if line.startswith(HEADER):
            if history is not None:
                history.end()
                yield from conversations(turns, session, where)
            turns = Turns(records.counts)
            history = AiderHistory(turns)
            session = f"{name_of(where)} {line.removeprefix(HEADER).strip()}".strip()
        elif history is not None:
            history.add(line.rstrip("\r\n"))
    if history is not None:
        history.end()
        yield from conversations(turns, session, where)
    text.detach()
