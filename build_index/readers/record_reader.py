"""Records, such as the rows of a table or the objects of a JSON file, and the document in each.

Known layouts: The Stack (`content`), UltraChat (`data`: texts of user and assistant in turn),
UltraChat-200k (`messages`: role and content), ShareGPT (`conversations`: from and value),
LMSYS-Chat (`conversation`), and `text`. Any other field can be named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from build_index.documents import MAX_DOCUMENT_BYTES, CorpusCounts, Document, well_formed
from build_index.readers.conversations import fields_text, json_type, parse_messages
from build_index.size import size_text
from rest_store.errors import CorpusError, CorpusFormatError, describe

CONVERSATION_FIELDS = ("messages", "conversations", "conversation", "data")
TEXT_FIELDS = ("content", "text")
KNOWN_FIELDS = ", ".join(f"'{name}'" for name in (*CONVERSATION_FIELDS, *TEXT_FIELDS))

_MISSING = object()


@dataclass(frozen=True)
class RecordReader:
    """Extracts the document of each record.

    Attributes:
        counts: counts skipped records.
        field: name of the field, or a dotted path; None: the first known field of the record.
        strict: whether a document that is too large is an error, because its file was named.
            Otherwise it is skipped.
    """

    counts: CorpusCounts
    field: str | None = None
    strict: bool = True

    def documents(self, record: object, origin: str) -> Iterator[Document]:
        """Yield the document of a record, unless it is empty.

        Args:
            record: one row or JSON value.
            origin: its place, for messages.

        Raises:
            CorpusFormatError: the record is not an object, or its field is absent or of a wrong
                type.
            CorpusError: see `too_large`.
        """
        if not isinstance(record, Mapping):
            raise CorpusFormatError(
                describe(origin, "record", f"a {json_type(record)}", "an object")
            )
        field = self.field or known_field(record)
        if field is None:
            expected = f"a conversation or a text in one of {KNOWN_FIELDS}, or --field NAME"
            raise CorpusFormatError(
                describe(origin, "record", f"one with {record_text(record)}", expected)
            )
        value = lookup(record, field)
        if value is _MISSING:
            raise CorpusFormatError(
                f"{origin}: field '{field}' is absent ({fields_text(record)}), expected in each"
                " record"
            )
        document = self._document(value, origin, field)
        if document.is_empty:
            self.counts.skip("empty", origin)
        elif document.size > MAX_DOCUMENT_BYTES:
            self.too_large(origin)
        else:
            yield document

    def _document(self, value: object, origin: str, field: str) -> Document:
        if value is None:
            return Document(origin=origin)
        if isinstance(value, str):
            return Document(text=well_formed(value), origin=origin)
        if isinstance(value, list):
            messages = parse_messages(value, origin, field, self.counts.left_out)
            return Document(messages=messages, origin=origin)
        raise CorpusFormatError(
            describe(
                origin, f"field '{field}'", f"a {json_type(value)}", "a text or a conversation"
            )
        )

    def too_large(self, origin: str) -> None:
        """Count a record that is too large to be held in memory.

        Raises:
            CorpusError: `strict`.
        """
        if self.strict:
            limit = size_text(MAX_DOCUMENT_BYTES)
            raise CorpusError(
                describe(origin, "the size of the record", f"above {limit}", f"at most {limit}")
            )
        self.counts.skip("too large", origin)


def known_field(record: Mapping[str, object]) -> str | None:
    """Return the field that holds the document in a known layout, or None.

    The value counts, too: `data` is only a conversation if it is a list of strings.
    """
    for name in CONVERSATION_FIELDS:
        value = record.get(name)
        if isinstance(value, list) and value:
            if isinstance(value[0], str) and name == "data":
                return name
            if isinstance(value[0], Mapping) and (
                {"role", "content"} <= set(value[0]) or "value" in value[0]
            ):
                return name
    for name in TEXT_FIELDS:
        if isinstance(record.get(name), str | bytes):
            return name
    # Last: a field that is null or an empty list is an empty document.
    for name in (*CONVERSATION_FIELDS, *TEXT_FIELDS):
        if record.get(name, 0) in (None, []):
            return name
    return None


def record_text(record: Mapping[str, object]) -> str:
    """Return the fields of a record for a message, with the types of fields of known names."""
    texts = [fields_text(record)]
    for name in (*CONVERSATION_FIELDS, *TEXT_FIELDS):
        if name in record:
            texts.append(f"'{name}' is a {json_type(record[name])}")
    return "; ".join(texts)


def lookup(record: object, field: str) -> object:
    """Return the value of a field of a JSON value, or `_MISSING`; None: a null is on the way to it.

    Args:
        record: a JSON value.
        field: a key, or keys and list indices joined by dots: `"a.b.0"`. A key with these dots in
            it takes precedence.
    """
    if record is None:
        return None
    if isinstance(record, Mapping) and field in record:
        return record[field]
    head, dot, rest = field.partition(".")
    if isinstance(record, Mapping) and dot and head in record:
        return lookup(record[head], rest)
    if isinstance(record, list) and head.isdecimal() and int(head) < len(record):
        return lookup(record[int(head)], rest) if dot else record[int(head)]
    return _MISSING


def has_field(record: object, field: str | None) -> bool:
    """Return whether a record has the field, or, without a field, a known layout."""
    if not isinstance(record, Mapping):
        return False
    if field is None:
        return known_field(record) is not None
    return lookup(record, field) is not _MISSING
