"""The text of a conversation as its model read and wrote it, by the chat template of the model.

A template shows an answer in two ways: as the last turn, which is how the model wrote it, and as
history, once a later turn follows. Templates of reasoning models leave thoughts out of the history,
and some end the last turn otherwise. So an answer is taken from the conversation that ends with it:

    prompt, answer 1 as the last turn, the turns between, answer 2 as the last turn, ...

Messages have several forms, of which a template may refuse some or show them wrongly: content that
is null or empty, arguments of a call as an object or as its JSON text, reasoning in a field of one
of three names or in a part of the content. The first form that is shown in full is taken.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple, TypeAlias

from build_index.chat_template import ChatTemplate, RefusalError
from build_index.documents import Message
from rest_store.errors import CorpusError, describe

# Pieces that a template may leave out of a message.
CALLS = "tool calls"
REASONING = "reasoning texts"
TEXTS = "message texts"

# Forms of reasoning: in a field of all names, in one of one name, as a content item whose thinking
# is a text, or as one whose thinking is a list.
_NAMES = "names"
_ONE_NAME = "one name"
_ITEM = "item"
_LIST_ITEM = "list item"
_REASONING_NAMES = ("reasoning_content", "reasoning", "thinking")
_SHOWN_WRONGLY = re.compile(r"""'type': 'thinking'|"type": "thinking"|</think>\s*<think>""")
"""A content item written as it is, or reasoning behind an empty one of the template."""
_OPENING = "<think>"
_CLOSING = "</think>"
_COMPARED = 64  # characters that tell whether a text is shown
_CERTAIN = 16  # characters of an answer that tell where it stands
_CALLS_COMPARED = 64
_PLACES = 64
_STABLE = 4  # answers of a kind that tell how a template treats others
# Characters rendered for one conversation; later turns are stored as history shows them.
_MAX_EFFORT = 1 << 25
_TURN = 512  # a shorter turn counts as so many characters
_SEARCHED = 16  # characters searched take the time of one that is rendered
_MAX_CONTROL_LENGTH = 256


class ConversationError(CorpusError):
    """A conversation that its chat template refuses; the message names it, with the reason."""


Shape: TypeAlias = tuple[bool, bool, bool, bool]


class Form(NamedTuple):
    """One way to give messages to a template.

    Attributes:
        null: whether content that is null stays so; otherwise it is an empty text.
        converted: whether arguments that are the JSON text of an object become the object, and the
            reverse.
        reasoning: `_NAMES`, `_ONE_NAME`, `_ITEM` or `_LIST_ITEM`.
        split: whether reasoning that stands in the content gets a field of its own.
    """

    null: bool = True
    converted: bool = False
    reasoning: str = _NAMES
    split: bool = False


class Turn:
    """A message, and the fields that a template gets for it.

    Args:
        message: as readers of corpora make it.
        sealed: replaces the texts of control tokens in a text.
    """

    def __init__(self, message: Message, sealed: Callable[[str], str]) -> None:
        role, content, *more = message
        fields = json.loads(more[0]) if more else {}
        self.role = sealed(role)
        self.content = sealed(content)
        self.is_assistant = role == "assistant"
        self.is_null = "content" in fields
        self.reasoning = sealed(str(fields.get("reasoning_content", "")))
        self._calls: Any = fields.get("tool_calls", [])
        self._others = {
            name: sealed(fields[name]) for name in ("tool_call_id", "name") if name in fields
        }
        self._sealed = sealed

    def fields(self, form: Form) -> dict[str, Any]:
        """Return the turn in one form."""
        fields: dict[str, Any] = {"role": self.role, "content": self.content, **self._others}
        if self.is_null:
            fields["content"] = None if form.null else ""
        if self._calls:
            fields["tool_calls"] = self.calls(form)
        if form.split and self.has_inline_thought:
            opened, _, answer = self.content.rpartition(_CLOSING)
            reasoning = opened.rpartition(_OPENING)[2].strip("\n")
            content = answer.lstrip("\n")
            return fields | {"content": content} | dict.fromkeys(_REASONING_NAMES, reasoning)
        if not self.reasoning:
            return fields
        if form.reasoning == _NAMES:
            return fields | dict.fromkeys(_REASONING_NAMES, self.reasoning)
        if form.reasoning == _ONE_NAME:
            return fields | {_REASONING_NAMES[0]: self.reasoning}
        thought: Any = self.reasoning
        if form.reasoning == _LIST_ITEM:
            thought = [{"type": "text", "text": self.reasoning}]
        content_items: list[Any] = [{"type": "thinking", "thinking": thought}]
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
    def has_inline_thought(self) -> bool:
        """Whether an answer has its reasoning in the content."""
        return self.is_assistant and not self.reasoning and _CLOSING in self.content

    @property
    def thought(self) -> str:
        """The reasoning, in a field or in the content, without white space around it."""
        opened = "" if self.reasoning else self.content.rpartition(_CLOSING)[0]
        return (self.reasoning or opened.partition(_OPENING)[2] or opened).strip()

    @property
    def answer(self) -> str:
        """The content without reasoning that stands in it, and without white space around it."""
        return self.content.rpartition(_CLOSING)[2].strip()

    @cached_property
    def shape(self) -> Shape:
        """The properties by which templates may tell answers apart."""
        return self.has_calls, bool(self.answer), bool(self.reasoning), self.has_inline_thought

    def ends_in(self, text: str, form: Form) -> bool:
        """Whether a text has the end of this answer."""
        if self.has_calls:
            return len(text) >= _CERTAIN and _is_shown(_calls(self.calls(form))[-1], text)
        return bool(self.answer) and self.answer[-_CERTAIN:] in text

    @cached_property
    def _recorded_calls(self) -> Any:
        return self._sealed_value(self._calls)

    @cached_property
    def _converted_calls(self) -> Any:
        return self._sealed_value(_with_converted_arguments(self._calls))

    def _sealed_value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._sealed(value)
        if isinstance(value, list):
            return [self._sealed_value(item) for item in value]
        if isinstance(value, dict):
            return {self._sealed(name): self._sealed_value(item) for name, item in value.items()}
        return value


@dataclass(frozen=True)
class ConversationWriter:
    """Writes conversations.

    Attributes:
        template: the chat template of the model.
        controls: finds the texts of control tokens in the output of the template.
        sealed: replaces them in a message, so that they are text.

    Thread-safe.
    """

    template: ChatTemplate
    controls: re.Pattern[str]
    sealed: Callable[[str], str]

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
        return _Writing(self, turns, form, history, left_out).text()

    def answer(
        self, messages: Sequence[Message], origin: str, left_out: Counter[str]
    ) -> tuple[str, str]:
        """Return the prompt before the last answer of a conversation, and that answer as written.

        Raises:
            ConversationError: the template refuses the conversation.
        """
        turns, form, history = self._shown(messages, origin)
        return _Writing(self, turns, form, history, left_out).answer()

    def history(self, messages: Sequence[Message], origin: str) -> str:
        """Return a conversation as one rendering shows it: answers but the last are history.

        Raises:
            ConversationError: the template refuses the conversation.
        """
        return self._shown(messages, origin)[2]

    def _shown(self, messages: Sequence[Message], origin: str) -> tuple[list[Turn], Form, str]:
        """Return the turns, the form that is shown best, and the conversation's text in it."""
        try:
            turns = [Turn(message, self.sealed) for message in messages]
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
        nulls = (True, False) if any(turn.is_null for turn in turns) else (True,)
        conversions = (False, True) if any(turn.has_calls for turn in turns) else (False,)
        thinking = [index for index, turn in enumerate(turns) if turn.is_assistant and turn.thought]
        refusal: RefusalError | None = None
        best: tuple[int, Form, str] | None = None
        for name in (_NAMES, _ONE_NAME)[: 1 + bool(thinking)]:
            for null, converted in product(nulls, conversions):
                form = Form(null, converted, name)
                try:
                    text = self.render(turns, form)
                    faults = self._faults(turns, form, text)
                except RefusalError as error:
                    refusal = refusal or error
                    continue
                if best is None or faults < best[0]:
                    best = faults, form, text
                if not faults:
                    break
            if best is not None:
                break
        if best is None:
            raise refusal or RefusalError("no form of the conversation was tried")
        _, form, text = best
        return self._with_reasoning(turns, thinking[-1], form, text) if thinking else (form, text)

    def _with_reasoning(
        self, turns: list[Turn], last: int, form: Form, text: str
    ) -> tuple[Form, str]:
        """Return another form if the template shows reasoning in that one alone.

        `last`: a turn that has some.
        """
        thought = turns[last].thought[:_COMPARED]
        others = [form._replace(reasoning=_ITEM), form._replace(reasoning=_LIST_ITEM)]
        if turns[last].has_inline_thought:
            others = [form._replace(split=True)]
        for other in (form, *others):
            with suppress(RefusalError):
                if other is form and last == len(turns) - 1:
                    shown = text
                else:
                    shown = self.render(turns[: last + 1], other)
                if thought in shown and not _SHOWN_WRONGLY.search(shown):
                    return other, text if other is form else self.render(turns, other)
        return form, text

    def _faults(self, turns: list[Turn], form: Form, text: str) -> int:
        """Return the number of ways in which the template shows calls and null content wrongly."""
        faults = 0
        if any(turn.has_calls for turn in turns):
            calls: list[Any] = []
            for turn in turns:
                if turn.has_calls:
                    calls += _calls(turn.calls(form))
            calls = calls[:_CALLS_COMPARED]
            faults += any(_is_mangled(call, text) for call in calls)
            faults += not all(_is_shown(call, text) for call in calls)
        if form.null and "None" in text and any(turn.is_null for turn in turns):
            with suppress(RefusalError):
                with_empty = self.render(turns, form._replace(null=False))
                faults += text.count("None") > with_empty.count("None")
        return faults

    def render(self, turns: Sequence[Turn], form: Form, *, prompt: bool = False) -> str:
        """Return the text of turns in one form; raises RefusalError."""
        return self.template.render([turn.fields(form) for turn in turns], prompt=prompt)


