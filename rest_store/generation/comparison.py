"""A drafted generation beside plain generation of the same prompt."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch


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

    def __str__(self) -> str:
        text = "the same text" if self.identical else "another text"
        return f"{self.speedup:.2f} times as fast as plain decoding, which wrote {text}"


class Comparer:
    """Generates plainly what has been generated with drafts, with the same random numbers.

    To be made before the drafted generation: it keeps the state of the generators of torch. These go on afterwards as
    if nothing had been compared.

    Args:
        device: of the model.
    """

    def __init__(self, device: torch.device) -> None:
        self._devices = [device] if device.type == "cuda" else []
        self._state = torch.get_rng_state()
        self._on_device = [torch.cuda.get_rng_state(device) for device in self._devices]

    def compare(self, drafted: torch.Tensor, seconds: float, plain: Callable[[], torch.Tensor]) -> Comparison:
        """Generate plainly and compare.

        Args:
            drafted: int64[rows, length], prompts and what was generated with drafts.
            seconds: that this took.
            plain: generates the same plainly.
        """
        with torch.random.fork_rng(devices=self._devices):
            torch.set_rng_state(self._state)
            for device, state in zip(self._devices, self._on_device, strict=True):
                torch.cuda.set_rng_state(state, device)
            began = time.perf_counter()
            plain_tokens = plain()
            plain_seconds = time.perf_counter() - began
        return Comparison(plain_seconds / seconds, torch.equal(plain_tokens, drafted), plain_seconds)
