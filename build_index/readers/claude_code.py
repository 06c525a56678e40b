"""Sessions of Claude Code: JSON lines, one record an event, below `~/.claude/projects`.

The program's authors call the format internal. This follows descriptions of files of releases 1.0
to 2.0 by others: records `user` and `assistant` have a `message` of the Messages API, all other
types are for the program. An answer is several records with one `message.id`. Records with
`isSidechain` are of agents that the session started, each a conversation of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from build_index.readers.blocks import add_message
from build_index.readers.turns import Turns

_SPOKEN = ("user", "assistant")
_SILENT = (
    *("summary", "system", "file-history-snapshot", "attachment", "progress", "queue-operation"),
    *("last-prompt", "custom-title", "agent-name", "ai-title", "tag", "mode", "pr-link"),
)
_FIELDS = {"parentUuid", "sessionId", "leafUuid", "uuid"}


def is_claude_code(record: Mapping[str, Any]) -> bool:
    """Return whether a record is one of a session of Claude Code."""
    if record.get("type") in _SPOKEN:
        return isinstance(record.get("message"), Mapping) and "sessionId" in record
    return record.get("type") in _SILENT and bool(_FIELDS & record.keys() or "messageId" in record)


def session_of(record: Mapping[str, Any]) -> str | None:
    """Return the name of the conversation that a record belongs to; None: of none."""
    session = record.get("sessionId")
    if record.get("type") not in _SPOKEN or not isinstance(session, str):
        return None
    agent = record.get("agentId") or ("sidechain" if record.get("isSidechain") else "")
    return f"{session}/{agent}" if agent else session


def add_record(turns: Turns, record: Mapping[str, Any], origin: str) -> None:
    """Add the content of a record; count the record if its type is unknown."""
    message = record.get("message")
    if record.get("type") not in _SPOKEN:
        if record.get("type") not in _SILENT:
            turns.unknown("a record", record.get("type"), origin)
    elif not isinstance(message, Mapping):
        turns.unknown("a message", type(message).__name__, origin)
    elif not record.get("isApiErrorMessage"):
        add_message(turns, message, message.get("id") or origin, origin)
