"""Records, such as the rows of a table or the objects of a JSON file, and the document in each.

The layouts that are known by name: The Stack (`content`), UltraChat (`data`: what user and assistant say in turn),
UltraChat-200k (`messages`: role and content), ShareGPT (`conversations`: from and value), LMSYS-Chat (`conversation`),
and `text`. Any other field is read when it is named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from build_index.counts import CorpusCounts
from build_index.documents import Document, Message, well_formed
from rest_store.errors import CorpusFormatError, describe

CONVERSATION_FIELDS = ("messages", "conversations", "conversation", "data")
TEXT_FIELDS = ("content", "text")
LANGUAGE_FIELDS = ("lang", "language")
PATH_FIELDS = ("max_stars_repo_path", "path")
KNOWN_FIELDS = ", ".join(f"'{name}'" for name in (*CONVERSATION_FIELDS, *TEXT_FIELDS))

_ROLES = {"human": "user", "gpt": "assistant", "bing": "assistant", "chatgpt": "assistant"}  # ShareGPT's
_MISSING = object()


@dataclass(frozen=True)
class RecordReader:
    """Takes the document out of each record.

    Attributes:
        field: name of the field, or a dotted path; None: the first known one that the record has.
        langs: languages wanted, in lower case; empty: all.
        conversations_only: whether a text is an error.
        counts: counts what is passed over.

    Safe to share between threads as far as its counts are.
    """

    counts: CorpusCounts
    field: str | None = None
    langs: frozenset[str] = frozenset()
    conversations_only: bool = False

    def documents(self, record: object, origin: str) -> Iterator[Document]:
        """Yield the document of a record, or none when it is empty or in a language not wanted.

        Args:
            record: one row or JSON value.
            origin: where it stands, for messages.

        Yields:
            At most one document.

        Raises:
            CorpusFormatError: the record is no object, or its field is absent or of a wrong type.
        """
        if not isinstance(record, Mapping):
            raise CorpusFormatError(describe(origin, "record", f"a {_kind(record)}", "an object"))
        if self.langs and not self._is_wanted(record, origin):
            self.counts.skip("language")
            return
        field = self.field or known_field(record)
        if field is None:
            raise CorpusFormatError(describe(origin, "record", f"one with {_keys(record)}", _EXPECTED))
        value = lookup(record, field)
        if value is _MISSING:
            raise CorpusFormatError(describe(origin, f"field '{field}'", f"absent ({_keys(record)})", "in each record"))
        document = _document(value, origin, field)
        if self.conversations_only and document.text:
            raise CorpusFormatError(describe(origin, f"field '{field}'", "a text", "a conversation"))
        if document.is_empty:
            self.counts.skip("empty")
        else:
            yield document

    def _is_wanted(self, record: Mapping[str, object], origin: str) -> bool:
        for name in LANGUAGE_FIELDS:
            if name in record:
                language = record[name]
                return isinstance(language, str) and language.lower() in self.langs
        expected = "'lang' or 'language' in each record (a language was asked for)"
        raise CorpusFormatError(describe(origin, "language", f"absent ({_keys(record)})", expected))


def known_field(record: Mapping[str, object]) -> str | None:
    """Return the field that holds the document by one of the layouts known, or None.

    The value is looked at, too: `data` is only a conversation when it is a list of strings.

    Args:
        record: one row or JSON object.

    Returns:
        A key of `record`.
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
    # Absent values last: a null or an empty list is an empty document, where no other field says more.
    return next((name for name in (*CONVERSATION_FIELDS, *TEXT_FIELDS) if record.get(name, 0) in (None, [])), None)


def lookup(record: object, field: str) -> object:
    """Return the value of a field, or a mark that is no JSON value if there is none.

    Args:
        record: a JSON value.
        field: a key, or keys and list places joined by dots: `"a.b.0"`. A key that holds the dots itself wins.

    Returns:
        The value.
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
    """Whether a record has the field asked for, or, without one, a layout that is known."""
    if not isinstance(record, Mapping):
        return False
    return known_field(record) is not None if field is None else lookup(record, field) is not _MISSING


_EXPECTED = f"one of {KNOWN_FIELDS}, or --field NAME"


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
        role, content = ("user", "assistant")[number % 2], turn
        if isinstance(turn, Mapping):
            said_by = turn.get("role", turn.get("from"))
            if not isinstance(said_by, str):
                found = f"one with {_keys(turn)}"
                raise CorpusFormatError(describe(origin, f"turn {number} of '{field}'", found, "role and content"))
            role = _ROLES.get(said_by, said_by) if "role" not in turn else said_by
            content = _joined(turn.get("content", turn.get("value", "")))
        if not isinstance(content, str):
            found = f"a {_kind(content)}"
            raise CorpusFormatError(
                describe(origin, f"turn {number} of '{field}'", found, "a text, or role and content")
            )
        messages.append((well_formed(role), well_formed(content)))
    return tuple(messages)


def _joined(content: object) -> object:
    """Return the text of a message's content; of one in parts, the text parts joined."""
    if content is None:
        return ""
    if isinstance(content, list) and all(isinstance(part, Mapping) for part in content):
        return "".join(str(part.get("text", "")) for part in content if part.get("type", "text") == "text")
    return content


def _kind(value: object) -> str:
    """Return what JSON calls the type of a value."""
    names = {type(None): "null", bool: "boolean", int: "number", float: "number", str: "string", list: "list"}
    return names.get(type(value), "object" if isinstance(value, Mapping) else type(value).__name__)


def _keys(record: Mapping[str, object]) -> str:
    keys = [f"'{key}'" for key in record]
    return ("fields " + ", ".join(keys[:8]) + (", ..." if len(keys) > 8 else "")) if keys else "no fields"
