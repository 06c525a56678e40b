"""How to draft. Torch is imported here."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from rest_store.errors import LimitError, describe

WIDTHS = (1, 9, 17, 33, 65)  # of steps, where graphs are asked for and nothing else is said


@dataclass(frozen=True)
class Options:
    """How to draft.

    Attributes:
        max_nodes: draft tokens of a step at most; None: 16, on an accelerator 64.
        source_timeout: seconds to wait for a tree; without it the step goes on.
        adaptive: measure what steps cost and rest drafting while it does not pay.
        widths: tokens of a step, the last one included: each is padded to the next of these, all shapes are fixed, and
            on a CUDA device each width is a recorded graph; `WIDTHS` is a good choice. Empty: steps are as wide as
            their trees.

    Raises:
        LimitError: a number out of range.
    """

    max_nodes: int | None = None
    source_timeout: float = 0.5
    adaptive: bool = True
    widths: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.max_nodes is not None and self.max_nodes < 0:
            raise LimitError(describe("generate", "max_nodes", self.max_nodes, "0 or more"))
        if not self.source_timeout >= 0:
            raise LimitError(describe("generate", "source_timeout", self.source_timeout, "0 seconds or more"))
        if self.widths and min(self.widths) < 1:
            raise LimitError(describe("generate", "the least of widths", min(self.widths), "1 or more"))

    def max_nodes_on(self, device: torch.device) -> int:
        """Return the draft tokens of a step at most."""
        most = self.max_nodes if self.max_nodes is not None else 16 if device.type == "cpu" else 64
        return min(most, max(self.widths) - 1) if self.widths else most

    def widths_for(self, new_tokens: float) -> tuple[int, ...]:
        """Return the fixed widths of steps, ascending; none: steps are as wide as their trees.

        Args:
            new_tokens: most tokens to be written to a row, infinite without a limit.

        Raises:
            LimitError: fixed widths are asked for and there is no limit.
        """
        if self.widths and new_tokens == math.inf:
            raise LimitError(describe("generate", "max_length", "none", "a limit: with fixed widths memory is too"))
        return tuple(sorted(set(self.widths)))
