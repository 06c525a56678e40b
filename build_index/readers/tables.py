"""Tables of Arrow, from files of any kind: their columns with documents, and their rows as records.

This module chooses columns by type. Each row then chooses among them by value, as the field of a
JSON record is chosen: where the conversation of a row is null, its text counts. Values of the type
`arrow.json`, which `datasets` writes where the records of a JSON file differ, are decoded anywhere
in a column.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from build_index.documents import Document
from build_index.readers.conversations import fields_text
from build_index.readers.json_text import decoded_json
from build_index.readers.record_reader import CONVERSATION_FIELDS, TEXT_FIELDS, RecordReader
from build_index.readers.table_rows import record_documents

BATCH_ROWS = 64
BATCH_BYTES = 8 << 20
"""Bounds on the rows that are held at once."""
_TURNS = {"role", "from", "value"}  # columns of a turn, of which there is one at least
_Decoder = Callable[[Any], Any]


def document_columns(schema: Any, field: str | None) -> list[str]:
    """Return the names of the columns that may hold documents; none: the table has no known column.

    Args:
        schema: a `pyarrow.Schema`.
        field: a column or a dotted path into one; None: the known ones whose types fit.
    """
    if field is not None:
        return [name for name in (field, field.partition(".")[0]) if _is_in(schema, name)][:1]
    fitting = [
        name
        for name in CONVERSATION_FIELDS
        if _is_in(schema, name) and _may_be_conversation(schema, name)
    ]
    return fitting + [
        name
        for name in TEXT_FIELDS
        if _is_in(schema, name) and _may_be_text(schema.field(name).type)
    ]


def columns_text(schema: Any) -> str:
    """Return the names of columns for a message, with the types of those whose names are known."""
    unfit = [name for name in (*CONVERSATION_FIELDS, *TEXT_FIELDS) if _is_in(schema, name)]
    types = "".join(f"; '{name}' is {schema.field(name).type}"[:120] for name in unfit[:2])
    return fields_text(schema.names) + types


def rows_at_once(size: int, rows: int) -> int:
    """Return how many rows to hold at once, of a table with `size` bytes and `rows` rows."""
    return max(1, min(BATCH_ROWS, BATCH_BYTES * rows // max(1, size)))


class TableReader:
    """Reads the rows of a table.

    Args:
        schema: types of the needed columns, a `pyarrow.Schema`.
        columns: their names.
        records: extracts the document of each row.
        where: the file, for messages.
    """

    def __init__(self, schema: Any, columns: list[str], records: RecordReader, where: str) -> None:
        self._columns = columns
        self._decoders = [_decoder(schema.field(name)) for name in columns]
        self._records = records
        self._where = where

    def documents(self, batch: Any, rows: Iterable[int]) -> Iterator[Document]:
        """Yield the documents of some rows.

        Args:
            batch: the rows, a `pyarrow.RecordBatch`.
            rows: their numbers in the table.

        Raises:
            CorpusFormatError: see `table_rows.record_documents`.
            CorpusError: see `RecordReader.too_large`.
        """
        columns = [
            _values(batch.column(name), decode)
            for name, decode in zip(self._columns, self._decoders, strict=True)
        ]
        for row, *values in zip(rows, *columns, strict=True):
            record = dict(zip(self._columns, values, strict=True))
            yield from record_documents(self._records, record, f"{self._where}:row {row}")


def _is_in(schema: Any, name: str) -> bool:
    return int(schema.get_field_index(name)) >= 0  # not if there are several


def _may_be_text(kind: Any) -> bool:
    """Return whether a type holds texts; one of nulls does: each row is an empty document."""
    import pyarrow.types as types

    if types.is_dictionary(kind):
        kind = kind.value_type
    kinds = (
        types.is_string,
        types.is_large_string,
        types.is_binary,
        types.is_large_binary,
        types.is_null,
    )
    return _is_json(kind) or _is_view(kind) or any(is_kind(kind) for is_kind in kinds)


def _may_be_conversation(schema: Any, name: str) -> bool:
    """Return whether a column may hold conversations: lists of turns, or their JSON text.

    In the column `data`, a list of texts is a conversation, too.
    """
    import pyarrow.types as types

    kind = schema.field(name).type
    if not _is_list(kind):
        # Binary values are pictures.
        return _may_be_text(kind) and not (types.is_binary(kind) or types.is_large_binary(kind))
    turn = kind.value_type
    if types.is_struct(turn):
        return bool(_TURNS & {turn.field(index).name for index in range(turn.num_fields)})
    return types.is_null(turn) or _is_json(turn) or (name == "data" and _may_be_text(turn))


def _is_list(kind: Any) -> bool:
    import pyarrow.types as types

    views = (getattr(types, name, None) for name in ("is_list_view", "is_large_list_view"))
    kinds = (types.is_list, types.is_large_list, types.is_fixed_size_list, *filter(None, views))
    return any(is_kind(kind) for is_kind in kinds)


def _is_view(kind: Any) -> bool:
    """Return whether a type is a view of texts, which older releases of pyarrow do not know."""
    return str(kind) in ("string_view", "binary_view")


def _is_json(kind: Any) -> bool:
    return bool(getattr(kind, "extension_name", "") == "arrow.json")


def _decoder(field: Any) -> _Decoder | None:
    """Return a function that decodes the JSON in the values of a `pyarrow.Field`; None: no JSON.

    Releases of pyarrow that do not know the type leave its name in the metadata of the field.
    """
    import pyarrow.types as types

    kind = field.type
    if _is_json(kind) or (field.metadata or {}).get(b"ARROW:extension:name") == b"arrow.json":
        return functools.partial(
            _json_value, is_content=field.name in ("content", "value", *TEXT_FIELDS)
        )
    if _is_list(kind):
        decode = _decoder(kind.value_field)
        return None if decode is None else functools.partial(_decoded_list, decode)
    if types.is_struct(kind):
        decoders = {}
        for index in range(kind.num_fields):
            inner = kind.field(index)
            decode = _decoder(inner)
            if decode is not None:
                decoders[inner.name] = decode
        return functools.partial(_decoded_struct, decoders) if decoders else None
    return None


def _json_value(text: str | bytes | None, *, is_content: bool) -> Any:
    """Decode a value of `arrow.json`.

    `datasets` does not encode a text that is JSON by chance, such as "42" or an answer in JSON. So
    in the field of a message's content, JSON that is no content stays a text.
    """
    if text is None or isinstance(text, bytes):
        return text
    try:
        value = decoded_json(text)
    except ValueError:
        return text
    if isinstance(value, bool | int | float) or (is_content and not _is_content(value)):
        return text
    return value


def _is_content(value: Any) -> bool:
    """Return whether a JSON value is the content of a message: a text, null or a list of parts."""
    if isinstance(value, list):
        return all(isinstance(part, dict) and "type" in part for part in value)
    return value is None or isinstance(value, str)


def _decoded_list(decode: _Decoder, values: list[Any] | None) -> list[Any] | None:
    return None if values is None else [decode(value) for value in values]


def _decoded_struct(
    decoders: dict[str, _Decoder], value: dict[str, Any] | None
) -> dict[str, Any] | None:
    if value is None:
        return None
    fields = dict(value)
    for name, decode in decoders.items():
        if name in fields:
            fields[name] = decode(fields[name])
    return fields


def _values(column: Any, decode: _Decoder | None) -> Iterator[Any]:
    """Yield the values of a column; a text that is not UTF-8 comes as bytes."""
    try:
        values = column.to_pylist()
    except UnicodeDecodeError:
        values = [_value(scalar) for scalar in column]
    for value in values:
        if isinstance(value, bytes):
            with suppress(UnicodeDecodeError):
                value = value.decode("utf-8")
        yield value if decode is None else decode(value)


def _value(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        return b"\xff"
