"""The logits of tokens that a grammar forbids, masked as `generate`
of transformers calls its processors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers import LogitsProcessor

from rest_store.drafting.grammar import Grammar
from rest_store.drafting.grammar_matchers import GrammarMatcher
from rest_store.errors import NotSupportedError, describe


class GrammarMask(LogitsProcessor):  # type: ignore[misc]  # annotations of transformers are not read
    """Masks the tokens that a grammar forbids, for one row; a copy begins anew.

    Args:
        grammar: that the output follows, from its first token on.

    Raises:
        NotSupportedError: when called for several rows, or with a text that leaves the grammar.
    """

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self._matcher: GrammarMatcher | None = None
        self._length = 0  # tokens of the row that the matcher has read, those of the prompt with it

    def __deepcopy__(self, memo: dict[int, Any]) -> GrammarMask:
        return GrammarMask(self.grammar)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return the scores, float[1, vocabulary], with those of
        forbidden tokens at minus infinity.

        Args:
            input_ids: int64[1, length], the row so far: at the first call the prompt.
            scores: float[1, vocabulary].
        """
        if input_ids.shape[0] != 1:
            found = f"called for {input_ids.shape[0]} rows"
            raise NotSupportedError(describe("GrammarMask", "a mask", found, "one row"))
        if self._matcher is None:
            self._matcher = self.grammar.begin()
        else:
            for token in input_ids[0, self._length :].tolist():
                if not self._matcher.accept(token):
                    found = f"at token {token}, which the grammar forbids"
                    raise NotSupportedError(
                        describe("GrammarMask", "the text", found, "one of the grammar")
                    )
        self._length = input_ids.shape[1]
        mask = self._matcher.mask()
        if mask is None:  # the text has ended, and so has the row
            return scores
        allowed = np.zeros(scores.shape[1], np.bool_)
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[: allowed.size]
        allowed[: bits.size] = bits
        return scores.masked_fill(~torch.from_numpy(allowed).to(scores.device), -torch.inf)
