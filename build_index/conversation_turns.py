"""The messages of a conversation, and the forms in which a chat template may get them.

Messages have several forms, of which a template may refuse some or show them wrongly: content that
is null or empty, arguments of a call as an object or as its JSON text, reasoning in a field of one
of three names or in a part of the content.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

from build_index.alignment import CERTAIN
from build_index.documents import Message
from build_index.tool_calls import call_list, is_shown, with_converted_arguments

# Forms of reasoning: in a field of all names, in one of one name, as a content item whose thinking
# is a text, or as one whose thinking is a list.
ALL_NAMES = "names"
ONE_NAME = "one name"
ITEM = "item"
LIST_ITEM = "list item"
_REASONING_NAMES = ("reasoning_content", "reasoning", "thinking")
OPENING = "<think>"
CLOSING = "</think>"


class Shape(NamedTuple):
    """The properties by which templates may tell answers apart.

    Attributes:
        has_calls: whether the answer calls tools.
        has_text: whether it has a text besides reasoning.
        has_reasoning: whether it has reasoning in a field.
        has_inline_reasoning: whether it has reasoning in the content.
    """

    has_calls: bool
    has_text: bool
    has_reasoning: bool
    has_inline_reasoning: bool


class Form(NamedTuple):
    """One way to give messages to a template.

    Attributes:
        null: whether content that is null stays so; otherwise it is an empty text.
        converted: whether arguments that are the JSON text of an object become the object, and the
            reverse.
        reasoning: `ALL_NAMES`, `ONE_NAME`, `ITEM` or `LIST_ITEM`.
        split: whether reasoning that stands in the content gets a field of its own.
    """

    null: bool = True
    converted: bool = False
    reasoning: str = ALL_NAMES
    split: bool = False


class Turn:
    """A message, and the fields that a template gets for it.

    Args:
        message: as readers of corpora make it.
        seal: replaces the texts of control tokens in a text.
    """

    def __init__(self, message: Message, seal: Callable[[str], str]) -> None:
        role, content, *more = message
        fields = json.loads(more[0]) if more else {}
        self.role = seal(role)
        self.content = seal(content)
        self.is_assistant = role == "assistant"
        self.is_null = "content" in fields
        self.reasoning = seal(str(fields.get("reasoning_content", "")))
        self._calls: Any = fields.get("tool_calls", [])
        self._others = {
            name: seal(fields[name]) for name in ("tool_call_id", "name") if name in fields
        }
        self._seal = seal

    def fields(self, form: Form) -> dict[str, Any]:
        """Return the turn in one form."""
        fields: dict[str, Any] = {"role": self.role, "content": self.content, **self._others}
        if self.is_null:
            fields["content"] = None if form.null else ""
        if self._calls:
            fields["tool_calls"] = self.calls(form)
        if form.split and self.has_inline_reasoning:
            opened, _, answer = self.content.rpartition(CLOSING)
            reasoning = opened.rpartition(OPENING)[2].strip("\n")
            content = answer.lstrip("\n")
            return fields | {"content": content} | dict.fromkeys(_REASONING_NAMES, reasoning)
        if not self.reasoning:
            return fields
        if form.reasoning == ALL_NAMES:
            return fields | dict.fromkeys(_REASONING_NAMES, self.reasoning)
        if form.reasoning == ONE_NAME:
            return fields | {_REASONING_NAMES[0]: self.reasoning}
        thinking: Any = self.reasoning
        if form.reasoning == LIST_ITEM:
            thinking = [{"type": "text", "text": self.reasoning}]
        content_items: list[Any] = [{"type": "thinking", "thinking": thinking}]
        if self.content:
            content_items.append({"type": "text", "text": self.content})
        return fields | {"content": content_items}

    def calls(self, form: Form) -> Any:
        """Return the calls of tools in one form."""
        return self._converted_calls if form.converted else self._recorded_calls

    @property
    def has_calls(self) -> bool:
        """Whether the message calls tools."""
        return bool(self._calls)

    @property
    def has_inline_reasoning(self) -> bool:
        """Whether an answer has its reasoning in the content."""
        return self.is_assistant and not self.reasoning and CLOSING in self.content

    @property
    def holds_more(self) -> bool:
        """Whether it holds pieces that templates may leave out: calls of tools, or reasoning."""
        return self.has_calls or bool(self.reasoning) or CLOSING in self.content

    @property
    def reasoning_text(self) -> str:
        """The reasoning, in a field or in the content, without white space around it."""
        opened = "" if self.reasoning else self.content.rpartition(CLOSING)[0]
        return (self.reasoning or opened.partition(OPENING)[2] or opened).strip()

    @property
    def answer(self) -> str:
        """The content without reasoning that stands in it, and without white space around it."""
        return self.content.rpartition(CLOSING)[2].strip()

    @cached_property
    def shape(self) -> Shape:
        """The properties by which templates may tell answers apart."""
        return Shape(
            has_calls=self.has_calls,
            has_text=bool(self.answer),
            has_reasoning=bool(self.reasoning),
            has_inline_reasoning=self.has_inline_reasoning,
        )

    def is_recognizable_in(self, text: str, form: Form) -> bool:
        """Return whether a text shows that it holds this answer.

        It holds the last call of tools, or else the end of the answer's text.
        """
        if self.has_calls:
            return len(text) >= CERTAIN and is_shown(call_list(self.calls(form))[-1], text)
        return bool(self.answer) and self.answer[-CERTAIN:] in text

    @cached_property
    def _recorded_calls(self) -> Any:
        return self._sealed_value(self._calls)

    @cached_property
    def _converted_calls(self) -> Any:
        return self._sealed_value(with_converted_arguments(self._calls))

    def _sealed_value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._seal(value)
        if isinstance(value, list):
            return [self._sealed_value(item) for item in value]
        if isinstance(value, dict):
            return {self._seal(name): self._sealed_value(item) for name, item in value.items()}
        return value
