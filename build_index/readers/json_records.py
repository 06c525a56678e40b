"""JSON files, read as streams: a list of objects, or one object after another, as in JSONL."""

from __future__ import annotations

import codecs
import io
import json
import re
from collections.abc import Iterator
from typing import Any

from build_index.documents import MAX_DOCUMENT_BYTES, Document
from build_index.readers.json_text import DECODER
from build_index.readers.record_reader import RecordReader
from build_index.readers.table_rows import record_documents
from rest_store.errors import CorpusFormatError, describe

TOO_LARGE = object()
"""Stands for a record that is too large to be read."""
_CHUNK = 1 << 18  # bytes or characters read at once
_STRUCTURE = re.compile(r'["\\\[\]{}]')
_SPACE = re.compile(r"[ \t\r\n]*")


def read_json(stream: io.BufferedReader, where: str, records: RecordReader) -> Iterator[Document]:
    """Yield the documents of a JSON file, with `file:line` as `origin`, where its record begins.

    Args:
        stream: its content.
        where: the file, for messages.
        records: extracts the document of each record.

    Raises:
        CorpusFormatError: a record is not JSON or has another layout; the message names the file
            and its first line.
        CorpusError: see `RecordReader.too_large`.
    """
    for value, line in JsonValues(stream, where):
        if value is TOO_LARGE:
            records.too_large(f"{where}:{line}")
        else:
            yield from record_documents(records, value, f"{where}:{line}")
        del value  # before the next one is decoded: either may be large


class JsonValues:
    """The values of a JSON file, each with the line on which it begins; read in chunks.

    Iterating yields TOO_LARGE for a value of more than MAX_DOCUMENT_BYTES characters.

    Args:
        stream: the content of the file from its beginning.
        where: the file, for messages.

    Attributes:
        in_list: whether the values stand in a list; known once the first is read.
        line: line of the current position, behind the latest value.
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
        self._is_damaged = False  # the bytes that follow are not UTF-8

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        self.in_list = self._next_character() == "["
        if self.in_list:
            self._advance(1)
        while (character := self._next_character()) and not (self.in_list and character == "]"):
            line = self.line
            value = self._value()
            yield value, line
            if value is TOO_LARGE:
                self._pass_over()
            del value
            if self.in_list and self._next_character() == ",":
                self._advance(1)
            elif self.in_list and self._next_character() != "]":
                raise self._error(
                    f"{self._next_character() or 'the end of the file'} after a record",
                    "',' or ']'",
                )
        if self.in_list:
            self._advance(1)
            if not character or self._next_character():
                raise self._error("more or less than a list", "the end of the file after ']'")

    def _value(self) -> Any:
        """Decode the value at the current position, reading on until it is complete.

        For a value that is TOO_LARGE, the position does not move.
        """
        size = _CHUNK
        while True:
            try:
                # A number could go on in the next chunk; records are objects, which cannot.
                value, end = DECODER.raw_decode(self._text, self._position)
            except json.JSONDecodeError as error:
                # The text may only end too early.
                incomplete = (
                    error.msg.startswith("Unterminated") or len(self._text) - error.pos < 16
                )
                if self._ended or not incomplete:
                    raise self._error(f"not JSON ({error.msg})", "JSON") from error
            except RecursionError as error:
                raise self._error("JSON nested too deeply", "records") from error
            else:
                if end - self._position > MAX_DOCUMENT_BYTES:
                    return TOO_LARGE  # wherever chunks end
                self._advance(end - self._position)
                return value
            if len(self._text) - self._position > MAX_DOCUMENT_BYTES:
                return TOO_LARGE
            self._read(size)
            size *= 2  # so that a long record is scanned a few times, not once for each chunk

    def _pass_over(self) -> None:
        """Move past a string, list or object without decoding it.

        If it is incomplete, move to the end of the file.
        """
        depth = 0
        in_string = False
        escaped = -1  # position of a character behind a backslash
        while True:
            for match in _STRUCTURE.finditer(self._text, self._position):
                character = match[0]
                position = match.start()
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
        """Move to the next character that is not white space, and return it; empty at the end."""
        while True:
            match = _SPACE.match(self._text, self._position)
            if match is not None:
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
        return CorpusFormatError(
            describe(f"{self._where}:{self.line}", "content", problem, expected)
        )
