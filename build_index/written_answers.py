"""The answers of one conversation as the model wrote them, where a template shows them in two ways.

A template shows an answer in two ways: as the last turn, which is how the model wrote it, and as
history, once a later turn follows. Templates of reasoning models leave thoughts out of the history,
and some end the last turn otherwise. So an answer is taken from the conversation that ends with it:

    prompt, answer 1 as the last turn, the turns between, answer 2 as the last turn, ...
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from build_index.alignment import CERTAIN, common_beginning, longest_suffix_in, split_after
from build_index.chat_template import ChatTemplate, RefusalError
from build_index.conversation_turns import CLOSING, OPENING, Form, Shape, Turn
from build_index.tool_calls import MAX_CALLS, call_list, is_shown

# Pieces that a template may leave out of a message.
CALLS = "tool calls"
REASONING = "reasoning texts"
TEXTS = "message texts"

COMPARED = 64  # characters that tell whether a text is shown
# Occurrences of an answer in a history that are tried. A short answer may be anywhere in it.
_MAX_OCCURRENCES = 64
_STABLE_ANSWERS = 4  # so many answers of a shape tell how a template treats others
# Characters rendered for one conversation; later turns are stored as history shows them.
_MAX_EFFORT = 1 << 25
_TURN = 512  # a shorter turn counts as so many characters
_SEARCHED_PER_RENDERED = 16  # so many characters are searched in the time of one that is rendered


class _Addition(NamedTuple):
    """The text that a rendering adds to the text so far.

    Attributes:
        before: the text up to an answer, as far as its beginning is known.
        answer: the text from there on.
        surplus: the end of the text so far that the rendering lacks.
    """

    before: str
    answer: str
    surplus: str = ""


class AnswerWriting:
    """Builds the text of a conversation, answer by answer.

    Args:
        template: the chat template of the model.
        controls: finds the texts of control tokens in the output of the template.
        turns: the turns of this conversation.
        form: in which the template gets them.
        history: the text of all turns.
        left_out: counts the pieces that the template does not show.
    """

    def __init__(
        self,
        template: ChatTemplate,
        controls: re.Pattern[str],
        turns: list[Turn],
        form: Form,
        history: str,
        left_out: Counter[str],
    ) -> None:
        self._template = template
        self._controls = controls
        self._turns = turns
        self._form = form
        self._fields = [turn.fields(form) for turn in turns]
        self._history = history
        self._left_out = left_out
        self._text = ""
        self._rendering = ""  # the latest rendering whose text was appended
        self._turn_count = 0  # turns that it shows
        self._effort = len(history) + _TURN * len(turns)  # characters read and written, about
        # How many answers of a shape had the same text once they were history, and the shapes of
        # which one had not.
        self._same_as_history: Counter[Shape] = Counter()
        self._unstable: set[Shape] = set()

    def text(self) -> str:
        """Return the text of the conversation."""
        answers = [index for index, turn in enumerate(self._turns) if turn.is_assistant]
        if answers == [len(self._turns) - 1] and not self._turns[-1].holds_more:
            return self._history
        for run in self._runs(answers):
            self._append_run(run)
        if self._turn_count < len(self._turns):
            self._append(len(self._turns), self._history)
        return self._text

    def answer(self) -> tuple[str, str]:
        """Return the prompt before the last turn, which is an answer, and the text of that turn."""
        end = len(self._turns) - 1
        prompt = self._render(end, prompt=True) if end else None
        if prompt is None:
            prompt = (self._render(end) if end else None) or ""
        rendered = self._history
        prompt_end, begin = split_after(prompt, rendered, self._controls)
        addition = _Addition(prompt[:prompt_end], rendered[begin:])
        if self._turns[end].holds_more:
            self._rendering = ""
            self._turn_count = 0
            addition = self._completed(end, rendered, addition)
        return addition.before, addition.answer

    def _runs(self, answers: list[int]) -> Iterator[list[int]]:
        """Yield answers in lists: neighbours that are alike, with no user's turn between them."""
        run: list[int] = []
        for index in answers:
            if run and not self._is_same_run(run[-1], index):
                yield run
                run = []
            run.append(index)
        if run:
            yield run

    def _is_same_run(self, first: int, second: int) -> bool:
        """Return whether two answers are alike, with no user's turn between them."""
        is_spoken_between = any(turn.role == "user" for turn in self._turns[first:second])
        return not is_spoken_between and self._turns[first].shape == self._turns[second].shape

    def _append_run(self, run: list[int]) -> None:
        """Append answers that are alike, and all turns before them.

        Rendering a conversation once for each answer takes time that grows with the square of their
        number. So once some answers of a shape had the same text as history, the others of that
        shape are not rendered one by one.
        """
        shape = self._turns[run[0]].shape
        for index in run:
            if index < self._turn_count:
                continue
            if self._is_stable(shape) and (rendered := self._render(run[-1] + 1)) is not None:
                if rendered.startswith(self._rendering):
                    self._append(run[-1], rendered)
                    return
                self._unstable.add(shape)
            rendered = self._render(index + 1)
            if rendered is None:
                continue
            if index != run[0]:
                self._compare_with_history(shape, rendered)
            self._append(index, rendered)

    def _is_stable(self, shape: Shape) -> bool:
        return shape not in self._unstable and self._same_as_history[shape] >= _STABLE_ANSWERS

    def _compare_with_history(self, shape: Shape, rendered: str) -> None:
        """Record whether the text of an answer has stayed the same, now that it is history."""
        if rendered.startswith(self._rendering):
            self._same_as_history[shape] += 1
        else:
            self._unstable.add(shape)

    def _render(self, end: int, *, prompt: bool = False) -> str | None:
        """Return the text of the turns before `end`; None: it is refused, or all take too long."""
        if end == len(self._turns) and not prompt:
            return self._history
        if self._effort > _MAX_EFFORT:
            return None
        try:
            rendered = self._template.render(self._fields[:end], prompt=prompt)
        except RefusalError:
            return None
        self._effort += len(rendered) + _TURN * end
        return rendered

    def _append(self, end: int, rendered: str) -> None:
        """Append the rest of a rendering after the text so far.

        The rendering ends with the answer `end`, or with the last turn.
        """
        addition = self._continuation(rendered, end)
        self._count_history(end, addition.before + addition.answer)
        if end < len(self._turns) and self._turns[end].holds_more:
            addition = self._completed(end, rendered, addition)
        text = self._text.removesuffix(addition.surplus)
        self._text = text + addition.before + addition.answer
        self._rendering = rendered
        self._turn_count = end + 1

    # --- Where a rendering goes on ----------------------------------------------------------------

    def _continuation(self, rendered: str, end: int) -> _Addition:
        """Return the text of a rendering after the text so far."""
        if rendered.startswith(self._rendering):
            return _Addition("", rendered[len(self._rendering) :])
        following = self._next_answer()
        if following == end:
            place = self._after_answer(rendered)
            if place is not None:
                return _Addition("", rendered[place:])
        prompt = None if following is None else self._render(following, prompt=True)
        if prompt is None:
            place, surplus = self._place(rendered)
            return _Addition("", rendered[place:], surplus)
        return self._continuation_by_prompt(prompt, rendered)

    def _next_answer(self) -> int | None:
        """Return the first answer that is not in the text yet."""
        for index in range(self._turn_count, len(self._turns)):
            if self._turns[index].is_assistant:
                return index
        return None

    def _continuation_by_prompt(self, prompt: str, rendered: str) -> _Addition:
        """Return the text of a prompt after the text so far, and that of the answer to it."""
        place, surplus = self._place(prompt)
        prompt_end, begin = split_after(prompt, rendered, self._controls)
        before = prompt[place:].removesuffix(prompt[prompt_end:])
        return _Addition(before, rendered[begin:], surplus)

    def _after_answer(self, rendered: str) -> int | None:
        """Return the place in a rendering behind the last answer of the text so far.

        None: the rendering ends that answer in another way.
        """
        shared = common_beginning(self._rendering, rendered, self._controls)
        history = rendered[shared:-1]  # without its end: an answer there is another one
        suffix, end = longest_suffix_in(self._rendering[shared:], history)
        if not self._turns[self._turn_count - 1].is_recognizable_in(suffix, self._form):
            return None
        return shared + end

    def _place(self, rendered: str) -> tuple[int, str]:
        """Return where a rendering goes on, and the end of the text so far that it lacks."""
        shared = common_beginning(self._rendering, rendered, self._controls)
        tail = self._rendering[shared:]
        if rendered.endswith(tail):  # the template always ends with the beginning of an answer
            return shared, tail
        history = rendered[shared:]
        suffix, end = longest_suffix_in(tail, history)
        if len(suffix) >= CERTAIN:
            return shared + end, ""
        return shared + self._after_turn(shared, history), ""

    def _after_turn(self, shared: int, history: str) -> int:
        """Return where the latest turn ends in a history that begins at `shared`.

        0: its answer is not there as written, so the turn stands there once more, as history.
        """
        answer = self._turns[self._turn_count - 1].answer
        place = self._answer_end(answer, shared, history) if answer else None
        if place is None:
            return 0
        end = self._rendering.rfind(answer) + len(answer)
        if history.startswith(self._rendering[end:], place):
            return place + len(self._rendering) - end
        history_ending = self._controls.match(history, place)
        written_ending = self._controls.match(self._rendering, end)
        if history_ending is None or written_ending is None:
            return place
        if history_ending[0] == written_ending[0]:
            return place
        return history_ending.end()  # history ends the turn with another token

    def _answer_end(self, answer: str, shared: int, history: str) -> int | None:
        """Return where the last answer in the history ends; None: it is not there."""
        if self._rendering.endswith(answer, 0, shared):
            return 0
        place = len(history)
        for _ in range(_MAX_OCCURRENCES):
            place = history.rfind(answer, 0, place + len(answer) - 1)
            if place < 0:
                break
            if self._controls.match(history, place + len(answer)):
                return place + len(answer)
        place = history.find(answer)
        return None if place < 0 else place + len(answer)

    # --- Pieces that a template leaves out --------------------------------------------------------

    def _count_history(self, end: int, text: str) -> None:
        """Count the pieces that a text does not show of the answers before `end`."""
        place = 0
        absent_by_shape: dict[Shape, Counter[str]] = {}
        for turn in self._turns[self._turn_count : end]:
            if not turn.is_assistant or not turn.holds_more:
                continue
            if self._effort > _MAX_EFFORT and turn.shape in absent_by_shape:
                self._left_out.update(absent_by_shape[turn.shape])
                continue
            before = self._left_out.copy()
            place = self._count_turn(turn, text, place)
            absent_by_shape[turn.shape] = self._left_out - before
        self._left_out += Counter()  # without zeros

    def _count_turn(self, turn: Turn, text: str, begin: int) -> int:
        """Count the pieces of an answer that a text does not show from `begin` on.

        Returns:
            Where the answer begins in the text, or `begin` if it is not there.
        """
        answer = text.find(turn.answer[:COMPARED], begin)
        self._left_out[TEXTS] += answer < 0
        end = answer if answer > begin else None
        reasoning = text.find(turn.reasoning_text[:COMPARED], begin, end)
        self._left_out[REASONING] += reasoning < 0
        self._absent_calls(turn, text, begin)
        searched = max(reasoning, answer, begin) - begin if reasoning >= 0 else len(text)
        self._effort += searched // _SEARCHED_PER_RENDERED
        return max(begin, answer)

    def _absent_calls(self, turn: Turn, text: str, begin: int = 0) -> int:
        """Return how many calls of a turn a text does not show, and count them."""
        calls = call_list(turn.calls(self._form))[:MAX_CALLS]
        absent = sum(not is_shown(call, text, begin) for call in calls)
        self._left_out.update({CALLS: absent} if absent else {})
        return absent

    def _completed(self, end: int, rendered: str, addition: _Addition) -> _Addition:
        """Return an addition with the reasoning that the model must have written.

        The method counts the pieces that the template does not show.
        """
        turn = self._turns[end]
        added = addition.answer
        shows_reasoning = bool(turn.reasoning_text) and turn.reasoning_text[:COMPARED] in added
        if turn.reasoning_text and not shows_reasoning:
            completed = self._with_reasoning(turn, end, rendered)
            if completed is not None:
                return completed
            self._left_out[REASONING] += 1
        if turn.answer and turn.answer[:COMPARED] not in added:
            self._left_out[TEXTS] += 1
        if turn.has_calls:
            prompt = self._turns[end - 1].content.strip()[-COMPARED:] if end else ""
            absent = self._absent_calls(turn, added, max(0, added.rfind(prompt)) if prompt else 0)
            has_other_pieces = bool(turn.answer) or shows_reasoning
            if not has_other_pieces and absent == len(call_list(turn.calls(self._form))):
                return self._without_turn(end, rendered, addition)
        return addition

    def _with_reasoning(self, turn: Turn, end: int, rendered: str) -> _Addition | None:
        """Return the addition if the model wrote its reasoning after the prompt.

        None: that is not known.
        """
        answer = turn.answer
        prompt = self._render(end, prompt=True)
        if not answer or prompt is None or answer not in rendered:
            return None
        is_opened = prompt.rstrip().endswith(OPENING)
        written = turn.content
        if turn.reasoning:
            if not is_opened:
                return None
            written = turn.reasoning.strip("\n") + f"\n{CLOSING}\n\n" + turn.content.lstrip("\n")
        elif is_opened:
            written = written.lstrip().removeprefix(OPENING).lstrip("\n")
        ending = rendered[rendered.rfind(answer) + len(answer) :]
        place, surplus = self._place(prompt)
        return _Addition(prompt[place:], written.rstrip() + ending, surplus)

    def _without_turn(self, end: int, rendered: str, addition: _Addition) -> _Addition:
        """Return the addition without a turn of which only beginning and end are shown."""
        shorter = self._render(end)
        if shorter is None:
            return addition
        shown = addition.before + addition.answer
        shared = common_beginning(shorter, rendered, self._controls)
        place = max(0, len(shown) - (len(rendered) - shared))
        return _Addition(shown[:place], "", addition.surplus)
