"""JSON files, read as streams: an object a line (JSONL), a list of objects, or objects one after another."""

from __future__ import annotations

import codecs
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from build_index.documents import LARGEST_DOCUMENT_BYTES, Document
from build_index.readers.records import RecordReader
from rest_store.errors import CorpusFormatError, describe

CHUNK_BYTES = 1 << 18
TOO_LARGE = object()
"""Stands for a record that is too large to be read."""
_SPACE = " \t\r\n"
_STRUCTURE = re.compile(r'["\\\[\]{}]')


def _integer(digits: str) -> int | float:
    """Convert an integer; Python refuses one of more than 4,300 digits, which no document is made of."""
    try:
        return int(digits)
    except ValueError:
        return float(digits)


_DECODER = json.JSONDecoder(parse_int=_integer)


def read_json_lines(stream: io.BufferedReader, where: str, records: RecordReader) -> Iterator[Document]:
    """Yield the documents of a JSONL file, with `file:line` as `origin`; blank lines are skipped.

    Args:
        stream: its content.
        where: the file, for messages.
        records: extracts the document of each record.

    Raises:
        CorpusFormatError: a line is not JSON, or its record has another layout; the message names file and line.
        DocumentSizeError: see `RecordReader.too_large`.
    """
    for number, line in enumerate(_lines(stream), 1):
        origin = f"{where}:{number}"
        if line is None:
            records.too_large(origin)
            continue
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        if line.isspace():
            continue
        try:
            record = _DECODER.decode(line.rstrip(b"\r\n").decode("utf-8"))
        except (ValueError, RecursionError) as error:
            problem = f"not JSON ({_reason(error)})"
            raise CorpusFormatError(describe(origin, "line", problem, "one JSON object a line")) from error
        yield from records.documents(record, origin)
        del record  # before the next one is decoded: either may be large


def _lines(stream: io.BufferedReader) -> Iterator[bytes | None]:
    """Yield each line, or None for one that is too large, before the rest of it is passed over."""
    while line := stream.readline(LARGEST_DOCUMENT_BYTES + 1):
        if len(line) <= LARGEST_DOCUMENT_BYTES or line.endswith(b"\n"):
            yield line
            continue
        yield None
        while line and not line.endswith(b"\n"):
            line = stream.readline(CHUNK_BYTES)


def read_json_values(stream: io.BufferedReader, where: str, records: RecordReader) -> Iterator[Document]:
    """Yield the documents of a JSON file: a list of records, or records one after another.

    The `origin` of a document is `file:line` where its record begins.

    Args:
        stream: its content.
        where: the file, for messages.
        records: extracts the document of each record.

    Raises:
        CorpusFormatError: the file is not JSON, or a record has another layout; the message names file and line.
        DocumentSizeError: see `RecordReader.too_large`.
    """
    for value, line in _Values(stream, where).values():
        if value is TOO_LARGE:
            records.too_large(f"{where}:{line}")
            continue
        yield from records.documents(value, f"{where}:{line}")
        del value  # before the next one is decoded: either may be large


@dataclass(frozen=True, slots=True)
class FirstValue:
    """The first record of a JSON file.

    Attributes:
        value: the record, or TOO_LARGE.
        in_list: whether it stands in a list.
        on_one_line: whether it ends on the line on which it begins.
    """

    value: Any
    in_list: bool
    on_one_line: bool


def first_value(stream: io.BufferedReader, where: str) -> FirstValue | None:
    """Return the first record of a file that may be JSON, or None if it is not JSON of a kind that is read.

    Args:
        stream: its content from the beginning; read as far as the record reaches.
        where: the file, for messages.

    Raises:
        CorpusError: the stream itself cannot be read.
    """
    values = _Values(stream, where)
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

    def __init__(self, stream: io.BufferedReader, where: str) -> None:
        self.in_list = False
        self.line = 1
        self._stream = stream
        self._where = where
        self._decode = codecs.getincrementaldecoder("utf-8-sig")()
        self._text = ""
        self._place = 0  # in the text
        self._ended = False
        self._damage: UnicodeDecodeError | None = None  # why the bytes after the text cannot be decoded

    def values(self) -> Iterator[tuple[Any, int]]:
        """Yield each value, or TOO_LARGE for one that is passed over then, and the line on which it begins."""
        character = self._next_character()
        self.in_list = character == "["
        if not self.in_list:
            while character:
                yield from self._value_and_line()
                character = self._next_character()
            return
        self._step(1)
        character = self._next_character()
        while character != "]":
            if not character:
                raise self._error("the end of the file inside a list", "']'")
            yield from self._value_and_line()
            character = self._next_character()
            if character == ",":
                self._step(1)
                character = self._next_character()
            elif character not in ("]", ""):
                raise self._error(f"{character!r} after a record", "',' or ']'")
        self._step(1)
        if character := self._next_character():
            raise self._error(f"{character!r} after the list", "the end of the file")

    def _value_and_line(self) -> Iterator[tuple[Any, int]]:
        line = self.line
        value = self._value()
        yield value, line
        if value is TOO_LARGE:
            self._pass_over()

    def _value(self) -> Any:
        """Decode the value at the current place, reading on until it is complete; TOO_LARGE: it stays there."""
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
                if end - self._place > LARGEST_DOCUMENT_BYTES:
                    return TOO_LARGE  # wherever chunks end
                self._step(end - self._place)
                return value
            missing = LARGEST_DOCUMENT_BYTES + 1 - (len(self._text) - self._place)
            if missing <= 0:
                return TOO_LARGE
            self._read(min(size, missing))
            size *= 2  # so that a long record is scanned a few times, not once for each chunk

    def _pass_over(self) -> None:
        """Move past a string, list or object without decoding it; to the end of the file if it is incomplete."""
        depth, in_string, escaped = 0, False, -1  # escaped: where a character stands that has no meaning
        while True:
            for match in _STRUCTURE.finditer(self._text, self._place):
                character, place = match[0], match.start()
                if place == escaped:
                    continue
                if character == "\\":
                    escaped = place + 1
                elif character == '"':
                    in_string = not in_string
                elif not in_string:
                    depth += 1 if character in "[{" else -1
                if not in_string and depth <= 0:
                    self._step(place + 1 - self._place)
                    return
            escaped -= len(self._text)
            self._step(len(self._text) - self._place)
            if self._ended:
                return
            self._read(CHUNK_BYTES)

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
