"""Contents of Anthropic's Messages API and items of OpenAI's Responses API, as turns.

Sources: the reference of the Messages API, `anthropic-version` 2023-06-01 (blocks `text`,
`thinking`, `tool_use`, `tool_result`), and that of the Responses API, whose items Codex keeps, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from build_index.readers.turns import Turns, call_of, text_of

BLOCK_TYPES = ("tool_use", "tool_result")
"""Types of parts that only contents of the Messages API have."""
ITEM_TYPES = (
    "message",
    "reasoning",
    "function_call",
    "function_call_output",
    "local_shell_call",
    "custom_tool_call",
    "custom_tool_call_output",
)
"""Types of items of the Responses API that are read."""
_SILENT_ITEMS = ("ghost_snapshot", "compaction", "compaction_summary")
_HIDDEN = "encrypted reasoning parts"
_SUMMARIES = "summaries of reasoning"  # which another model writes


def add_message(turns: Turns, message: Mapping[str, Any], key: object, origin: str) -> None:
    """Add a message of the Messages API.

    Args:
        turns: to add to.
        message: an object with `role` and `content`.
        key: of an answer, see `Turns.answered`.
        origin: where it stands.
    """
    role = message.get("role")
    content = message.get("content")
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    is_answer = role == "assistant"
    for block in blocks:
        if not isinstance(block, Mapping):
            turns.unknown("a part", type(block).__name__, origin)
            continue
        kind = block.get("type")
        if kind == "tool_result":
            result = text_of(block.get("content"), turns.left_out)
            turns.returned(block.get("tool_use_id"), result)
        elif kind == "tool_use" and is_answer:
            call = call_of(block.get("name"), block.get("input"), block.get("id"))
            turns.answered(key, calls=[call])
        elif kind == "thinking" and is_answer:
            turns.answered(key, reasoning=str(block.get("thinking") or ""))
        elif kind == "redacted_thinking":
            turns.left_out[_HIDDEN] += 1
        elif is_answer:
            turns.answered(key, text_of(block, turns.left_out))
        else:
            turns.said(str(role), text_of(block, turns.left_out))


def add_item(turns: Turns, item: Mapping[str, Any], key: object, origin: str) -> None:
    """Add an item of the Responses API; the arguments are those of `add_message`."""
    kind = item.get("type", "message")
    if kind == "message":
        text = text_of(item.get("content"), turns.left_out)
        if item.get("role") == "assistant":
            turns.answered(key, text)
        else:
            turns.said("system" if item.get("role") == "developer" else str(item.get("role")), text)
    elif kind == "reasoning":
        turns.answered(key, reasoning=text_of(item.get("content") or [], turns.left_out))
        if summary := item.get("summary"):
            turns.left_out[_SUMMARIES] += len(summary) if isinstance(summary, list) else 1
        if item.get("encrypted_content"):
            turns.left_out[_HIDDEN] += 1
    elif kind in ("function_call", "custom_tool_call", "local_shell_call"):
        turns.answered(key, calls=[_call_of(item)])
    elif kind in ("function_call_output", "custom_tool_call_output"):
        output = item.get("output")
        output = output.get("content") if isinstance(output, Mapping) else output
        turns.returned(item.get("call_id"), text_of(output, turns.left_out))
    elif kind not in _SILENT_ITEMS:
        turns.unknown("an item", kind, origin)


def _call_of(item: Mapping[str, Any]) -> dict[str, Any]:
    arguments = item.get("arguments")
    name = item.get("name")
    if item.get("type") == "custom_tool_call":
        arguments = {"input": item.get("input")}
    elif item.get("type") == "local_shell_call":
        action = item.get("action")
        command = action.get("command") if isinstance(action, Mapping) else None
        arguments = {"command": command}
        name = "local_shell"
    return call_of(name, arguments, item.get("call_id") or item.get("id"))