class _Writing:
    """The writing of one conversation: the text so far, and the rendering that ends where it ends.

    Args:
        writer: the writer of all conversations.
        turns: the turns of this conversation.
        form: in which the template gets them.
        history: the text of all turns.
        left_out: counts the pieces that the template does not show.
    """

    def __init__(
        self,
        writer: ConversationWriter,
        turns: list[Turn],
        form: Form,
        history: str,
        left_out: Counter[str],
    ) -> None:
        self._writer = writer
        self._turns = turns
        self._form = form
        self._fields = [turn.fields(form) for turn in turns]
        self._history = history
        self._left_out = left_out
        self._text = ""
        self._base = ""  # the rendering
        self._done = 0  # turns that it shows
        self._effort = len(history) + _TURN * len(turns)  # characters read and written, about

    def text(self) -> str:
        """Return the text of the conversation."""
        answers = [index for index, turn in enumerate(self._turns) if turn.is_assistant]
        if answers == [len(self._turns) - 1] and not _holds_more(self._turns[-1]):
            return self._history
        stable: Counter[Shape] = Counter()  # answers that were the same text once they were history
        for run in self._runs(answers):
            self._append_run(run, stable)
        if self._done < len(self._turns):
            self._append(len(self._turns), self._history)
        return self._text

    def answer(self) -> tuple[str, str]:
        """Return the prompt before the last turn, which is an answer, and the text of that turn."""
        end = len(self._turns) - 1
        prompt = self._render(end, prompt=True) if end else None
        if prompt is None:
            prompt = (self._render(end) if end else None) or ""
        rendered = self._history
        before = prompt
        if rendered.startswith(prompt):
            added = rendered[len(prompt) :]
        else:
            size = _longest_suffix(prompt, rendered)
            same = self._same(prompt, rendered)
            if size >= _CERTAIN:  # the answer changes the history of earlier turns
                same = rendered.rfind(prompt[len(prompt) - size :]) + size
            else:
                before = prompt[:same]
            added = rendered[same:]
        if _holds_more(self._turns[end]):
            self._base = ""
            self._done = 0
            before, added = self._completed(end, rendered, before, added)
        return before, added

    def _runs(self, answers: list[int]) -> Iterator[list[int]]:
        """Yield answers in lists: neighbours that are alike, with no user's turn between them."""
        run: list[int] = []
        for index in answers:
            if run:
                is_spoken_between = any(
                    turn.role == "user" for turn in self._turns[run[-1] : index]
                )
                if is_spoken_between or self._turns[index].shape != self._turns[run[-1]].shape:
                    yield run
                    run = []
            run.append(index)
        if run:
            yield run

    def _append_run(self, run: list[int], stable: Counter[Shape]) -> None:
        """Append answers that are alike, and all turns before them.

        Rendering a conversation once for each answer takes time that grows with the square of their
        number. So once some answers of a kind had the same text as history, the others of that kind
        are not rendered one by one.
        """
        shape = self._turns[run[0]].shape
        for index in run:
            if index < self._done:
                continue
            if stable[shape] >= _STABLE and (rendered := self._render(run[-1] + 1)) is not None:
                if rendered.startswith(self._base):
                    self._append(run[-1], rendered)
                    return
                stable[shape] = -len(self._turns)
            if (rendered := self._render(index + 1)) is not None:
                if index != run[0]:
                    stable[shape] += 1 if rendered.startswith(self._base) else -len(self._turns)
                self._append(index, rendered)

    def _render(self, end: int, *, prompt: bool = False) -> str | None:
        """Return the text of the turns before `end`; None: it is refused, or all take too long."""
        if end == len(self._turns) and not prompt:
            return self._history
        if self._effort > _MAX_EFFORT:
            return None
        try:
            rendered = self._writer.template.render(self._fields[:end], prompt=prompt)
        except RefusalError:
            return None
        self._effort += len(rendered) + _TURN * end
        return rendered

    def _append(self, end: int, rendered: str) -> None:
        """Append the rest of a rendering after the text so far.

        The rendering ends with the answer `end`, or with the last turn.
        """
        before, added = self._added(rendered, end)
        self._count_history(end, before + added)
        if end < len(self._turns) and _holds_more(self._turns[end]):
            before, added = self._completed(end, rendered, before, added)
        self._text += before + added
        self._base = rendered
        self._done = end + 1

    # --- Where a rendering goes on ----------------------------------------------------------------

    def _added(self, rendered: str, end: int) -> tuple[str, str]:
        """Return the rest of a rendering after the text so far, in two pieces.

        The first piece reaches up to an answer, as far as that is known; the second one begins
        there. The method removes from the text the end that the rendering does not have.
        """
        if rendered.startswith(self._base):
            return "", rendered[len(self._base) :]
        answers = (
            index
            for index in range(self._done, len(self._turns))
            if self._turns[index].is_assistant
        )
        following = next(answers, None)
        if following == end and (place := self._after_answer(rendered)) is not None:
            return "", rendered[place:]
        prompt = None if following is None else self._render(following, prompt=True)
        if prompt is None:
            return "", rendered[self._place(rendered) :]
        before = prompt[self._place(prompt) :]
        if rendered.startswith(prompt):
            return before, rendered[len(prompt) :]
        size = _longest_suffix(prompt, rendered)
        if size >= _CERTAIN:  # earlier turns are another history as soon as there is this answer
            return before, rendered[rendered.rfind(prompt[len(prompt) - size :]) + size :]
        same = self._same(prompt, rendered)
        return before.removesuffix(prompt[same:]), rendered[same:]

    def _after_answer(self, rendered: str) -> int | None:
        """Return the place in a rendering behind the last answer of the text so far.

        None: the rendering ends that answer in another way.
        """
        same = self._same(self._base, rendered)
        tail = self._base[same:]
        history = rendered[same:-1]  # without its end: an answer there is another one
        size = _longest_suffix(tail, history)
        suffix = tail[len(tail) - size :]
        if not self._turns[self._done - 1].ends_in(suffix, self._form):
            return None
        return same + history.rfind(suffix) + size

    def _place(self, rendered: str) -> int:
        """Return where a rendering goes on after the text so far.

        The method removes from the text the end that the rendering does not have.
        """
        base = self._base
        same = self._same(base, rendered)
        if same == len(base):
            return same
        tail = base[same:]
        history = rendered[same:]
        if rendered.endswith(tail):  # the template always ends with the beginning of an answer
            self._text = self._text.removesuffix(tail)
            return same
        size = _longest_suffix(tail, history)
        if size >= _CERTAIN:
            return same + history.rfind(tail[len(tail) - size :]) + size
        answer = self._turns[self._done - 1].answer
        place = self._answer_end(answer, base, same, history) if answer else None
        if place is None:
            return same  # the turn stands there once more, as history
        end = base.rfind(answer) + len(answer)
        if history.startswith(base[end:], place):
            return same + place + len(base) - end
        ending = self._writer.controls.match(history, place)
        written = self._writer.controls.match(base, end)
        if ending is not None and written is not None and ending[0] != written[0]:
            place = ending.end()  # history ends the turn with another token
        return same + place

    def _same(self, first: str, second: str) -> int:
        """Return the length of the common beginning, in which no control token is cut."""
        low = 0
        high = min(len(first), len(second))
        while low < high:
            middle = (low + high + 1) // 2
            if first[low:middle] == second[low:middle]:
                low = middle
            else:
                high = middle - 1
        return min(self._before_control(first, low), self._before_control(second, low))

    def _before_control(self, text: str, place: int) -> int:
        """Return the beginning of the control token that a place lies in, or the place."""
        for match in self._writer.controls.finditer(
            text, max(0, place - _MAX_CONTROL_LENGTH), place + _MAX_CONTROL_LENGTH
        ):
            if match.start() < place < match.end():
                return match.start()
        return place

    def _answer_end(self, answer: str, base: str, same: int, history: str) -> int | None:
        """Return where the last answer in the history ends; None: it is not there."""
        if base.endswith(answer, 0, same):
            return 0
        place = len(history)
        for _ in range(_PLACES):
            place = history.rfind(answer, 0, place + len(answer) - 1)
            if place < 0:
                break
            if self._writer.controls.match(history, place + len(answer)):
                return place + len(answer)
        place = history.find(answer)
        return None if place < 0 else place + len(answer)

    # --- Pieces that a template leaves out --------------------------------------------------------

    def _count_history(self, end: int, added: str) -> None:
        """Count the pieces that are not shown of the answers before the one that is added."""
        place = 0
        absent_by_shape: dict[Shape, Counter[str]] = {}
        for turn in self._turns[self._done : end]:
            if not turn.is_assistant or not _holds_more(turn):
                continue
            if self._effort > _MAX_EFFORT and turn.shape in absent_by_shape:
                self._left_out.update(absent_by_shape[turn.shape])
                continue
            before = self._left_out.copy()
            shown = added.find(turn.answer[:_COMPARED], place)
            self._left_out[TEXTS] += shown < 0
            thought = added.find(turn.thought[:_COMPARED], place, shown if shown > place else None)
            self._left_out[REASONING] += thought < 0
            self._absent_calls(turn, added, place)
            searched = max(thought, shown, place) - place if thought >= 0 else len(added)
            self._effort += searched // _SEARCHED
            place = max(place, shown)
            absent_by_shape[turn.shape] = self._left_out - before
        self._left_out += Counter()  # without zeros

    def _absent_calls(self, turn: Turn, text: str, begin: int = 0) -> int:
        """Return how many calls of a turn a text does not show, and count them."""
        calls = _calls(turn.calls(self._form))[:_CALLS_COMPARED]
        absent = sum(not _is_shown(call, text, begin) for call in calls)
        self._left_out.update({CALLS: absent} if absent else {})
        return absent

    def _completed(self, end: int, rendered: str, before: str, added: str) -> tuple[str, str]:
        """Return both pieces that are added, with the reasoning that the model must have written.

        The method counts the pieces that the template does not show.
        """
        turn = self._turns[end]
        thought = turn.thought
        answer = turn.answer
        shows_thought = bool(thought) and thought[:_COMPARED] in added
        if thought and not shows_thought:
            completed = self._with_thought(turn, end, rendered)
            if completed is not None:
                return completed
            self._left_out[REASONING] += 1
        if answer and answer[:_COMPARED] not in added:
            self._left_out[TEXTS] += 1
        if turn.has_calls:
            prompt = self._turns[end - 1].content.strip()[-_COMPARED:] if end else ""
            absent = self._absent_calls(turn, added, max(0, added.rfind(prompt)) if prompt else 0)
            if not answer and not shows_thought and absent == len(_calls(turn.calls(self._form))):
                return self._without_turn(end, rendered, before, added)
        return before, added

    def _with_thought(self, turn: Turn, end: int, rendered: str) -> tuple[str, str] | None:
        """Return the pieces to add if the model wrote its reasoning after the prompt.

        None: that is not known.
        """
        answer = turn.answer
        prompt = self._render(end, prompt=True)
        if not answer or prompt is None or answer not in rendered:
            return None
        is_opened = prompt.rstrip().endswith(_OPENING)
        written = turn.content
        if turn.reasoning:
            if not is_opened:
                return None
            written = turn.reasoning.strip("\n") + f"\n{_CLOSING}\n\n" + turn.content.lstrip("\n")
        elif is_opened:
            written = written.lstrip().removeprefix(_OPENING).lstrip("\n")
        ending = rendered[rendered.rfind(answer) + len(answer) :]
        return prompt[self._place(prompt) :], written.rstrip() + ending

    def _without_turn(self, end: int, rendered: str, before: str, added: str) -> tuple[str, str]:
        """Return the pieces to add without a turn of which only beginning and end are shown."""
        shorter = self._render(end)
        if shorter is None:
            return before, added
        shown = before + added
        place = max(0, len(shown) - (len(rendered) - self._same(shorter, rendered)))
        return shown[:place], ""


