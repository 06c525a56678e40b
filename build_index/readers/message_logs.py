"""Logs of requests to a model and of its answers: one record a request, of any of three interfaces.

OpenAI's chat completions have `messages` and `choices`, its Responses API `input` and `output`,
Anthropic's Messages API `system`, `messages` and `content`. Both halves may stand in one object, or
under `request` and `response`, as proxies write them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from build_index.readers.blocks import add_item, add_message
from build_index.readers.turns import Turns, text_of

_REQUESTS = ("request", "request_body", "requestBody")
_RESPONSES = ("response", "response_body", "responseBody")
_ANSWER = "answer"
_SESSIONS = ("session_id", "sessionId", "conversation_id", "previous_response_id")


def is_message_log(record: Mapping[str, Any]) -> bool:
    """Return whether a record is a request to a model and the answer."""
    request, response = _halves(record)
    if not isinstance(request.get("messages"), list) and "input" not in request:
        return False
    if isinstance(request.get("messages"), list):
        return _choices(response) is not None or _is_content(response)
    return _items(response) is not None


def session_of(record: Mapping[str, Any]) -> str | None:
    """Return the session that a record names, or None."""
    request, response = _halves(record)
    for fields in (record, request, response):
        for name in _SESSIONS:
            value = fields.get(name)
            if isinstance(value, str) and value:
                return value
    return None


def add_exchange(turns: Turns, record: Mapping[str, Any], origin: str) -> None:
    """Add the messages of a request, and the answer."""
    request, response = _halves(record)
    instructions = request.get("system", request.get("instructions"))
    turns.said("system", text_of(instructions or "", turns.left_out))
    for number, message in enumerate(_list(request.get("messages"))):
        if isinstance(message, Mapping):
            _add(turns, message, number, origin)
        else:
            turns.unknown("a message", type(message).__name__, origin)
    before = request.get("input")
    if isinstance(before, str):
        turns.said("user", before)
    for item in (*_list(before), *(_items(response) or ())):
        if isinstance(item, Mapping):
            add_item(turns, item, _ANSWER, origin)
        else:
            turns.unknown("an item", type(item).__name__, origin)
    for choice in (_choices(response) or ())[:1]:
        message = choice.get("message") if isinstance(choice, Mapping) else None
        if isinstance(message, Mapping):
            _add(turns, {"role": "assistant", **message}, _ANSWER, origin)
        else:
            turns.unknown("a choice", type(message).__name__, origin)
    if _is_content(response) and _choices(response) is None:
        add_message(turns, {**response, "role": "assistant"}, _ANSWER, origin)


def _add(turns: Turns, message: Mapping[str, Any], key: object, origin: str) -> None:
    """Add a message of chat completions, or of the Messages API where its content has blocks."""
    content = message.get("content")
    if isinstance(content, list) and message.get("role") in ("user", "assistant"):
        add_message(turns, {**message, "content": content}, key, origin)
        if not message.get("tool_calls"):
            return
        content = ""
    text = text_of(content or "", turns.left_out)
    if message.get("role") == "assistant":
        reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
        calls = [call for call in _list(message.get("tool_calls")) if isinstance(call, Mapping)]
        turns.answered(key, text, reasoning=text_of(reasoning, turns.left_out), calls=calls)
    elif message.get("role") in ("tool", "function"):
        turns.returned(message.get("tool_call_id"), text)
    else:
        turns.said(
            "system" if message.get("role") == "developer" else str(message.get("role")), text
        )


def _halves(record: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    def half(names: tuple[str, ...]) -> Mapping[str, Any]:
        parts = (record.get(name) for name in names)
        message = next((part for part in parts if isinstance(part, Mapping)), record)
        body = message.get("body")
        return body if isinstance(body, Mapping) else message

    return half(_REQUESTS), half(_RESPONSES)


def _choices(response: Mapping[str, Any]) -> list[Any] | None:
    choices = response.get("choices")
    return choices if isinstance(choices, list) and choices else None


def _items(response: Mapping[str, Any]) -> list[Any] | None:
    items = response.get("output")
    if not isinstance(items, list) or not items:
        return None
    return items if all(isinstance(item, Mapping) and "type" in item for item in items) else None


def _is_content(response: Mapping[str, Any]) -> bool:
    """Return whether a response is one of the Messages API."""
    return isinstance(response.get("content"), list) and response.get("role") == "assistant"


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
