"""Conversations in records: from turns, in the layouts of data sets and of logs, to messages.

A turn is an object with `role` and `content` (OpenAI), one with `from` and `value` (ShareGPT), or a
text alone, whose role follows from its place. Content may be a text, null, or a list of parts. The
calls of tools and the reasoning of a model have one name each in a message, whichever name the
record uses.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeGuard

from build_index.documents import Message, well_formed
from rest_store.errors import CorpusFormatError, describe

# Roles of ShareGPT.
_ROLES = {"human": "user", "gpt": "assistant", "bing": "assistant", "chatgpt": "assistant"}
# Names of reasoning in engines and templates.
_REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")
_REASONING_PARTS = ("thinking", "reasoning")
_OTHER_FIELDS = ("tool_call_id", "name")
_EXPECTED = "role and content"
_ABSENT = object()
_PART_TYPE = re.compile(r"[a-z_]{1,30}")


def parse_messages(
    turns: Sequence[object], origin: str, field: str, left_out: Counter[str]
) -> tuple[Message, ...]:
    """Return the messages of a conversation; none if no turn holds more than white space.

    The third item of a message is a JSON object with those of `reasoning_content`, `tool_calls`,
    `tool_call_id` and `name` that the turn has, and with `content`, if that is null.

    Args:
        turns: those of the record, oldest first.
        origin: place of the record, for messages.
        field: name of their field, for messages.
        left_out: counts parts of content that are not text, such as images.

    Raises:
        CorpusFormatError: a turn has no role, or no content.
    """
    messages: list[Message] = []
    has_content = False
    for number, turn in enumerate(turns):
        role = "user" if number % 2 == 0 else "assistant"
        content = turn
        more: dict[str, Any] = {}
        where = f"turn {number} of '{field}'"
        if isinstance(turn, Mapping):
            role = _role(turn, origin, where)
            content = turn.get("content", turn.get("value", _ABSENT))
            more = _more(turn, content)
            has_more = "tool_calls" in more or "reasoning_content" in more
            if content is _ABSENT and not has_more:
                raise CorpusFormatError(
                    describe(origin, where, f"one with {fields_text(turn)}", _EXPECTED)
                )
            if content is None or content is _ABSENT or (content == "" and has_more):
                content = ""
                if has_more:
                    more["content"] = None  # templates read it
            elif _is_list_of_parts(content):
                content = _joined(content, left_out)
            has_content |= has_more
        if not isinstance(content, str):
            expected = f"a text, or {_EXPECTED}"
            raise CorpusFormatError(describe(origin, where, f"a {json_type(content)}", expected))
        has_content |= bool(content) and not content.isspace()
        message = [role, content]
        if more:
            message.append(json.dumps(more, ensure_ascii=False, default=str))
        messages.append(tuple(map(well_formed, message)))
    return tuple(messages) if has_content else ()


def _role(turn: Mapping[str, Any], origin: str, where: str) -> str:
    speaker = turn.get("role", turn.get("from"))
    if not isinstance(speaker, str):
        raise CorpusFormatError(describe(origin, where, f"one with {fields_text(turn)}", _EXPECTED))
    return speaker if "role" in turn else _ROLES.get(speaker, speaker)


def _more(turn: Mapping[str, Any], content: object) -> dict[str, Any]:
    """Return the fields of a turn besides role and content, as far as templates read them."""
    more: dict[str, Any] = {}
    if reasoning := _reasoning(turn, content):
        more["reasoning_content"] = reasoning
    if turn.get("tool_calls"):
        more["tool_calls"] = turn["tool_calls"]
    # OpenAI's field of earlier days, for one call.
    elif isinstance(call := turn.get("function_call"), Mapping):
        more["tool_calls"] = [{"type": "function", "function": dict(call)}]
    for name in _OTHER_FIELDS:
        if turn.get(name) and isinstance(turn[name], str):
            more[name] = turn[name]
    return more


def _reasoning(turn: Mapping[str, Any], content: object) -> str:
    """Return the reasoning of a turn: of the first field that has some, or of content parts."""
    for name in _REASONING_FIELDS:
        if text := _text(turn.get(name)):
            return text
    return "".join(map(_reasoning_part, content)) if _is_list_of_parts(content) else ""


def _reasoning_part(part: Mapping[str, Any]) -> str:
    kind = part.get("type")
    if kind not in _REASONING_PARTS:
        return ""
    return _text(part.get(kind)) or _text(part.get("text"))


def _text(value: object) -> str:
    """Return a text, or the text of a list of texts and parts, or an empty text."""
    if isinstance(value, str):
        return value
    texts = []
    if isinstance(value, list):
        for item in value:
            texts.append(_text(item.get("text") if isinstance(item, Mapping) else item))
    return "".join(texts)


def _joined(parts: Iterable[Mapping[str, Any]], left_out: Counter[str]) -> str:
    """Return the text of parts of any type, without their reasoning."""
    texts = []
    for part in parts:
        kind = part.get("type", "text")
        if kind in _REASONING_PARTS:
            continue
        if isinstance(text := part.get("text"), str):
            texts.append(text)
        else:
            known = kind if isinstance(kind, str) and _PART_TYPE.fullmatch(kind) else "unknown"
            left_out[f"parts of type '{known}'"] += 1
    return "".join(texts)


def _is_list_of_parts(content: object) -> TypeGuard[list[Mapping[str, Any]]]:
    return isinstance(content, list) and all(isinstance(part, Mapping) for part in content)


def json_type(value: object) -> str:
    """Return the JSON name of a value's type."""
    if isinstance(value, Mapping):
        return "object"
    names = {
        type(None): "null",
        bool: "boolean",
        int: "number",
        float: "number",
        str: "string",
        list: "list",
    }
    return names.get(type(value), type(value).__name__)


def fields_text(names: Iterable[str]) -> str:
    """Return the names of fields for a message."""
    quoted = [f"'{name}'" for name in names]
    if not quoted:
        return "no fields"
    if len(quoted) > 8:
        quoted[8:] = ["..."]
    return "fields " + ", ".join(quoted)
