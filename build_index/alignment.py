"""Places that correspond in two renderings of one conversation.

A template renders a conversation again for each of its answers. Later turns may change the text of
earlier ones, so that one rendering need not begin with the other.
"""

from __future__ import annotations

import re

CERTAIN = 16
"""So many characters at the end of one text tell where it stands in another one."""

_MAX_CONTROL_LENGTH = 256


def common_beginning(first: str, second: str, controls: re.Pattern[str]) -> int:
    """Return the length of the common beginning, in which no control token is cut.

    Args:
        first: a text.
        second: another one.
        controls: finds the texts of control tokens.
    """
    low = 0
    high = min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return min(_before_control(first, low, controls), _before_control(second, low, controls))


def longest_suffix_in(text: str, other: str) -> tuple[str, int]:
    """Return the longest end of `text` that occurs in `other`, and where it last ends there."""
    low = 0
    high = min(len(text), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if text[len(text) - middle :] in other:
            low = middle
        else:
            high = middle - 1
    suffix = text[len(text) - low :]
    return suffix, other.rfind(suffix) + len(suffix)


def split_after(prompt: str, rendered: str, controls: re.Pattern[str]) -> tuple[int, int]:
    """Return where a prompt ends and where the answer to it begins.

    Args:
        prompt: a rendering up to an answer.
        rendered: the rendering with that answer.
        controls: finds the texts of control tokens.

    Returns:
        The place in `prompt` up to which the conversation has that text, and the place in
        `rendered` from which on it has that one.
    """
    if rendered.startswith(prompt):
        return len(prompt), len(prompt)
    suffix, end = longest_suffix_in(prompt, rendered)
    if len(suffix) >= CERTAIN:  # the answer has changed the text of earlier turns
        return len(prompt), end
    shared = common_beginning(prompt, rendered, controls)
    return shared, shared


def _before_control(text: str, place: int, controls: re.Pattern[str]) -> int:
    """Return the beginning of the control token that a place lies in, or the place."""
    for match in controls.finditer(
        text, max(0, place - _MAX_CONTROL_LENGTH), place + _MAX_CONTROL_LENGTH
    ):
        if match.start() < place < match.end():
            return match.start()
    return place
