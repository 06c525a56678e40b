"""From a row or a JSON value to the document in it.

JSON text is decoded first, and malformed records are counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from build_index.documents import Document
from build_index.readers.json_text import decoded_json
from build_index.readers.record_reader import CONVERSATION_FIELDS, RecordReader, known_field, lookup
from rest_store.errors import CorpusFormatError

MALFORMED = "malformed record"  # a reason to skip it
_SPEAKERS = ("role", "from", "value")  # a turn of a conversation has one of them


def record_documents(records: RecordReader, record: object, origin: str) -> Iterator[Document]:
    """Yield the document of a record, unless it is empty, malformed or not UTF-8.

    Args:
        records: extracts it.
        record: a row of a table or a JSON value; a text in it that is not UTF-8 is bytes.
        origin: its place, for messages.

    Raises:
        CorpusFormatError: the record is malformed, and its file was named.
        CorpusError: see `RecordReader.too_large`.
    """
    record = with_conversation(record, records.field)
    if _is_bytes(record, records.field):
        records.counts.skip("not UTF-8", origin)
        return
    try:
        yield from records.documents(record, origin)
    except CorpusFormatError as error:
        malformed(records, error)


def malformed(records: RecordReader, error: CorpusFormatError) -> None:
    """Raise the error about a record whose file was named, or else count it."""
    if records.strict:
        raise error
    records.counts.skip(MALFORMED, str(error))


def with_conversation(record: object, field: str | None) -> object:
    """Return a record with its conversation as a list, even where the record has it as JSON text.

    Exported logs have such text. Only fields whose names mean conversations are decoded: the text
    of another field may be a JSON file.

    Args:
        record: a JSON value.
        field: the name of the document's field, or a dotted path; None: any known layout.
    """
    if not isinstance(record, Mapping):
        return record
    if field is None:
        values = {name: record.get(name) for name in CONVERSATION_FIELDS}
    elif field.rpartition(".")[2] in CONVERSATION_FIELDS:
        values = {field: lookup(record, field)}
    else:
        values = {}
    decoded = {}
    for name, value in values.items():
        turns = _conversation(value) if isinstance(value, str) else None
        if turns is not None:
            decoded[name] = turns
    return {**record, **decoded} if decoded else record


def _conversation(text: str) -> list[Any] | None:
    """Return the turns of a conversation that is JSON text, or None."""
    if not text.lstrip().startswith("["):
        return None
    try:
        value = decoded_json(text)
    except ValueError:
        return None
    if not isinstance(value, list) or not value or not isinstance(value[0], Mapping):
        return None
    return value if any(name in value[0] for name in _SPEAKERS) else None


def _is_bytes(record: object, field: str | None) -> bool:
    """Return whether the document of a record, or a field that may be one, is not UTF-8."""
    if not isinstance(record, Mapping):
        return False
    chosen = field or known_field(record)
    if chosen is not None:
        return isinstance(lookup(record, chosen), bytes)
    return any(isinstance(record.get(name), bytes) for name in CONVERSATION_FIELDS)
