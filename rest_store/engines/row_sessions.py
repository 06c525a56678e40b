"""Which session belongs to which row of an engine's batch, told from the text that the row holds.

An engine may say nothing of a request but the row that holds its tokens. Rows are moved, and reused by other requests.
A row continues a session if it begins with the session's text.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Container, Iterator, Sequence, Set
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rest_store.drafting.output_document import PROMPT_TOKENS, OutputDocument
from rest_store.drafting.session import DraftSession

Tokens = npt.NDArray[np.int32]

# Tokens at the end of a text that each call compares; longer texts are compared as a whole when a row holds another
# text than in the call before.
_WINDOW = 512
_MOST_ABSENT = 256
# After these seconds, and as many usual steps, a request counts as ended.
_ABSENT_SECONDS = 2.0  # without its row
_IDLE_SECONDS = 3.0  # without a call
_STEPS = 8
_KEPT_SECONDS = 30.0  # that a session is kept without its row


class Answer(NamedTuple):
    """What the model wrote for a request.

    Attributes:
        document: the output behind the end of its prompt.
        certain: number of its tokens that surely belong to the request. The request may have ended at the first token
            of the last step, without an end token, while the engine sampled more.
    """

    document: OutputDocument
    certain: int


class RowSession:
    """The text of one request as far as rows have shown it, and its draft session.

    Attributes:
        session: None after the session has failed.
        index: index in the batch of the row that holds the text.
        length: tokens of the text.
        session_length: how many of them the session has.
        nodes: tokens that the session has drafted since its latest `accept`.
        drafted: how many of these the engine verifies in this step.
        accepted: how many draft tokens of the step before were accepted; None if that is unknown.
        absent_since: when its row was first missing; None while it has one.
    """

    __slots__ = (
        "_checksum",
        "_context",
        "_last",
        "_latest",
        "_output",
        "_taken",
        "_window",
        "absent_since",
        "accepted",
        "drafted",
        "index",
        "length",
        "nodes",
        "session",
        "session_length",
    )

    def __init__(self, session: DraftSession | None, text: Tokens, output: Sequence[int], index: int) -> None:
        self.session = session
        self.index = index
        self.length = self.session_length = text.size
        self.nodes = self.drafted = 0
        self.accepted: int | None = None
        self.absent_since: float | None = None
        self._checksum = zlib.crc32(text.data)
        self._window, self._last = _end_of(text)
        self._begin_document(text, output)

    def is_continued_by(self, text: Tokens, *, entirely: bool) -> bool:
        """Return whether `text` is longer than this one and begins with it.

        Args:
            text: int32[n], what a row holds.
            entirely: compare more than the last tokens.
        """
        length = self.length
        if text.size <= length or text.item(length - 1) != self._last:
            return False
        if text[max(0, length - _WINDOW) : length].tobytes() != self._window:
            return False
        return not entirely or length <= _WINDOW or zlib.crc32(text[:length].data) == self._checksum

    def extend(self, text: Tokens, output: Sequence[int], *, has_prompt: bool) -> None:
        """Take over what is new.

        Args:
            text: int32[n], which begins with this one.
            output: the tokens at its end that the model produced last.
            has_prompt: whether the new tokens before `output` are another prompt, such as the next turn of a
                conversation, and not output.
        """
        new = text[self.length :]
        if has_prompt:
            self._begin_document(text, output)
        else:
            self._output += new.tolist()
        self._latest = len(output)
        self._checksum = zlib.crc32(new.data, self._checksum)
        self.length = text.size
        self._window, self._last = _end_of(text)

    def _begin_document(self, text: Tokens, output: Sequence[int]) -> None:
        prompt = text.size - len(output)
        self._context: list[int] = text[max(0, prompt - PROMPT_TOKENS) : prompt].tolist()
        self._output = list(output)
        self._latest = len(output)  # tokens of the last step
        self._taken = 0  # tokens of the latest answer

    def take_answer(self, ends: Container[int]) -> Answer | None:
        """Return what the model wrote; None if it is too short to be remembered, or was returned before.

        Args:
            ends: tokens that end an output; tokens of the last step after one are left out.
        """
        if len(self._output) == self._taken:
            return None
        self._taken = len(self._output)
        last = self._output[-self._latest :]
        end = next((place for place, token in enumerate(last) if token in ends), None)
        beyond = 0 if end is None else len(last) - 1 - end
        document = OutputDocument.of(self._context, self._output[: self._taken - beyond])
        if document is None:
            return None
        return Answer(document, document.tokens.size - (len(last) - 1 if end is None else 0))


def _end_of(text: Tokens) -> tuple[bytes, int]:
    return text[-_WINDOW:].tobytes(), text.item(-1)


class Step(NamedTuple):
    """What the rows of one call say about the step before it.

    Attributes:
        sessions: of the rows, in their order.
        is_plain_decoding: whether each row was in the call before, and has grown by just what was sampled since: no
            prompt was read, and the engine left no call out.
        drafted: number of draft tokens that each row had in that step.
    """

    sessions: list[RowSession]
    is_plain_decoding: bool
    drafted: list[int]


class RowSessions:
    """The sessions of all rows, and for a while of requests without a row. Not thread-safe.

    Args:
        open_session: given the text of a new request, returns its session, or None if that fails.
        ends: tokens that end an output, as a rule.
    """

    def __init__(self, open_session: Callable[[Tokens], DraftSession | None], ends: Set[int] = frozenset()) -> None:
        self._open_session = open_session
        self._ends = ends
        self._present: dict[int, RowSession] = {}  # by row
        self._absent: dict[RowSession, None] = {}  # the longest absent first
        self._finished: list[Answer] = []
        self._called: float | None = None
        self._pace = 0.0  # seconds between calls, smoothed
        self.opened = 0
        self.resumed = 0

    def __len__(self) -> int:
        """Return the number of sessions, with those whose requests have no row."""
        return len(self._present) + len(self._absent)

    @property
    def absent(self) -> int:
        """The number of sessions whose requests have no row."""
        return len(self._absent)

    def follow(
        self, rows: Sequence[int], texts: Sequence[Tokens], outputs: Sequence[Sequence[int]], now: float
    ) -> Step:
        """Find the session of each row, or open one.

        Args:
            rows: numbers of the rows.
            texts: int32[n] for each, the tokens that it holds.
            outputs: for each, the tokens at its end that the step before produced, at least one.
            now: seconds of a clock.
        """
        before, self._present = self._present, {}
        plain = True
        drafted: list[int] = []
        sessions: list[RowSession | None] = []
        for row, text in zip(rows, texts, strict=True):
            session = before.get(row)
            if session is not None and session.is_continued_by(text, entirely=False):
                del before[row]
                sessions.append(session)
            else:
                sessions.append(None)
        others = [*before.values(), *self._absent]  # whose requests were moved, or have no row
        followed: list[RowSession] = []
        for row, text, output, same_row in zip(rows, texts, outputs, sessions, strict=True):
            session = same_row if same_row is not None else self._find(others, text)
            if session is None:
                session = RowSession(self._open_session(text), text, output, row)
                self.opened += 1
                plain = False
            elif not self._continue(session, row, text, output):
                plain = False
            if not self._ends.isdisjoint(output):
                self._finish(session)
            drafted.append(session.drafted)
            session.drafted = 0
            self._present[row] = session
            followed.append(session)
        for session in others:
            if session.absent_since is None:
                self._leave(session, now)
        if self._called is not None and plain and rows:  # without rows, the last call may be hours ago
            self._pace += (now - self._called - self._pace) / 8
        self._called = now
        return Step(followed, plain, drafted)

    def _continue(self, session: RowSession, row: int, text: Tokens, output: Sequence[int]) -> bool:
        """Take over the text of `row`, which continues `session`; return whether one step produced what is new."""
        is_resumed = session.absent_since is not None
        unseen = text.size - session.length - len(output)
        is_step = unseen == 0 and not is_resumed
        session.accepted = min(len(output) - 1, session.drafted) if is_step else None
        # The engine leaves calls out while any row is near the longest length. Of a prompt, as much would be kept.
        is_output = unseen == 0 or (0 < unseen <= PROMPT_TOKENS and not is_resumed)
        if not is_output:
            self._finish(session)
        if is_resumed:
            self._absent.pop(session)
            session.absent_since = None
            self.resumed += 1
        session.extend(text, output, has_prompt=not is_output)
        session.index = row
        return is_step

    def _find(self, others: list[RowSession], text: Tokens) -> RowSession | None:
        """Return the longest of `others` that `text` continues, taken from the list."""
        fitting = [session for session in others if session.is_continued_by(text, entirely=True)]
        if not fitting:
            return None
        longest = max(fitting, key=lambda session: session.length)
        others.remove(longest)
        return longest

    def _leave(self, session: RowSession, now: float) -> None:
        session.absent_since, session.accepted, session.drafted = now, None, 0
        self._absent[session] = None

    def _finish(self, session: RowSession) -> None:
        if (answer := session.take_answer(self._ends)) is not None:
            self._finished.append(answer)

    def retire(self, now: float) -> tuple[list[Answer], list[DraftSession]]:
        """Drop requests that seem to have ended: they have had no row, or the engine has made no call, for seconds.

        Args:
            now: seconds of the clock of `follow`.

        Returns:
            What the model wrote for them, and the sessions to close.
        """
        steps = _STEPS * self._pace
        if self._called is not None and now - self._called >= max(_IDLE_SECONDS, steps):
            for session in self._present.values():
                self._leave(session, self._called)
            self._present = {}
        closed: list[DraftSession] = []
        surplus = len(self._absent) - _MOST_ABSENT
        for place, session in enumerate(list(self._absent)):
            assert session.absent_since is not None
            seconds = now - session.absent_since
            if place >= surplus and seconds < max(_ABSENT_SECONDS, steps):
                break
            self._finish(session)
            if place < surplus or seconds >= max(_KEPT_SECONDS, steps):
                del self._absent[session]
                closed += _closable(session)
        answers, self._finished = self._finished, []
        return answers, closed

    def clear(self) -> tuple[list[Answer], list[DraftSession]]:
        """Drop all requests; return what `retire` returns."""
        sessions = [*self._present.values(), *self._absent]
        self._present, self._absent = {}, {}
        for session in sessions:
            self._finish(session)
        answers, self._finished = self._finished, []
        return answers, [closed for session in sessions for closed in _closable(session)]


def _closable(session: RowSession) -> Iterator[DraftSession]:
    if session.session is not None:
        yield session.session
