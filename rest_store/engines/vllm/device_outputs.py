"""Remembered outputs on the device, where drafts are continued from them."""

from __future__ import annotations

from collections import OrderedDict

import torch

from rest_store.engines.request import Tokens

_MAX_ARRAYS = 16  # on the device, of at most 1 MB each


class DeviceOutputs:
    """Copies of arrays of remembered outputs on a device. Not thread-safe.

    Args:
        device: of the texts that are continued.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # By the identity of each array, which is kept with its copy.
        self._copies: OrderedDict[int, tuple[Tokens, torch.Tensor]] = OrderedDict()

    def copy_of(self, tokens: Tokens) -> torch.Tensor | None:
        """Return the copy of an array that is never changed; None: it is empty.

        Of the arrays, the most recently used ones are kept on the device.
        """
        if not tokens.size:
            return None
        name = id(tokens)
        if name not in self._copies:
            copy = torch.from_numpy(tokens.copy())
            if self._device.type != "cpu":
                copy = copy.pin_memory().to(self._device, non_blocking=True)
            self._copies[name] = (tokens, copy)
            if len(self._copies) > _MAX_ARRAYS:
                self._copies.popitem(last=False)
        self._copies.move_to_end(name)
        return self._copies[name][1]
