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

from build_index.chat_template import ChatTemplate, RefusalError
from build_index.conversation_turns import CERTAIN, CLOSING, OPENING, Form, Shape, Turn
from build_index.tool_calls import MAX_CALLS, call_list, is_shown

# Pieces that a template may leave out of a message.
CALLS = "tool calls"
REASONING = "reasoning texts"
TEXTS = "message texts"

COMPARED = 64  # characters that tell whether a text is shown
_PLACES = 64
_STABLE = 4  # answers of a kind that tell how a template treats others
# Characters rendered for one conversation; later turns are stored as history shows them.
_MAX_EFFORT = 1 << 25
_TURN = 512  # a shorter turn counts as so many characters
_SEARCHED = 16  # characters searched take the time of one that is rendered
_MAX_CONTROL_LENGTH = 256


class AnswerWriting:
    """The writing of one conversation: the text so far, and the rendering that ends where it ends.

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
        self._base = ""  # the rendering
        self._done = 0  # turns that it shows
        self._effort = len(history) + _TURN * len(turns)  # characters read and written, about

    def text(self) -> str:
        """Return the text of the conversation."""
        answers = [index for index, turn in enumerate(self._turns) if turn.is_assistant]
        if answers == [len(self._turns) - 1] and not self._turns[-1].holds_more:
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
            if size >= CERTAIN:  # the answer changes the history of earlier turns
                same = rendered.rfind(prompt[len(prompt) - size :]) + size
            else:
                before = prompt[:same]
            added = rendered[same:]
        if self._turns[end].holds_more:
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
            rendered = self._template.render(self._fields[:end], prompt=prompt)
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
        if end < len(self._turns) and self._turns[end].holds_more:
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
        if size >= CERTAIN:  # earlier turns are another history as soon as there is this answer
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
        if size >= CERTAIN:
            return same + history.rfind(tail[len(tail) - size :]) + size
        answer = self._turns[self._done - 1].answer
        place = self._answer_end(answer, base, same, history) if answer else None
        if place is None:
            return same  # the turn stands there once more, as history
        end = base.rfind(answer) + len(answer)
        if history.startswith(base[end:], place):
            return same + place + len(base) - end
        ending = self._controls.match(history, place)
        written = self._controls.match(base, end)
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
        for match in self._controls.finditer(
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
            if self._controls.match(history, place + len(answer)):
                return place + len(answer)
        place = history.find(answer)
        return None if place < 0 else place + len(answer)

    # --- Pieces that a template leaves out --------------------------------------------------------

    def _count_history(self, end: int, added: str) -> None:
        """Count the pieces that are not shown of the answers before the one that is added."""
        place = 0
        absent_by_shape: dict[Shape, Counter[str]] = {}
        for turn in self._turns[self._done : end]:
            if not turn.is_assistant or not turn.holds_more:
                continue
            if self._effort > _MAX_EFFORT and turn.shape in absent_by_shape:
                self._left_out.update(absent_by_shape[turn.shape])
                continue
            before = self._left_out.copy()
            shown = added.find(turn.answer[:COMPARED], place)
            self._left_out[TEXTS] += shown < 0
            thought = added.find(turn.thought[:COMPARED], place, shown if shown > place else None)
            self._left_out[REASONING] += thought < 0
            self._absent_calls(turn, added, place)
            searched = max(thought, shown, place) - place if thought >= 0 else len(added)
            self._effort += searched // _SEARCHED
            place = max(place, shown)
            absent_by_shape[turn.shape] = self._left_out - before
        self._left_out += Counter()  # without zeros

    def _absent_calls(self, turn: Turn, text: str, begin: int = 0) -> int:
        """Return how many calls of a turn a text does not show, and count them."""
        calls = call_list(turn.calls(self._form))[:MAX_CALLS]
        absent = sum(not is_shown(call, text, begin) for call in calls)
        self._left_out.update({CALLS: absent} if absent else {})
        return absent

    def _completed(self, end: int, rendered: str, before: str, added: str) -> tuple[str, str]:
        """Return both pieces that are added, with the reasoning that the model must have written.

        The method counts the pieces that the template does not show.
        """
        turn = self._turns[end]
        thought = turn.thought
        answer = turn.answer
        shows_thought = bool(thought) and thought[:COMPARED] in added
        if thought and not shows_thought:
            completed = self._with_thought(turn, end, rendered)
            if completed is not None:
                return completed
            self._left_out[REASONING] += 1
        if answer and answer[:COMPARED] not in added:
            self._left_out[TEXTS] += 1
        if turn.has_calls:
            prompt = self._turns[end - 1].content.strip()[-COMPARED:] if end else ""
            absent = self._absent_calls(turn, added, max(0, added.rfind(prompt)) if prompt else 0)
            if (
                not answer
                and not shows_thought
                and absent == len(call_list(turn.calls(self._form)))
            ):
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
        is_opened = prompt.rstrip().endswith(OPENING)
        written = turn.content
        if turn.reasoning:
            if not is_opened:
                return None
            written = turn.reasoning.strip("\n") + f"\n{CLOSING}\n\n" + turn.content.lstrip("\n")
        elif is_opened:
            written = written.lstrip().removeprefix(OPENING).lstrip("\n")
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