def _holds_more(turn: Turn) -> bool:
    """Whether a message holds pieces that templates leave out: calls of tools, or reasoning."""
    return turn.has_calls or bool(turn.reasoning) or _CLOSING in turn.content


def _calls(calls: Any) -> list[Any]:
    return calls if isinstance(calls, list) else [calls]


def _function(call: Any) -> Mapping[str, Any]:
    """Return the object with the name and the arguments of a call, wherever a record has them."""
    function = call.get("function", call) if isinstance(call, Mapping) else {}
    return function if isinstance(function, Mapping) else {}


def _is_shown(call: Any, text: str, begin: int = 0) -> bool:
    """Whether a text has the name of a call and of each argument, from a place on."""
    function = _function(call)
    arguments = _object(function.get("arguments"))
    names = [function.get("name"), *list(arguments or ())[:_CALLS_COMPARED]]
    return all(text.find(name, begin) >= 0 for name in names if isinstance(name, str))


def _is_mangled(call: Any, text: str) -> bool:
    """Whether a text has the arguments of a call as JSON text in JSON, or as a Python object."""
    arguments = _function(call).get("arguments")
    if isinstance(arguments, str):
        return json.dumps(arguments, ensure_ascii=False) in text
    return isinstance(arguments, Mapping) and bool(arguments) and str(arguments) in text


def _object(arguments: Any) -> Mapping[str, Any] | None:
    """Return arguments as an object; None: they are no object."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return None
    return arguments if isinstance(arguments, Mapping) else None


def _with_converted_arguments(calls: Any) -> Any:
    """Return calls with JSON texts of arguments as objects, and objects as JSON texts."""
    converted = []
    for call in _calls(calls):
        function = _function(call)
        arguments = function.get("arguments")
        other: Any = None
        if isinstance(arguments, str):
            other = _object(arguments)
        elif isinstance(arguments, Mapping):
            other = json.dumps(arguments, ensure_ascii=False)
        if other is None:
            converted.append(call)
        elif function is call:
            converted.append({**call, "arguments": other})
        else:
            converted.append({**call, "function": {**function, "arguments": other}})
    return converted


def _longest_suffix(text: str, other: str) -> int:
    """Return the length of the longest end of `text` that occurs in `other`."""
    low = 0
    high = min(len(text), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if text[len(text) - middle :] in other:
            low = middle
        else:
            high = middle - 1
    return low
