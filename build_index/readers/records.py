"""Records, such as the rows of a table or the objects of a JSON file, and the document in each.

Known layouts: The Stack (`content`), UltraChat (`data`: texts of user and assistant in turn), UltraChat-200k
(`messages`: role and content), ShareGPT (`conversations`: from and value), LMSYS-Chat (`conversation`), and `text`.
Any other field can be named.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from build_index.documents import LARGEST_DOCUMENT_BYTES, CorpusCounts, Document, Message, well_formed
from build_index.size import size_text
from rest_store.errors import CorpusFormatError, DocumentSizeError, describe

CONVERSATION_FIELDS = ("messages", "conversations", "conversation", "data")
TEXT_FIELDS = ("content", "text")
KNOWN_FIELDS = ", ".join(f"'{name}'" for name in (*CONVERSATION_FIELDS, *TEXT_FIELDS))

_ROLES = {"human": "user", "gpt": "assistant", "bing": "assistant", "chatgpt": "assistant"}  # ShareGPT's
_MORE_FIELDS = ("reasoning_content", "tool_calls")  # of a message, besides role and content
_MISSING = object()


@dataclass(frozen=True)
class RecordReader:
    """Extracts the document of each record.

    Attributes:
        counts: counts skipped records.
        field: name of the field, or a dotted path; None: the first known field of the record.
        strict: whether a document that is too large is an error, as its file was named. Otherwise it is skipped.
    """

    counts: CorpusCounts
    field: str | None = None
    strict: bool = True

    def documents(self, record: object, origin: str) -> Iterator[Document]:
        """Yield the document of a record, unless it is empty.

        Args:
            record: one row or JSON value.
            origin: where it stands, for messages.

        Raises:
            CorpusFormatError: the record is not an object, or its field is absent or of a wrong type.
            DocumentSizeError: see `too_large`.
        """
        if not isinstance(record, Mapping):
            raise CorpusFormatError(describe(origin, "record", f"a {_kind(record)}", "an object"))
        field = self.field or known_field(record)
        if field is None:
            expected = f"one of {KNOWN_FIELDS}, or --field NAME"
            raise CorpusFormatError(describe(origin, "record", f"one with {fields_text(record)}", expected))
        value = lookup(record, field)
        if value is _MISSING:
            raise CorpusFormatError(
                describe(origin, f"field '{field}'", f"absent ({fields_text(record)})", "in each record")
            )
        document = _document(value, origin, field)
        if document.is_empty:
            self.counts.skip("empty")
        elif document.size > LARGEST_DOCUMENT_BYTES:
            self.too_large(origin)
        else:
            yield document

    def too_large(self, origin: str) -> None:
        """Count a record that is too large to be held in memory.

        Raises:
            DocumentSizeError: `strict`.
        """
        if self.strict:
            limit = size_text(LARGEST_DOCUMENT_BYTES)
            raise DocumentSizeError(describe(origin, "the size of the record", f"above {limit}", f"at most {limit}"))
        self.counts.skip("too large")


def known_field(record: Mapping[str, object]) -> str | None:
    """Return the field that holds the document in a known layout, or None.

    The value counts, too: `data` is only a conversation if it is a list of strings.
    """
    for name in CONVERSATION_FIELDS:
        value = record.get(name)
        if isinstance(value, list) and value:
            if isinstance(value[0], str) and name == "data":
                return name
            if isinstance(value[0], Mapping) and ({"role", "content"} <= set(value[0]) or "value" in value[0]):
                return name
    for name in TEXT_FIELDS:
        if isinstance(record.get(name), str | bytes):
            return name
    # Last: a field that is null or an empty list is an empty document.
    return next((name for name in (*CONVERSATION_FIELDS, *TEXT_FIELDS) if record.get(name, 0) in (None, [])), None)


def lookup(record: object, field: str) -> object:
    """Return the value of a field of a JSON value, or `_MISSING`.

    Args:
        record: a JSON value.
        field: a key, or keys and list indices joined by dots: `"a.b.0"`. A key with these dots in it takes precedence.
    """
    if isinstance(record, Mapping) and field in record:
        return record[field]
    head, dot, rest = field.partition(".")
    if isinstance(record, Mapping) and dot and head in record:
        return lookup(record[head], rest)
    if isinstance(record, list) and head.isdecimal() and int(head) < len(record):
        return lookup(record[int(head)], rest) if dot else record[int(head)]
    return _MISSING


def has_field(record: object, field: str | None) -> bool:
    """Whether a record has the field, or, without a field, a known layout."""
    if not isinstance(record, Mapping):
        return False
    return known_field(record) is not None if field is None else lookup(record, field) is not _MISSING


def _document(value: object, origin: str, field: str) -> Document:
    if value is None:
        return Document(origin=origin)
    if isinstance(value, str):
        return Document(text=well_formed(value), origin=origin)
    if isinstance(value, list):
        return Document(messages=_messages(value, origin, field), origin=origin)
    raise CorpusFormatError(describe(origin, f"field '{field}'", f"a {_kind(value)}", "a text or a conversation"))


def _messages(turns: Sequence[object], origin: str, field: str) -> tuple[Message, ...]:
    messages = []
    for number, turn in enumerate(turns):
        role, content, more = ("user", "assistant")[number % 2], turn, {}
        if isinstance(turn, Mapping):
            speaker = turn.get("role", turn.get("from"))
            if not isinstance(speaker, str):
                problem = f"one with {fields_text(turn)}"
                raise CorpusFormatError(describe(origin, f"turn {number} of '{field}'", problem, "role and content"))
            role = _ROLES.get(speaker, speaker) if "role" not in turn else speaker
            content = _joined(turn.get("content", turn.get("value", "")))
            more = {name: turn[name] for name in _MORE_FIELDS if turn.get(name)}
        if not isinstance(content, str):
            expected = "a text, or role and content"
            raise CorpusFormatError(describe(origin, f"turn {number} of '{field}'", f"a {_kind(content)}", expected))
        parts = (role, content, json.dumps(more, ensure_ascii=False, default=str)) if more else (role, content)
        messages.append(tuple(map(well_formed, parts)))
    return tuple(messages)


def _joined(content: object) -> object:
    """Return the text of a message's content; if it has parts, the text parts joined."""
    if content is None:
        return ""
    if isinstance(content, list) and all(isinstance(part, Mapping) for part in content):
        return "".join(str(part.get("text", "")) for part in content if part.get("type", "text") == "text")
    return content


def _kind(value: object) -> str:
    """Return the JSON name of a value's type."""
    names = {type(None): "null", bool: "boolean", int: "number", float: "number", str: "string", list: "list"}
    return names.get(type(value), "object" if isinstance(value, Mapping) else type(value).__name__)


def fields_text(names: Iterable[str]) -> str:
    """Return the names of fields for a message."""
    quoted = [f"'{name}'" for name in names]
    return ("fields " + ", ".join(quoted[:8]) + (", ..." if len(quoted) > 8 else "")) if quoted else "no fields"
