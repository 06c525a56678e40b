"""How to draft."""

from __future__ import annotations

import math
from dataclasses import dataclass
from threading import TIMEOUT_MAX

import torch

from rest_store.errors import LimitError, describe

WIDTHS = (1, 9, 17, 33, 65)  # of steps, by default where graphs are asked for


@dataclass(frozen=True)
class Options:
    """How to draft; the fields are arguments of `rest_store.generate`, which describes them.

    Raises:
        LimitError: a number out of range.
    """

    max_nodes: int | None = None
    source_timeout: float | None = 0.5
    adaptive: bool = True
    widths: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.max_nodes is not None and self.max_nodes < 0:
            raise LimitError(describe("generate", "max_nodes", self.max_nodes, "0 or more"))
        if self.source_timeout is not None and not 0 <= self.source_timeout <= TIMEOUT_MAX:
            raise LimitError(describe("generate", "source_timeout", self.source_timeout, "None or seconds from 0 on"))
        if self.widths and min(self.widths) < 1:
            raise LimitError(describe("generate", "the least of widths", min(self.widths), "1 or more"))

    def max_nodes_on(self, device: torch.device) -> int:
        """Return the most draft tokens of a step."""
        most = self.max_nodes if self.max_nodes is not None else 16 if device.type == "cpu" else 64
        return min(most, max(self.widths) - 1) if self.widths else most

    def widths_for(self, new_tokens: float) -> tuple[int, ...]:
        """Return the fixed widths of steps, ascending; empty: steps are as wide as their trees.

        Args:
            new_tokens: most new tokens of a row, infinite without a limit.

        Raises:
            LimitError: fixed widths without a limit.
        """
        if self.widths and new_tokens == math.inf:
            raise LimitError(describe("generate", "max_length", "None", "a limit, for memory of a fixed size"))
        return tuple(sorted(set(self.widths)))
