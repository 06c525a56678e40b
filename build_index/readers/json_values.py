"""JSON files: an object a line (JSONL), a list of objects, or objects one after another.

All are read as streams; only one record is held at a time.
"""

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

_CHUNK_BYTES = 1 << 18
_SPACE = " \t\r\n"
_DECODER = json.JSONDecoder()


def read_json_lines(stream: io.BufferedReader, where: str, records: RecordReader) -> Iterator[Document]:
    """Yield the documents of a JSONL file.

    Args:
        stream: its content; blank lines are passed over.
        where: the file, for messages.
        records: takes the document out of each record.

    Yields:
        Documents, `origin` being `file:line`.

    Raises:
        CorpusFormatError: a line is not JSON, or its record not as expected; the message names file and line.
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
            raise _not_json(origin, error, "one JSON object a line") from error
        yield from records.documents(record, origin)


def read_json_values(stream: io.BufferedReader, where: str, records: RecordReader) -> Iterator[Document]:
    """Yield the documents of a JSON file: a list of records, or records one after another.

    Args:
        stream: its content.
        where: the file, for messages.
        records: takes the document out of each record.

    Yields:
        Documents, `origin` being `file:line`, the line on which the record begins.

    Raises:
        CorpusFormatError: the file is not JSON, or a record not as expected; the message names file and line.
    """
    for value, line in _Values(stream, where):
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
    """Return the first record of what may be a JSON file.

    Args:
        stream: its content from the beginning; read as far as the record reaches.
        where: the file, for messages.
        limit: bytes at which to give up.

    Returns:
        The record; None if the file is no JSON of the kinds that are read.

    Raises:
        CorpusError: the stream itself cannot be read.
    """
    values = _Values(stream, where, limit)
    try:
        for value, line in values:
            return FirstValue(value, values.in_list, values.line == line)
    except CorpusFormatError:
        if not values.is_at_fault:  # a compressed file that is damaged
            raise
    return None


class _Values:
    """Iterates over (value, line on which it begins) of a stream of JSON values or of one JSON list."""

    def __init__(self, stream: io.BufferedReader, where: str, limit: int | None = None) -> None:
        self._stream = stream
        self._where = where
        self._limit = limit
        self._decode = codecs.getincrementaldecoder("utf-8-sig")()
        self._text = ""
        self._at = 0  # place in the text
        self.line = 1  # line of that place
        self._ended = False
        self._damage: UnicodeDecodeError | None = None  # what follows the text cannot be decoded
        self._started = False
        self._finished = False
        self.in_list = False
        self.is_at_fault = False  # whether the content is no JSON

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        return self

    def __next__(self) -> tuple[Any, int]:
        character = self._next_character()
        if not self._started:
            self._started = True
            self.in_list = character == "["
            if self.in_list:
                self._step(1)
                character = self._next_character()
        elif self.in_list and not self._finished and character == ",":
            self._step(1)
            character = self._next_character()
        elif self.in_list and not self._finished and character not in ("]", ""):
            raise self._error(f"{character!r} after a record", "',' or ']'")
        if self.in_list and character == "]":
            self._step(1)
            self._finished, character = True, self._next_character()
        if self.in_list and self._finished:
            if character:
                raise self._error(f"{character!r} after the list", "the end of the file")
            raise StopIteration
        if not character:
            if self.in_list:
                raise self._error("the end of the file inside a list", "']'")
            raise StopIteration
        line = self.line
        return self._value(), line

    def _value(self) -> Any:
        """Decode the value at the current place, reading on until it is complete."""
        wanted = _CHUNK_BYTES
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if self._ended or not self._may_be_incomplete(error):
                    self._step(max(error.pos, self._at) - self._at)
                    raise self._error(f"not JSON ({error.msg})", "JSON") from error
            except RecursionError as error:
                raise self._error("JSON nested too deeply", "records") from error
            else:
                # A number could go on in the next chunk; records are objects, which cannot.
                self._step(end - self._at)
                return value
            self._more(wanted)
            wanted *= 2  # so that a long record is scanned a few times, not once for each chunk

    def _may_be_incomplete(self, error: json.JSONDecodeError) -> bool:
        """Whether the error may come from the text ending too early, not from what it holds."""
        return error.msg.startswith("Unterminated") or len(self._text) - error.pos < 16

    def _next_character(self) -> str:
        """Move to the next character that is not white space and return it; an empty string at the end."""
        while True:
            rest = self._text[self._at : self._at + 64].lstrip(_SPACE)
            skipped = min(64, len(self._text) - self._at) - len(rest)
            self._step(skipped)
            if rest:
                return rest[0]
            if self._at >= len(self._text):
                if self._ended:
                    return ""
                self._more(_CHUNK_BYTES)

    def _step(self, number: int) -> None:
        self.line += self._text.count("\n", self._at, self._at + number)
        self._at += number

    def _more(self, number: int) -> None:
        if self._damage is not None:
            raise self._error(f"not UTF-8 ({self._damage.reason})", "UTF-8 JSON") from self._damage
        data = self._stream.read(number)
        self._ended = not data
        if self._limit is not None:
            self._limit -= len(data)
            self._ended = self._ended or self._limit < 0
        try:
            decoded = self._decode.decode(data, final=not data)
        except UnicodeDecodeError as error:
            decoded = error.object[: error.start].decode("utf-8")  # the records before the damage are good
            self._damage = error
        self._text = self._text[self._at :] + decoded
        self._at = 0

    def _error(self, found: str, expected: str) -> CorpusFormatError:
        self.is_at_fault = True
        return CorpusFormatError(describe(f"{self._where}:{self.line}", "JSON", found, expected))


def _not_json(origin: str, error: Exception, expected: str) -> CorpusFormatError:
    if isinstance(error, json.JSONDecodeError):
        reason = f"{error.msg}, column {error.colno}"
    else:
        reason = "not UTF-8" if isinstance(error, UnicodeDecodeError) else type(error).__name__
    return CorpusFormatError(describe(origin, "line", f"not JSON ({reason})", expected))
