"""The rows of a batch as they are written, and when each ends."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from rest_store.generation.sampling import Stops

_ROOM = 4096  # tokens that a row has memory for, besides twice its prompt; more is allocated as it grows


class Row:
    """A sequence being written.

    Args:
        ids: int64[length], the prompt.
        capacity: tokens to have memory for at first.

    Attributes:
        tokens: all of it, the prompt and padding on its left included.
        origins: of each generated token, as in `Statistics`.
        scores: float32[1, vocabulary] of each generated token, if they are kept.
        logits: the same before processing.
        limit: the longest that a step may make it, in tokens.
        ended: its length when a stopping criterion was met; None before.
    """

    def __init__(self, ids: torch.Tensor, capacity: int) -> None:
        self.tokens: list[int] = ids.tolist()
        self.origins: list[int] = []
        self.scores: list[torch.Tensor] = []
        self.logits: list[torch.Tensor] = []
        self.limit: float = math.inf
        self.ended: int | None = None
        self._ids = ids.new_empty((1, max(capacity, ids.shape[0], 1)))
        self._ids[0, : ids.shape[0]] = ids
        self._written = ids.shape[0]

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
        length = len(self.tokens)
        while length > self._ids.shape[1]:
            self._ids = torch.cat([self._ids, torch.empty_like(self._ids)], dim=1)
        if self._written < length:
            self._ids[0, self._written : length] = torch.tensor(self.tokens[self._written :])
            self._written = length
        return self._ids[:, :length]


class Rows(list[Row]):
    """All rows of a batch.

    Args:
        input_ids: int64[rows, length], the prompts.
        stops: what ends a row.
    """

    def __init__(self, input_ids: torch.Tensor, stops: Stops) -> None:
        capacity = min(stops.max_length or math.inf, 2 * input_ids.shape[1] + _ROOM)  # the limit may be any number
        super().__init__(Row(ids, int(capacity)) for ids in input_ids)
        self._stops = stops

    def ends(self, row: Row, token: int) -> bool:
        """Note whether `row` has met a criterion with its last token; return whether writing to it stops here."""
        if row.ended is not None:
            return not self.continues(row)
        if self._stops.are_simple:
            ended = self._stops.after(token, len(row.tokens))
        else:
            ended = self._stops.judge(row.ids(), tuple(row.scores) or None)
        if ended:
            row.ended = len(row.tokens)
        return ended

    def continues(self, row: Row) -> bool:
        """Whether more is written to `row`.

        Where no token ends a row, `generate` of transformers continues rows that have met a criterion until all have.
        """
        if row.ended is None:
            return True
        ends = [other.ended for other in self]
        if self._stops.pads or None in ends:
            return False
        return len(row.tokens) < max(end for end in ends if end is not None)

    def is_done(self, row: Row) -> bool:
        """Whether `row` gets no more tokens, whatever is written to the others."""
        return row.ended is not None and (self._stops.pads or len(row.tokens) == self._stops.max_length)


def unpadded(input_ids: torch.Tensor, model_kwargs: Mapping[str, Any]) -> list[list[int]]:
    """Return the tokens of each row of `input_ids`, int64[rows, length], that the attention mask shows."""
    mask = model_kwargs.get("attention_mask")
    if mask is None:
        return [ids.tolist() for ids in input_ids]
    seen = mask[:, mask.shape[1] - input_ids.shape[1] :].bool()
    return [ids[of_row].tolist() for ids, of_row in zip(input_ids, seen, strict=True)]
