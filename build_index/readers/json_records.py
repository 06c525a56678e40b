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

TOO_LARGE = object()
"""Stands for a record that is too large to be read."""
_CHUNK = 1 << 18  # bytes or characters read at once
_STRUCTURE = re.compile(r'["\\\[\]{}]')
_SPACE = re.compile(r"[ \t\r\n]*")


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
    number = 0
    while line := stream.readline(LARGEST_DOCUMENT_BYTES + 1):
        number += 1
        origin = f"{where}:{number}"
        if len(line) > LARGEST_DOCUMENT_BYTES and not line.endswith(b"\n"):
            records.too_large(origin)
            while line and not line.endswith(b"\n"):
                line = stream.readline(_CHUNK)
            continue
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        if line.isspace():
            continue
        try:
            record = _DECODER.decode(line.rstrip(b"\r\n").decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise CorpusFormatError(describe(origin, "line", _reason(error), "one JSON object a line")) from error
        yield from records.documents(record, origin)
        del record  # before the next one is decoded: either may be large


def read_json_records(stream: io.BufferedReader, where: str, records: RecordReader) -> Iterator[Document]:
    """Yield the documents of a JSON file: a list of records, or records one after another.

    The `origin` of a document is `file:line` where its record begins. Takes and raises what `read_json_lines` does.
    """
    for value, line in _Values(stream, where).values():
        if value is TOO_LARGE:
            records.too_large(f"{where}:{line}")
            continue
        yield from records.documents(value, f"{where}:{line}")
        del value  # before the next one is decoded: either may be large


@dataclass(frozen=True, slots=True)
class FirstRecord:
    """The first record of a JSON file.

    Attributes:
        value: the record, or TOO_LARGE.
        in_list: whether it stands in a list.
        on_one_line: whether it ends on the line on which it begins.
    """

    value: Any
    in_list: bool
    on_one_line: bool


def first_record(stream: io.BufferedReader) -> FirstRecord | None:
    """Return the first record of a file that may be JSON, or None if it is not JSON of a kind that is read.

    Args:
        stream: its content from the beginning; read as far as the record reaches.
    """
    values = _Values(stream, "")
    try:
        for value, line in values.values():
            return FirstRecord(value, values.in_list, values.line == line)
    except CorpusFormatError:
        pass
    return None


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
        self._position = 0  # in the text
        self._ended = False
        self._is_damaged = False  # what follows is not UTF-8

    def values(self) -> Iterator[tuple[Any, int]]:
        """Yield each value, or TOO_LARGE for one that is passed over then, and the line on which it begins."""
        self.in_list = self._next_character() == "["
        if self.in_list:
            self._advance(1)
        while (character := self._next_character()) and not (self.in_list and character == "]"):
            line = self.line
            value = self._value()
            yield value, line
            if value is TOO_LARGE:
                self._pass_over()
            if self.in_list and self._next_character() == ",":
                self._advance(1)
            elif self.in_list and self._next_character() != "]":
                raise self._error(f"{self._next_character() or 'the end of the file'} after a record", "',' or ']'")
        if self.in_list:
            self._advance(1)
            if not character or self._next_character():
                raise self._error("more or less than a list", "the end of the file after ']'")

    def _value(self) -> Any:
        """Decode the value at the current position, reading on until it is complete; TOO_LARGE: it stays there."""
        size = _CHUNK
        while True:
            try:
                # A number could go on in the next chunk; records are objects, which cannot.
                value, end = _DECODER.raw_decode(self._text, self._position)
            except json.JSONDecodeError as error:
                # The text may only end too early.
                incomplete = error.msg.startswith("Unterminated") or len(self._text) - error.pos < 16
                if self._ended or not incomplete:
                    self._advance(max(error.pos, self._position) - self._position)
                    raise self._error(_reason(error), "JSON") from error
            except RecursionError as error:
                raise self._error("JSON nested too deeply", "records") from error
            else:
                if end - self._position > LARGEST_DOCUMENT_BYTES:
                    return TOO_LARGE  # wherever chunks end
                self._advance(end - self._position)
                return value
            if len(self._text) - self._position > LARGEST_DOCUMENT_BYTES:
                return TOO_LARGE
            self._read(size)
            size *= 2  # so that a long record is scanned a few times, not once for each chunk

    def _pass_over(self) -> None:
        """Move past a string, list or object without decoding it; to the end of the file if it is incomplete."""
        depth, in_string, escaped = 0, False, -1  # escaped: where a character stands that has no meaning
        while True:
            for match in _STRUCTURE.finditer(self._text, self._position):
                character, position = match[0], match.start()
                if position == escaped:
                    continue
                if character == "\\":
                    escaped = position + 1
                elif character == '"':
                    in_string = not in_string
                elif not in_string:
                    depth += 1 if character in "[{" else -1
                if not in_string and depth <= 0:
                    self._advance(position + 1 - self._position)
                    return
            escaped -= len(self._text)
            self._advance(len(self._text) - self._position)
            if self._ended:
                return
            self._read(_CHUNK)

    def _next_character(self) -> str:
        """Move to the next character that is not white space and return it; an empty string at the end."""
        while True:
            match = _SPACE.match(self._text, self._position)
            assert match is not None
            self._advance(match.end() - self._position)
            if self._position < len(self._text):
                return self._text[self._position]
            if self._ended:
                return ""
            self._read(_CHUNK)

    def _advance(self, number: int) -> None:
        self.line += self._text.count("\n", self._position, self._position + number)
        self._position += number

    def _read(self, size: int) -> None:
        if self._is_damaged:
            raise self._error("not UTF-8", "UTF-8 JSON")
        data = self._stream.read(size)
        self._ended = not data
        try:
            decoded = self._decode.decode(data, final=self._ended)
        except UnicodeDecodeError as error:
            decoded = error.object[: error.start].decode("utf-8")
            self._is_damaged = True
        self._text = self._text[self._position :] + decoded
        self._position = 0

    def _error(self, problem: str, expected: str) -> CorpusFormatError:
        return CorpusFormatError(describe(f"{self._where}:{self.line}", "content", problem, expected))


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON ({error.msg}, column {error.colno})"
    return "not UTF-8" if isinstance(error, UnicodeDecodeError) else f"not JSON ({type(error).__name__})"
