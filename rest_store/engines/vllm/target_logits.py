"""The target model's most likely tokens, taken from its logits while vLLM computes them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from rest_store.engines.likely_tokens import likely_tokens


class TargetLogits:
    """Takes the most likely tokens from the logits that a model computes, and holds no logits.

    vLLM 0.32 computes logits outside of compiled code and CUDA graphs, in each step for the
    positions that it samples at, request after request of its batch; besides in profile runs and
    for log probabilities of prompts. It calls modules, so that their hooks see what they return
    before anything is masked or sampled.

    Args:
        modules: that return logits, [positions, vocabulary], or None where another worker has them.
        say: called with each error, and a word for where it occurred.
    """

    def __init__(
        self, modules: Iterable[torch.nn.Module], say: Callable[[str, BaseException], None]
    ) -> None:
        self._taken: torch.Tensor | None = None
        self._say = say
        hook = weakref.WeakMethod(self._take_from)

        def called(module: torch.nn.Module, arguments: object, logits: Any) -> None:
            if (take_from := hook()) is not None:
                take_from(logits)

        for module in modules:  # which may live longer than this
            weakref.finalize(self, module.register_forward_hook(called).remove)

    def _take_from(self, logits: torch.Tensor | None) -> None:
        if logits is None or self._taken is not None:
            return
        try:
            self._taken = likely_tokens(logits)
        except Exception as error:
            self._say("logits", error)

    def take(self) -> torch.Tensor | None:
        """Return the most likely tokens of the first logits since
        last time, int32[positions, 8], on their device.
        """
        taken, self._taken = self._taken, None
        return taken
