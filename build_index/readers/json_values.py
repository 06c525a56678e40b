"""JSON files, read as streams: an object a line (JSONL), a list of objects, or objects one after another."""

from __future__ import annotations

import codecs
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from build_index.documents import Document
from build_index.readers.records import RecordReader
from rest_store.errors import CorpusFormatError, describe

CHUNK_BYTES = 1 << 18
_SPACE = " \t\r\n"
_DECODER = json.JSONDecoder()


def read_json_lines(stream: io.BufferedReader, where: str, records: RecordReader) -> Iterator[Document]:
    """Yield the documents of a JSONL file, with `file:line` as `origin`; blank lines are skipped.

    Args:
        stream: its content.
        where: the file, for messages.
        records: extracts the document of each record.

    Raises:
        CorpusFormatError: a line is not JSON, or its record has another layout; the message names file and line.
    """
    for number, line in enumerate(stream, 1):
        origin = f"{where}:{number}"
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        if line.isspace():
            continue
        try:
            record = json.loads(line.rstrip(b"\r\n").decode("utf-8"))
        except (ValueError, RecursionError) as error:
            problem = f"not JSON ({_reason(error)})"
            raise CorpusFormatError(describe(origin, "line", problem, "one JSON object a line")) from error
        yield from records.documents(record, origin)


def read_json_values(stream: io.BufferedReader, where: str, records: RecordReader) -> Iterator[Document]:
    """Yield the documents of a JSON file: a list of records, or records one after another.

    The `origin` of a document is `file:line` where its record begins.

    Args:
        stream: its content.
        where: the file, for messages.
        records: extracts the document of each record.

    Raises:
        CorpusFormatError: the file is not JSON, or a record has another layout; the message names file and line.
    """
    for value, line in _Values(stream, where).values():
        yield from records.documents(value, f"{where}:{line}")


@dataclass(frozen=True, slots=True)
class FirstValue:
    """The first record of a JSON file.

    Attributes:
        value: the record.
        in_list: whether it stands in a list.
        on_one_line: whether it ends on the line on which it begins.
    """

    value: Any
    in_list: bool
    on_one_line: bool


def first_value(stream: io.BufferedReader, where: str, limit: int) -> FirstValue | None:
    """Return the first record of a file that may be JSON, or None if it is not JSON of a kind that is read.

    Args:
        stream: its content from the beginning; read as far as the record reaches.
        where: the file, for messages.
        limit: bytes after which to give up.

    Raises:
        CorpusError: the stream itself cannot be read.
    """
    values = _Values(stream, where, limit)
    try:
        for value, line in values.values():
            return FirstValue(value, values.in_list, values.line == line)
    except _JsonError:
        pass  # other errors are of the stream: a damaged compressed file
    return None


class _JsonError(CorpusFormatError):
    """The content of a file is not JSON."""


class _Values:
    """A stream of JSON values, or of one JSON list, read in chunks.

    Attributes:
        in_list: whether the values stand in a list; known once the first is read.
        line: line of the current place.
    """

    def __init__(self, stream: io.BufferedReader, where: str, limit: int | None = None) -> None:
        self.in_list = False
        self.line = 1
        self._stream = stream
        self._where = where
        self._limit = limit
        self._decode = codecs.getincrementaldecoder("utf-8-sig")()
        self._text = ""
        self._place = 0  # in the text
        self._ended = False
        self._damage: UnicodeDecodeError | None = None  # why the bytes after the text cannot be decoded

    def values(self) -> Iterator[tuple[Any, int]]:
        """Yield each value and the line on which it begins."""
        character = self._next_character()
        self.in_list = character == "["
        if not self.in_list:
            while character:
                line = self.line
                yield self._value(), line
                character = self._next_character()
            return
        self._step(1)
        character = self._next_character()
        while character != "]":
            if not character:
                raise self._error("the end of the file inside a list", "']'")
            line = self.line
            yield self._value(), line
            character = self._next_character()
            if character == ",":
                self._step(1)
                character = self._next_character()
            elif character not in ("]", ""):
                raise self._error(f"{character!r} after a record", "',' or ']'")
        self._step(1)
        if character := self._next_character():
            raise self._error(f"{character!r} after the list", "the end of the file")

    def _value(self) -> Any:
        """Decode the value at the current place, reading on until it is complete."""
        size = CHUNK_BYTES
        while True:
            try:
                # A number could go on in the next chunk; records are objects, which cannot.
                value, end = _DECODER.raw_decode(self._text, self._place)
            except json.JSONDecodeError as error:
                # The text may only end too early.
                incomplete = error.msg.startswith("Unterminated") or len(self._text) - error.pos < 16
                if self._ended or not incomplete:
                    self._step(max(error.pos, self._place) - self._place)
                    raise self._error(f"not JSON ({error.msg})", "JSON") from error
            except RecursionError as error:
                raise self._error("JSON nested too deeply", "records") from error
            else:
                self._step(end - self._place)
                return value
            self._read(size)
            size *= 2  # so that a long record is scanned a few times, not once for each chunk

    def _next_character(self) -> str:
        """Move to the next character that is not white space and return it; an empty string at the end."""
        while True:
            window = self._text[self._place : self._place + 64]
            rest = window.lstrip(_SPACE)
            self._step(len(window) - len(rest))
            if rest:
                return rest[0]
            if not window:
                if self._ended:
                    return ""
                self._read(CHUNK_BYTES)

    def _step(self, number: int) -> None:
        self.line += self._text.count("\n", self._place, self._place + number)
        self._place += number

    def _read(self, size: int) -> None:
        if self._damage is not None:
            raise self._error(f"not UTF-8 ({self._damage.reason})", "UTF-8 JSON") from self._damage
        data = self._stream.read(size)
        self._ended = not data
        if self._limit is not None:
            self._limit -= len(data)
            self._ended = self._ended or self._limit < 0
        try:
            decoded = self._decode.decode(data, final=not data)
        except UnicodeDecodeError as error:
            decoded = error.object[: error.start].decode("utf-8")  # the records before the damage are good
            self._damage = error
        self._text = self._text[self._place :] + decoded
        self._place = 0

    def _error(self, problem: str, expected: str) -> _JsonError:
        return _JsonError(describe(f"{self._where}:{self.line}", "content", problem, expected))


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg}, column {error.colno}"
    return "not UTF-8" if isinstance(error, UnicodeDecodeError) else type(error).__name__
