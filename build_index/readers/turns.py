"""Turns of transcripts, in one form whichever program wrote them: role, content, reasoning, calls.

The form is that of OpenAI's chat completions, which `conversations.parse_messages` reads. Parts of
one answer, which programs keep as records of their own, become one turn.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from build_index.documents import CorpusCounts

_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,40}")
_IMAGE_PARTS = ("image", "input_image", "image_url")


class Turns:
    """The turns of one session, oldest first.

    Args:
        counts: counts records and parts that are left out.

    Attributes:
        turns: the messages that `parse_messages` reads.
        calls: ids of the calls in them.
    """

    def __init__(self, counts: CorpusCounts) -> None:
        self.turns: list[dict[str, Any]] = []
        self.calls: set[object] = set()
        self._counts = counts
        self._answer: object = None  # key of the answer that the last turn is

    @property
    def left_out(self) -> Counter[str]:
        """Counts parts of turns that are left out."""
        return self._counts.left_out

    def unknown(self, record: str, kind: object, origin: str) -> None:
        """Count a record, or a part of one, of a type that no reader knows.

        `record`: the name of its kind.
        """
        name = kind if isinstance(kind, str) and _NAME.fullmatch(kind) else "?"
        self._counts.leave_out(f"{record} of unknown type '{name}'", origin)

    def said(self, role: str, text: str) -> None:
        """Add the text of somebody who is not the model, unless it is empty."""
        if text.strip():
            self._append({"role": role, "content": text})

    def answered(
        self,
        key: object,
        text: str = "",
        *,
        reasoning: str = "",
        calls: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Add a part of an answer of the model.

        Args:
            key: the same for all parts of one answer; another turn between two parts divides them.
            text: the part's text.
            reasoning: the part's reasoning.
            calls: calls of tools, as `call_of` makes them.
        """
        if not (text or reasoning or calls):
            return
        if key != self._answer:
            self._append({"role": "assistant", "content": ""})
            self._answer = key
        turn = self.turns[-1]
        turn["content"] += text
        if reasoning:
            turn["reasoning_content"] = turn.get("reasoning_content", "") + reasoning
        if calls:
            turn.setdefault("tool_calls", []).extend(calls)
            self.calls.update(str(call.get("id")) for call in calls if "id" in call)

    def returned(self, call: object, text: str) -> None:
        """Add the result of a tool; `call`: the id of the call."""
        named = {"tool_call_id": call} if isinstance(call, str) and call else {}
        self._append({"role": "tool", "content": text, **named})

    def _append(self, turn: dict[str, Any]) -> None:
        self.turns.append(turn)
        self._answer = None


def call_of(name: object, arguments: object, call: object) -> dict[str, Any]:
    """Return a call of a tool as OpenAI's chat completions have it.

    Args:
        name: of the tool.
        arguments: an object, or its JSON text.
        call: its id.
    """
    function = {"name": str(name), "arguments": arguments if arguments is not None else {}}
    named = {"id": call} if isinstance(call, str) and call else {}
    return {**named, "type": "function", "function": function}


def text_of(content: object, left_out: Counter[str]) -> str:
    """Return the text of a content: a text, a part, or a list of either.

    Other parts are counted.
    """
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping):
        if isinstance(text := content.get("text"), str):
            return text
        kind = content.get("type")
        kind = "image" if kind in _IMAGE_PARTS else kind
        known = kind if isinstance(kind, str) and _NAME.fullmatch(kind) else "unknown"
        left_out[f"parts of type '{known}'"] += 1
        return ""
    if isinstance(content, list):
        return "\n".join(text for part in content if (text := text_of(part, left_out)))
    return ""
