"""What a generation has written so far, and what it took. Torch is imported here."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from rest_store.generation.drafting import DraftCounts


@dataclass
class Piece:
    """What one forward pass wrote.

    Attributes:
        tokens: for each row the tokens written, possibly none.
        origins: for each token a bitmask of the sources that had drafted it; 0: the model alone.
    """

    tokens: list[list[int]]
    origins: list[list[int]]


@dataclass
class Statistics:
    """What a generation took.

    Attributes:
        tokens: generated, over all rows.
        forward_passes: of the target model, over the prompt too.
        seconds: from before the prompt's pass to the last token, without what the reader of a stream took in between.
        forward_seconds: of them, in forward passes, up to when their logits are there to choose from.
        pauses: how often drafting was given up for a while because it did not pay.
        drafts: what the drafter did.
        origins: for each row and generated token a bitmask of the sources that had drafted it; 0: the model alone.
    """

    tokens: int = 0
    forward_passes: int = 0
    seconds: float = 0.0
    forward_seconds: float = 0.0
    pauses: int = 0
    drafts: DraftCounts = field(default_factory=DraftCounts)
    origins: list[list[int]] = field(default_factory=list)

    @property
    def mean_tokens(self) -> float:
        """M: generated tokens for each forward pass (REST, section 4.1), of all rows together."""
        return self.tokens / self.forward_passes if self.forward_passes else 0.0


class Row:
    """A sequence being written.

    Attributes:
        tokens: all of it, the prompt and padding on its left included.
        origins: of each generated token, as in `Statistics`.
        scores: float32[1, vocabulary] of each generated token, if they are kept.
        logits: the same before processing.
        ended: its length when a stopping criterion was met; None before.

    Args:
        ids: int64[length], the prompt.
        capacity: tokens to have memory for.
    """

    def __init__(self, ids: torch.Tensor, capacity: int) -> None:
        self.tokens: list[int] = ids.tolist()
        self.origins: list[int] = []
        self.scores: list[torch.Tensor] = []
        self.logits: list[torch.Tensor] = []
        self.ended: int | None = None  # length at which a criterion was met
        self._ids = ids.new_empty((1, max(capacity, ids.shape[0], 1)))
        self._ids[0, : ids.shape[0]] = ids
        self._written = ids.shape[0]

    def ids(self) -> torch.Tensor:
        """Return the row as a tensor, int64[1, length]."""
        length = len(self.tokens)
        if length > self._ids.shape[1]:
            self._ids = torch.cat([self._ids, torch.empty_like(self._ids)], dim=1)
        if self._written < length:
            self._ids[0, self._written : length] = torch.tensor(self.tokens[self._written :])
            self._written = length
        return self._ids[:, :length]
