"""Sessions of Codex: rollout files, JSON lines of `type` and `payload`, below `~/.codex/sessions`.

Source: `codex-rs/protocol/src/protocol.rs` (`RolloutLine`) and `models.rs` (`ResponseItem`) of
openai/codex. A `response_item` is an item of the Responses API. A `compacted` record has the
replacement of the context. `event_msg` repeats the content of items. Files from before 0.32 have
the items as lines, without a payload.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from build_index.readers.blocks import ITEM_TYPES, add_item
from build_index.readers.turns import Turns

_TYPES = ("session_meta", "response_item", "compacted", "turn_context", "event_msg", "world_state")
_OLD_HEAD = {"id", "timestamp", "instructions"}
_ANSWER = "answer"


def is_codex(record: Mapping[str, Any]) -> bool:
    """Return whether a record is the first of a rollout file."""
    if record.get("type") in _TYPES and isinstance(record.get("payload"), Mapping):
        return True
    return _OLD_HEAD <= record.keys() <= {*_OLD_HEAD, "git"}


def session_of(record: Mapping[str, Any]) -> str | None:
    """Return the session that a record begins; None: it belongs to that before it."""
    fields = record.get("payload") if record.get("type") == "session_meta" else record
    begins = record.get("type") == "session_meta" or "instructions" in record
    session = fields.get("id") if begins and isinstance(fields, Mapping) else None
    return session if isinstance(session, str) else None


def add_record(turns: Turns, record: Mapping[str, Any], origin: str) -> None:
    """Add the content of a record; count the record if its type is unknown."""
    kind = record.get("type")
    payload = record.get("payload")
    if kind == "response_item" and isinstance(payload, Mapping):
        add_item(turns, payload, _ANSWER, origin)
    elif kind == "compacted" and isinstance(payload, Mapping):
        turns.answered(("compacted", origin), str(payload.get("message") or ""))
    elif kind == "session_meta" and isinstance(payload, Mapping):
        instructions = payload.get("base_instructions") or payload.get("instructions")
        text = instructions.get("text") if isinstance(instructions, Mapping) else instructions
        turns.said("system", text if isinstance(text, str) else "")
    elif kind in ITEM_TYPES and payload is None:
        add_item(turns, record, _ANSWER, origin)
    elif kind not in _TYPES and "instructions" not in record and "record_type" not in record:
        turns.unknown("a record", kind, origin)
