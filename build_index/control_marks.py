"""Marked texts that stand for the control tokens of a tokenizer.

A marked text is the number of a control token between two marks. A mark is a Unicode noncharacter,
which no document contains. With `CONTROL_MARK` it is the control token; with `TEXT_MARK` it is the
text of that token inside a message, which stays text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from build_index.documents import well_formed

# Noncharacters (Unicode 23.7), which text for interchange does not contain.
CONTROL_MARK = "\U0010ffff"
TEXT_MARK = "\U0010fffe"
_MARKED_TEXT = re.compile(f"{TEXT_MARK}(\\d+){TEXT_MARK}")


class ControlMarks:
    """Replaces control tokens by marked texts.

    Args:
        control_tokens: the texts of the tokens.

    Attributes:
        pattern: finds the text of a control token.

    Thread-safe. Can be pickled.
    """

    def __init__(self, control_tokens: Iterable[str]) -> None:
        self._texts = sorted(text for text in control_tokens if text)
        self._numbers = {text: number for number, text in enumerate(self._texts)}
        # `tokenizers` matches the longest, too.
        longest_first = sorted(self._texts, key=len, reverse=True)
        self.pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def seal(self, text: str) -> str:
        """Return a text of a message in which texts of control tokens are marked as text."""
        return self._with_marks(without_marks(text), TEXT_MARK)

    def unseal(self, rendered: str) -> str:
        """Return the output of a template in which its control tokens are marked as such."""
        marked = self._with_marks(rendered, CONTROL_MARK)
        return _MARKED_TEXT.sub(lambda match: self._texts[int(match[1])], marked)

    def unseal_end(self, rendered: str, characters: int) -> str:
        """Return the result of `unseal` for the last characters of a template's output.

        They begin inside no control token, and inside no marked text.
        """
        begin = max(0, len(rendered) - characters)
        for match in self.pattern.finditer(rendered, max(0, begin - characters)):
            if match.start() < begin < match.end():
                begin = match.end()
        end = rendered[begin:]
        if end.count(TEXT_MARK) % 2:
            end = end[end.index(TEXT_MARK) + 1 :]
        return self.unseal(end)

    def mark_tokenizer(self, tokenizer: dict[str, Any]) -> None:
        """Give each control token its marked text, everywhere in the object of a `tokenizer.json`.

        No merge of BPE yields a control token, and nothing is added around a text.
        """
        model = tokenizer["model"]
        if isinstance(model["vocab"], list):
            model["vocab"] = [[self._name(text), score] for text, score in model["vocab"]]
        else:
            model["vocab"] = {self._name(text): id_ for text, id_ in model["vocab"].items()}
        if isinstance(model.get("unk_token"), str):
            model["unk_token"] = self._name(model["unk_token"])
        if model.get("merges"):
            model["merges"] = self._merges_of_text(model["merges"])
        for token in tokenizer["added_tokens"]:
            if token["special"]:
                token["content"] = self._name(token["content"])
                token["normalized"] = False  # normalization could change or drop the marks
        tokenizer["post_processor"] = None

    def _name(self, token: str) -> str:
        """Return the marked text of a control token, or the text of another token."""
        number = self._numbers.get(token)
        return token if number is None else f"{CONTROL_MARK}{number}{CONTROL_MARK}"

    def _merges_of_text(self, merges: list[Any]) -> list[list[str]]:
        """Return the merges without those that would make a control token out of text."""
        text_merges = []
        for merge in merges:
            pair = merge.split(" ") if isinstance(merge, str) else merge
            names = {*pair, "".join(pair)}
            if names.isdisjoint(self._numbers):
                text_merges.append(pair)
        return text_merges

    def _with_marks(self, text: str, mark: str) -> str:
        return self.pattern.sub(lambda match: f"{mark}{self._numbers[match[0]]}{mark}", text)


def without_marks(text: str) -> str:
    """Return the text well-formed, with U+FFFD for each mark."""
    return well_formed(text).replace(CONTROL_MARK, "\ufffd").replace(TEXT_MARK, "\ufffd")
