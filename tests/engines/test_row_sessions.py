"""Rows are told apart by what they hold: moved and reused ones, and what is remembered of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rest_store.engines.row_sessions import Ended, RowSessions, Step


class Followed:
    """Rows as lists, and sessions that are numbers, in the order in which they were opened."""

    def __init__(self, ends: frozenset[int] = frozenset()) -> None:
        self.opened: list[list[int]] = []
        self.rows = RowSessions(self._open, ends)
        self.written: list[list[int]] = []
        self.closed: list[Any] = []

    def _open(self, text: Any) -> Any:
        self.opened.append(text.tolist())
        return len(self.opened) - 1

    def step(self, rows: dict[int, list[int]], new: int | dict[int, int] = 1) -> Step:
        """Follow rows whose last `new` tokens were sampled."""
        counts = dict.fromkeys(rows, new) if isinstance(new, int) else new
        texts = [np.array(text, np.int32) for text in rows.values()]
        outputs = [text[-counts[row] :] for row, text in rows.items()]
        step = self.rows.follow(list(rows), texts, outputs)
        self._take(step.ended)
        return step

    def _take(self, ended: Ended) -> None:
        self.written += [document.tokens.tolist() for document in ended.documents]
        self.closed += ended.sessions

    def sessions(self, rows: dict[int, list[int]], new: int | dict[int, int] = 1) -> list[Any]:
        """Follow rows; return the number of each one's session."""
        return [followed.session for followed in self.step(rows, new).sessions]

    def documents(self, *, end: bool = True) -> list[list[int]]:
        """Return what is to be remembered, in the end of all requests."""
        if end:
            self._take(self.rows.clear())
        written, self.written = self.written, []
        return written


@pytest.fixture
def followed() -> Followed:
    return Followed()


def text(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 1000, length).tolist()


def test_a_row_continues_its_session(followed: Followed) -> None:
    assert followed.sessions({0: [1, 2, 3], 1: [1, 2, 4]}) == [0, 1]
    assert followed.sessions({0: [1, 2, 3, 5, 6], 1: [1, 2, 4, 3]}, {0: 2, 1: 1}) == [0, 1]
    assert followed.opened == [[1, 2, 3], [1, 2, 4]]


def test_rows_that_are_moved_keep_their_sessions(followed: Followed) -> None:
    a, b, c = text(0, 40), text(1, 30), text(2, 50)
    assert followed.sessions({0: a, 1: b, 2: c}) == [0, 1, 2]
    step = followed.step({0: [*c, 1], 1: [*b, 1]})
    assert [row.session for row in step.sessions] == [2, 1]
    assert step.is_plain_decoding
    assert followed.sessions({0: [*b, 1, 2], 1: [*c, 1, 2]}) == [1, 2]
    assert len(followed.opened) == 3


@pytest.mark.parametrize("length", [20, 2000])
def test_texts_that_end_alike_are_told_apart_when_rows_move(followed: Followed, length: int) -> None:
    """Repeated tokens make the ends of texts equal; other texts of the batch may begin in another way."""
    a, b = [1] + [7] * length, [2] + [7] * (length + 3)
    assert followed.sessions({0: a, 1: b, 2: [5]}) == [0, 1, 2]
    assert followed.sessions({2: [*a, 7], 0: [5, 6], 1: [*b, 7]}) == [0, 2, 1]


def test_a_row_that_is_reused_gets_a_session_of_its_own(followed: Followed) -> None:
    assert followed.sessions({0: [1, 2, 3]}) == [0]
    step = followed.step({0: [1, 2, 4, 5]})
    assert [row.session for row in step.sessions] == [1]
    assert not step.is_plain_decoding
    assert followed.closed == [0]


def test_the_same_text_again_is_another_request(followed: Followed) -> None:
    """The row has not grown, so it is not the request of the step before."""
    assert followed.sessions({0: [1, 2, 3]}) == [0]
    assert followed.sessions({0: [1, 2, 3]}) == [1]


def test_accepted_tokens_are_those_before_the_last(followed: Followed) -> None:
    (row,) = followed.step({0: [1, 2, 3]}).sessions
    row.drafted = 4
    step = followed.step({0: [1, 2, 3, 4, 5, 6]}, 3)
    assert (row.accepted, step.drafted, row.drafted) == (2, [4], 0)


def test_calls_that_were_left_out_are_noticed(followed: Followed) -> None:
    """The engine asks nobody while a row is near the longest length; the others grow by more than was sampled last."""
    (row,) = followed.step({0: [1, 2, 3]}).sessions
    row.drafted = 4
    step = followed.step({0: [1, 2, 3, 4, 5, 6]}, 1)
    assert step.sessions == [row]
    assert (row.accepted, step.is_plain_decoding) == (None, False)


def test_an_output_is_remembered_in_one_piece_if_calls_were_left_out(followed: Followed) -> None:
    prompt, output = text(0, 40), text(1, 40)
    followed.step({0: prompt + output[:8]}, 8)
    followed.step({0: prompt + output[:20]})  # after eleven tokens that nobody saw
    followed.step({0: prompt + output[:40]}, 4)  # after sixteen
    assert followed.documents() == [prompt[-16:] + output]


def test_an_output_is_remembered_with_the_end_of_its_prompt(followed: Followed) -> None:
    prompt, output = text(0, 40), text(1, 10)
    for count in range(1, 11):
        followed.step({0: prompt + output[:count]})
    assert followed.documents(end=False) == [], "the request may go on"
    assert followed.documents() == [prompt[-16:] + output]
    assert followed.documents() == [], "once"


def test_an_output_is_remembered_when_its_row_is_gone(followed: Followed) -> None:
    for count in range(5, 10):
        followed.step({0: list(range(count)), 1: [50, *range(count)]})
    followed.step({1: [50, *range(10)]})
    assert followed.documents(end=False) == [[0, 1, 2, 3, 4, 5, 6, 7, 8]]
    assert (followed.closed, len(followed.rows)) == ([0], 1)


def test_an_output_that_ends_is_remembered_at_once() -> None:
    """A step may have sampled more, which nobody has seen."""
    followed = Followed(frozenset({99}))
    followed.step({0: [1, 2, 3, 4, 5]}, 3)
    followed.step({0: [1, 2, 3, 4, 5, 6, 99, 7, 8]}, 4)
    assert followed.documents(end=False) == [[1, 2, 3, 4, 5, 6, 99]]
    assert followed.documents() == []


def test_the_next_turn_of_a_conversation_is_no_output(followed: Followed) -> None:
    """A request whose prompt continues another's text takes over its session; only outputs are remembered."""
    first, message = [1, *range(10, 20)], text(2, 40)
    followed.step({0: first}, 10)
    assert followed.sessions({0: [*first, *message, 3]}) == [0]
    followed.step({0: [*first, *message, 3, 4, 5, 6]}, 3)
    assert followed.documents() == [first, [*message[-16:], 3, 4, 5, 6]]
