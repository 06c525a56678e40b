"""Which session belongs to which row of an engine's batch, told from the text that the row holds.

An engine may say nothing of a request but the row that holds its tokens. Rows are moved, and reused by other requests.
A row continues a session if it begins with the session's text.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Container, Iterable, Sequence, Set
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rest_store.drafting.output_document import PROMPT_TOKENS, OutputDocument
from rest_store.drafting.session import DraftSession

Tokens = npt.NDArray[np.int32]

# Tokens at the end of a text that each call compares; longer texts are compared as a whole when a row holds another
# text than in the call before.
_WINDOW = 512


class RowSession:
    """The text of one request as far as rows have shown it, and its draft session.

    Attributes:
        session: None if it could not be opened.
        index: index in the batch of the row that holds the text.
        length: tokens of the text.
        session_length: how many of them the session has.
        nodes: tokens that the session has drafted since its latest `accept`.
        drafted: how many of these the engine verifies in this step.
        origins: of those, the sources of each as a bitmask.
        promised: the sum of their scores.
        accepted: how many draft tokens of the step before were accepted; None if that is unknown.
    """

    def __init__(self, session: DraftSession | None, text: Tokens, output: Sequence[int], index: int) -> None:
        self.session = session
        self.index = index
        self.length = self.session_length = text.size
        self.nodes = self.drafted = 0
        self.origins: list[int] = []
        self.promised = 0.0
        self.accepted: int | None = None
        self._checksum = zlib.crc32(text.data)
        self._window, self._last = text[-_WINDOW:].tobytes(), text.item(-1)
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
        self._window, self._last = text[-_WINDOW:].tobytes(), text.item(-1)

    def _begin_document(self, text: Tokens, output: Sequence[int]) -> None:
        prompt = text.size - len(output)
        self._context: list[int] = text[max(0, prompt - PROMPT_TOKENS) : prompt].tolist()
        self._output = list(output)
        self._latest = len(output)  # tokens of the last step
        self._taken = 0  # tokens of the latest document

    def take_document(self, ends: Container[int]) -> OutputDocument | None:
        """Return what the model wrote; None if it is too short to be remembered, or was returned before.

        Args:
            ends: tokens that end an output; tokens of the last step after one are left out.
        """
        if len(self._output) == self._taken:
            return None
        self._taken = len(self._output)
        last = self._output[-self._latest :]
        end = next((i for i, token in enumerate(last) if token in ends), len(last) - 1)
        return OutputDocument.of(self._context, self._output[: self._taken - (len(last) - 1 - end)])


class Ended(NamedTuple):
    """What is left of requests that have ended.

    Attributes:
        documents: what the model wrote for them.
        sessions: to be closed.
    """

    documents: list[OutputDocument]
    sessions: list[DraftSession]


class Step(NamedTuple):
    """What the rows of one call say about the step before it.

    Attributes:
        sessions: of the rows, in their order.
        is_plain_decoding: whether each row was in the call before, and has grown by just what was sampled since: no
            prompt was read, and the engine left no call out.
        drafted: number of draft tokens that each row had in that step.
        ended: of requests that have no row any more.
    """

    sessions: list[RowSession]
    is_plain_decoding: bool
    drafted: list[int]
    ended: Ended


class RowSessions:
    """The sessions of all rows. Not thread-safe.

    Args:
        open_session: given the text of a new request, returns its session, or None if that fails.
        ends: tokens that end an output, as a rule; what ends so is remembered at once.
    """

    def __init__(self, open_session: Callable[[Tokens], DraftSession | None], ends: Set[int] = frozenset()) -> None:
        self._open_session = open_session
        self._ends = ends
        self._present: dict[int, RowSession] = {}  # by row

    def __len__(self) -> int:
        """Return the number of sessions."""
        return len(self._present)

    def follow(self, rows: Sequence[int], texts: Sequence[Tokens], outputs: Sequence[Sequence[int]]) -> Step:
        """Find the session of each row, or open one.

        Args:
            rows: numbers of the rows.
            texts: int32[n] for each, the tokens that it holds.
            outputs: for each, the tokens at its end that the step before produced, at least one.
        """
        others, self._present = self._present, {}
        same_rows: dict[int, RowSession] = {}
        for row, text in zip(rows, texts, strict=True):
            if row in others and others[row].is_continued_by(text, entirely=False):
                same_rows[row] = others.pop(row)
        sessions: list[RowSession] = []
        documents: list[OutputDocument | None] = []
        drafted: list[int] = []
        is_plain = True
        for row, text, output in zip(rows, texts, outputs, strict=True):
            session = same_rows.get(row) or _longest_of(others, text)
            if session is None:
                session = RowSession(self._open_session(text), text, output, row)
                is_plain = False
            else:
                unseen = text.size - session.length - len(output)
                session.accepted = min(len(output) - 1, session.drafted) if unseen == 0 else None
                # The engine leaves calls out while any row is near the longest length. Of a prompt, as much is kept.
                if has_prompt := not 0 <= unseen <= PROMPT_TOKENS:
                    documents.append(session.take_document(self._ends))
                session.extend(text, output, has_prompt=has_prompt)
                session.index = row
                is_plain = is_plain and unseen == 0
            if not self._ends.isdisjoint(output):
                documents.append(session.take_document(self._ends))
            drafted.append(session.drafted)
            session.drafted = 0
            self._present[row] = session
            sessions.append(session)
        ended = self._ended(others.values())
        present = [document for document in documents if document is not None]
        return Step(sessions, is_plain, drafted, Ended(present + ended.documents, ended.sessions))

    def clear(self) -> Ended:
        """Drop all requests."""
        sessions, self._present = self._present, {}
        return self._ended(sessions.values())

    def _ended(self, sessions: Iterable[RowSession]) -> Ended:
        sessions = list(sessions)
        documents = [session.take_document(self._ends) for session in sessions]
        return Ended(
            [document for document in documents if document is not None],
            [session.session for session in sessions if session.session is not None],
        )


def _longest_of(others: dict[int, RowSession], text: Tokens) -> RowSession | None:
    """Return the longest of `others` that `text` continues, taken from them."""
    fitting = [row for row, session in others.items() if session.is_continued_by(text, entirely=True)]
    return others.pop(max(fitting, key=lambda row: others[row].length)) if fitting else None
