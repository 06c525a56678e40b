"""The rows of a batch as they are written."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch


class Row:
    """A sequence being written.

    Args:
        ids: int64[length], the prompt.

    Attributes:
        tokens: all of it, the prompt and padding on its left included.
        origins: of each generated token, as in `Statistics`.
        scores: float32[1, vocabulary] of each generated token, if they are kept.
        logits: the same before processing.
        limit: the longest that a step may make it, in tokens.
        ended: whether a stopping criterion was met.
    """

    def __init__(self, ids: torch.Tensor) -> None:
        self.tokens: list[int] = ids.tolist()
        self.origins: list[int] = []
        self.scores: list[torch.Tensor] = []
        self.logits: list[torch.Tensor] = []
        self.limit: float = math.inf
        self.ended = False
        self._ids = ids[None]

    def keep(self, raw: torch.Tensor, processed: torch.Tensor | None, *, logits: bool, scores: bool) -> None:
        """Keep the logits or scores of the next token, or both.

        Args:
            raw: [1, vocabulary], before processing.
            processed: after it; None: nothing changes them.
            logits: whether to keep the former.
            scores: whether to keep the latter.
        """
        copy = raw.to(copy=True, dtype=torch.float32, device=self._ids.device)
        if logits:
            self.logits.append(copy)
        if scores:
            self.scores.append(copy if processed is None else processed)

    def ids(self) -> torch.Tensor:
        """Return the row as a tensor, int64[1, length]."""
        if new := self.tokens[self._ids.shape[1] :]:
            self._ids = torch.cat([self._ids, self._ids.new_tensor([new])], dim=1)
        return self._ids


def unpadded(input_ids: torch.Tensor, model_kwargs: Mapping[str, Any]) -> list[list[int]]:
    """Return the tokens of each row of `input_ids`, int64[rows, length], that the attention mask shows."""
    mask = model_kwargs.get("attention_mask")
    if mask is None:
        return [ids.tolist() for ids in input_ids]
    seen = mask[:, mask.shape[1] - input_ids.shape[1] :].bool()
    return [ids[of_row].tolist() for ids, of_row in zip(input_ids, seen, strict=True)]
