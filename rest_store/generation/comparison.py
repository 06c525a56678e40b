"""A drafted generation beside plain generation of the same prompt."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from rest_store.generation.random_state import RandomState


@dataclass(frozen=True)
class Comparison:
    """Plain generation of the same prompt.

    Attributes:
        speedup: how many times as fast the drafted generation was.
        identical: whether both wrote the same tokens.
        seconds: that plain generation took.
    """

    speedup: float
    identical: bool
    seconds: float

    @classmethod
    def of(
        cls, drafted: torch.Tensor, seconds: float, plain: Callable[[], torch.Tensor], random_state: RandomState
    ) -> Comparison:
        """Generate plainly and compare.

        Args:
            drafted: int64[rows, length], prompts and what was generated with drafts.
            seconds: that this took.
            plain: generates the same plainly.
            random_state: as it was before the drafted generation; plain generation draws from it, too.
        """
        with random_state.restored():
            began = time.perf_counter()
            plain_tokens = plain()
            plain_seconds = time.perf_counter() - began
        return cls(plain_seconds / seconds, torch.equal(plain_tokens, drafted), plain_seconds)

    def __str__(self) -> str:
        text = "the same text" if self.identical else "another text"
        return f"{self.speedup:.2f} times as fast as plain decoding, which wrote {text}"
