"""The text of a conversation as its model read and wrote it, by the chat template of the model.

A message is given to the template in the first form that is shown in full
(`build_index/conversation_turns.py`); answers are taken as the model wrote them
(`build_index/written_answers.py`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

from build_index.chat_template import ChatTemplate, RefusalError
from build_index.conversation_turns import ALL_NAMES, ITEM, LIST_ITEM, ONE_NAME, Form, Turn
from build_index.documents import Message
from build_index.tool_calls import MAX_CALLS, call_list, is_mangled, is_shown
from build_index.written_answers import COMPARED, AnswerWriting
from rest_store.errors import CorpusError, describe

_SHOWN_WRONGLY = re.compile(r"""'type': 'thinking'|"type": "thinking"|</think>\s*<think>""")
"""A content item written as it is, or reasoning behind an empty one of the template."""


class ConversationError(CorpusError):
    """A conversation that its chat template refuses; the message names it, with the reason."""


class _Rendering(NamedTuple):
    """A conversation in one form.

    Attributes:
        form: in which the template got the turns.
        text: their text.
        faults: see `ConversationWriter._faults`.
    """

    form: Form
    text: str
    faults: int


@dataclass(frozen=True)
class ConversationWriter:
    """Writes conversations.

    Attributes:
        template: the chat template of the model.
        controls: finds the texts of control tokens in the output of the template.
        seal: replaces them in a message, so that they are text.

    Thread-safe.
    """

    template: ChatTemplate
    controls: re.Pattern[str]
    seal: Callable[[str], str]

    def written(self, messages: Sequence[Message], origin: str, left_out: Counter[str]) -> str:
        """Return a conversation with each answer as the model wrote it.

        Args:
            messages: oldest first.
            origin: its place in a corpus, for messages.
            left_out: counts the pieces that the template shows in no form.

        Raises:
            ConversationError: the template refuses the conversation.
        """
        turns, form, history = self._shown(messages, origin)
        return AnswerWriting(self.template, self.controls, turns, form, history, left_out).text()

    def answer(
        self, messages: Sequence[Message], origin: str, left_out: Counter[str]
    ) -> tuple[str, str]:
        """Return the prompt before the last answer of a conversation, and that answer as written.

        Raises:
            ConversationError: the template refuses the conversation.
        """
        turns, form, history = self._shown(messages, origin)
        return AnswerWriting(self.template, self.controls, turns, form, history, left_out).answer()

    def history(self, messages: Sequence[Message], origin: str) -> str:
        """Return a conversation as one rendering shows it: answers but the last are history.

        Raises:
            ConversationError: the template refuses the conversation.
        """
        return self._shown(messages, origin)[2]

    def _shown(self, messages: Sequence[Message], origin: str) -> tuple[list[Turn], Form, str]:
        """Return the turns, the form that is shown best, and the conversation's text in it."""
        try:
            turns = [Turn(message, self.seal) for message in messages]
            form, text = self._best_form(turns)
        except (RefusalError, RecursionError) as error:
            roles = ", ".join(role for role, *_ in messages[:4])
            if len(messages) > 4:
                roles += ", ..."
            problem = f"refused by the chat template ({error})"
            raise ConversationError(
                describe(origin, f"a conversation ({roles})", problem, "valid turns")
            ) from error
        return turns, form, text

    def _best_form(self, turns: list[Turn]) -> tuple[Form, str]:
        """Return the first form in which the template shows all, or the one with fewest faults.

        Raises:
            RefusalError: of the first form, if all are refused.
        """
        rendering = self._best_rendering(turns)
        last = _last_with_reasoning(turns)
        if last is None:
            return rendering.form, rendering.text
        return self._with_reasoning(turns, last, rendering)

    def _best_rendering(self, turns: list[Turn]) -> _Rendering:
        best: _Rendering | None = None
        first_refusal: RefusalError | None = None
        for form in _forms(turns):
            if best is not None and (not best.faults or form.reasoning != best.form.reasoning):
                break  # reasoning under one name is for templates that refuse it under all names
            try:
                text = self.render(turns, form)
                rendering = _Rendering(form, text, self._faults(turns, form, text))
            except RefusalError as error:
                first_refusal = first_refusal or error
                continue
            if best is None or rendering.faults < best.faults:
                best = rendering
        if best is None:
            assert first_refusal is not None
            raise first_refusal
        return best

    def _with_reasoning(
        self, turns: list[Turn], last: int, rendering: _Rendering
    ) -> tuple[Form, str]:
        """Return another form if the template shows reasoning in that one alone.

        `last`: a turn that has some.
        """
        form, text, _ = rendering
        reasoning = turns[last].reasoning_text[:COMPARED]
        others = [form._replace(reasoning=ITEM), form._replace(reasoning=LIST_ITEM)]
        if turns[last].has_inline_reasoning:
            others = [form._replace(split=True)]
        for other in (form, *others):
            with suppress(RefusalError):
                if other is form and last == len(turns) - 1:
                    shown = text
                else:
                    shown = self.render(turns[: last + 1], other)
                if reasoning in shown and not _SHOWN_WRONGLY.search(shown):
                    return other, text if other is form else self.render(turns, other)
        return form, text

    def _faults(self, turns: list[Turn], form: Form, text: str) -> int:
        """Return the number of ways in which the template shows calls and null content wrongly."""
        faults = 0
        if any(turn.has_calls for turn in turns):
            calls: list[Any] = []
            for turn in turns:
                if turn.has_calls:
                    calls += call_list(turn.calls(form))
            calls = calls[:MAX_CALLS]
            faults += any(is_mangled(call, text) for call in calls)
            faults += not all(is_shown(call, text) for call in calls)
        if form.null and "None" in text and any(turn.is_null for turn in turns):
            with suppress(RefusalError):
                with_empty = self.render(turns, form._replace(null=False))
                faults += text.count("None") > with_empty.count("None")
        return faults

    def render(self, turns: Sequence[Turn], form: Form, *, prompt: bool = False) -> str:
        """Return the text of turns in one form; raises RefusalError."""
        return self.template.render([turn.fields(form) for turn in turns], prompt=prompt)


def _forms(turns: list[Turn]) -> Iterator[Form]:
    """Yield the forms that a template may want for these turns, the usual one first."""
    names = [ALL_NAMES]
    nulls = [True]
    conversions = [False]
    if _last_with_reasoning(turns) is not None:
        names.append(ONE_NAME)
    if any(turn.is_null for turn in turns):
        nulls.append(False)
    if any(turn.has_calls for turn in turns):
        conversions.append(True)
    for name, null, converted in product(names, nulls, conversions):
        yield Form(null, converted, name)


def _last_with_reasoning(turns: list[Turn]) -> int | None:
    """Return the last answer with reasoning, or None if there is none."""
    for index in reversed(range(len(turns))):
        if turns[index].is_assistant and turns[index].reasoning_text:
            return index
    return None
