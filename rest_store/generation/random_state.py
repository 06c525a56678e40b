"""The state of torch's random generators, to generate twice with the same random numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class RandomState:
    """The state, as it is now, of the generators that a model on `device` draws from."""

    def __init__(self, device: torch.device) -> None:
        self._devices = [device] if device.type == "cuda" else []
        self._host = torch.get_rng_state()
        self._of_devices = [torch.cuda.get_rng_state(device) for device in self._devices]

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Restore this state inside the block, and after it the state from before the block."""
        with torch.random.fork_rng(devices=self._devices):
            torch.set_rng_state(self._host)
            for device, state in zip(self._devices, self._of_devices, strict=True):
                torch.cuda.set_rng_state(state, device)
            yield
