"""The target model's most likely tokens, taken from its logits while vLLM computes them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from rest_store.engines.likely_tokens import likely_tokens


class TargetLogits:
    """Takes the most likely tokens from the logits that a model computes, and holds no logits.

    vLLM 0.32 computes logits outside of compiled code and CUDA graphs: in each step for the
    positions that it samples at, request after request of its batch; and in profile runs and for
    log probabilities of prompts. It calls modules, so that a forward hook sees the logits before
    they are masked or sampled from.

    Args:
        modules: they return logits, [positions, vocabulary], or None where another worker has them.
        report: called with a word for the place of an error, and the error.
    """

    def __init__(
        self, modules: Iterable[torch.nn.Module], report: Callable[[str, BaseException], None]
    ) -> None:
        self._taken: torch.Tensor | None = None
        self._report = report
        hook = weakref.WeakMethod(self._take_from)

        def called(module: torch.nn.Module, arguments: object, logits: Any) -> None:
            if (take_from := hook()) is not None:
                take_from(logits)

        for module in modules:  # they may live longer than this object
            weakref.finalize(self, module.register_forward_hook(called).remove)

    def _take_from(self, logits: torch.Tensor | None) -> None:
        if logits is None or self._taken is not None:
            return
        try:
            self._taken = likely_tokens(logits)
        except Exception as error:
            self._report("logits", error)

    def take(self) -> torch.Tensor | None:
        """Return the most likely tokens of the first logits since the last call.

        Returns:
            int32[positions, 8], on the device of the logits; None: there were no logits.
        """
        taken = self._taken
        self._taken = None
        return taken
