"""The mask of a grammar as a logits processor of transformers.

Where the mask comes before all other processors, the nodes of a draft tree are masked at once on
their device, too (`mask_trees`). The places of the nodes are those that the draft was made with, as
long as it is held.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import LogitsProcessor

from rest_store.datastore.tree import TokenTree
from rest_store.drafting.grammar import Grammar, Place
from rest_store.drafting.grammar_matchers import Mask
from rest_store.errors import NotSupportedError, describe, error_text

_Bits = npt.NDArray[
    np.int32
]  # [..., words], bit i % 32 of word i // 32: whether token i may come next


class GrammarMask(LogitsProcessor):  # type: ignore[misc]  # annotations of transformers are not read
    """Masks the tokens that a grammar forbids, in one generation; a copy begins anew.

    Args:
        grammars: that the output follows, from its first token on: one for all rows, or as many as
            there are prompts.

    Raises:
        NotSupportedError: when called with a text that leaves the grammar, or whose grammar allows
            no token.
    """

    def __init__(self, grammars: Grammar | Sequence[Grammar]) -> None:
        self.grammars = [grammars] if isinstance(grammars, Grammar) else list(grammars)
        self._places: list[Place] = []  # of each row
        self._length = 0  # tokens of a row that have been read, those of the prompt with them

    def __deepcopy__(self, memo: dict[int, Any]) -> GrammarMask:
        return GrammarMask(self.grammars)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return scores with those of forbidden tokens at minus infinity.

        They are float[rows, vocabulary].

        Args:
            input_ids: int64[rows, length], the rows so far: at the first call the prompts.
            scores: float[rows, vocabulary].
        """
        if not self._places or input_ids.shape[1] < self._length:  # a shorter row is a new one
            rows = input_ids.shape[0]
            grammars = [self.grammars[row * len(self.grammars) // rows] for row in range(rows)]
            self._begin(grammars, input_ids.shape[1])
        new = input_ids[:, self._length :]
        self._places = [
            self._followed(place, tokens)
            for place, tokens in zip(self._places, new.tolist(), strict=True)
        ]
        self._length = input_ids.shape[1]
        masks = [place.mask for place in self._places]
        if len(masks) == 1 and masks[0] is None:  # of several rows, this one is padding
            raise _refusal(
                "at its end before the row", "one for each generation, whose end is that of the row"
            )
        if any(mask is not None and not mask.any() for mask in masks):
            raise _refusal("allowing no token", "one that the text can go on in")
        return _masked(scores, np.stack([_widened(mask, scores.shape[1]) for mask in masks]))

    def _begin(self, grammars: Sequence[Grammar], length: int) -> None:
        try:
            self._places = [grammar.root for grammar in grammars]
        except Exception as error:
            raise _refusal(
                f"without a beginning ({error_text(error)})", "one that can be followed"
            ) from error
        self._length = length

    def _followed(self, place: Place, tokens: Sequence[int]) -> Place:
        """Return the place after more tokens; tokens behind the end are padding."""
        for token in tokens:
            if place.mask is None:
                break
            try:
                after = place.after(token)
            except Exception as error:
                raise _refusal(
                    f"failing ({error_text(error)})", "one that can be followed"
                ) from error
            if after is None:
                raise _refusal(f"left at token {token}", "one that allows the text")
            place = after
        return place

    def tree_masks(
        self, tokens: Sequence[int], tree: TokenTree, prompt: int
    ) -> list[Mask | None] | None:
        """Return the masks after a row and after each node of its draft.

        None: one of them allows no token.

        Args:
            tokens: of the row so far; this is the mask of that row alone.
            tree: the draft.
            prompt: tokens of the row that are prompt.
        """
        if not self._places or len(tokens) < self._length:
            self._begin(self.grammars[:1], prompt)
        self._places = [self._followed(self._places[0], tokens[self._length :])]
        self._length = len(tokens)
        places = [self._places[0]]
        for parent, token in zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True):
            places.append(self._child_place(places[1 + parent], token))
        masks = [place.mask for place in places]
        if masks[0] is None:
            return None
        return None if any(mask is not None and not mask.any() for mask in masks) else masks

    def _child_place(self, place: Place, token: int) -> Place:
        """Return the place of a node below `place`; of one that is never reached, that above it."""
        after = None if place.mask is None else place.after(token)
        return place if after is None else after


def mask_trees(
    logits: torch.Tensor,
    masks: Sequence[GrammarMask | None],
    rows: Sequence[Sequence[int]],
    trees: Sequence[TokenTree],
    prompt: int,
) -> torch.Tensor | None:
    """Return the logits of a step with those of forbidden tokens at minus infinity.

    They are [rows, width, vocabulary].

    None: the masks have to be asked token by token, since something is wrong with one of them.

    Args:
        logits: of each row's last token and its tree.
        masks: of each row; None: it has ended.
        rows: the tokens of each row so far.
        trees: the draft of each row.
        prompt: tokens of each row that are prompt.
    """
    vocabulary = logits.shape[2]
    packed = np.full((*logits.shape[:2], (vocabulary + 31) // 32), -1, np.int32)
    try:
        for row, (mask, tokens, tree) in enumerate(zip(masks, rows, trees, strict=True)):
            node_masks = [] if mask is None else mask.tree_masks(tokens, tree, prompt)
            if node_masks is None:
                return None
            for node, bits in enumerate(node_masks):
                packed[row, node] = _widened(bits, vocabulary)
    except Exception:  # of a node that may never be reached; if it is, the error comes again
        return None
    return _masked(logits, packed)


def _widened(mask: Mask | None, vocabulary: int) -> _Bits:
    """Return a mask as wide as the model's vocabulary: of further tokens none is allowed.

    None: all are.
    """
    words = (vocabulary + 31) // 32
    if mask is None:
        return np.full(words, -1, np.int32)
    row: _Bits = np.zeros(words, np.int32)
    row[: mask.size] = mask[:words]
    return row


def _masked(scores: torch.Tensor, packed: _Bits) -> torch.Tensor:
    """Return scores, [..., vocabulary], with minus infinity where a token's bit is not set."""
    if scores.device.type == "cpu":
        bits = np.unpackbits(packed.view(np.uint8), axis=-1, bitorder="little")[
            ..., : scores.shape[-1]
        ]
        return scores.masked_fill(torch.from_numpy(bits == 0), -torch.inf)
    words = torch.from_numpy(packed).to(scores.device, non_blocking=True)
    shifts = torch.arange(32, device=scores.device, dtype=torch.int32)
    allowed = (words[..., None] >> shifts & 1).flatten(-2)[..., : scores.shape[-1]]
    return scores.masked_fill(allowed == 0, -torch.inf)


def _refusal(actual: str, expected: str) -> NotSupportedError:
    return NotSupportedError(describe("GrammarMask", "the grammar", actual, expected))
