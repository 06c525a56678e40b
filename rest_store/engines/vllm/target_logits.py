"""The target model's most likely tokens, taken from its logits while vLLM computes them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from rest_store.drafting.top_k import most_likely
from rest_store.engines.batch_drafter import Rows

_COUNT = 8  # as many as are recycled
_MOST_KEPT = 2  # logits computed more than once since the last step are not used, so no more are kept


class TargetLogits:
    """Takes the most likely tokens from the logits that a model computes, and holds no logits.

    vLLM 0.32 computes logits outside of compiled code and CUDA graphs, once in a step, for the positions that it
    samples at, row after row of its batch; besides in profile runs and for log probabilities of prompts. It calls
    modules, so that their hooks see what they return before anything is masked or sampled.

    Args:
        modules: that return logits, [positions, vocabulary], or None where another worker has them.
        say: called with each error, and a word for where it occurred.

    Attributes:
        is_wanted: whether to take those of the next step.
    """

    def __init__(self, modules: Iterable[torch.nn.Module], say: Callable[[str, BaseException], None]) -> None:
        self.is_wanted = True
        self._taken: list[torch.Tensor] = []
        self._say = say
        hook = weakref.WeakMethod(self._take_from)

        def called(module: torch.nn.Module, arguments: object, logits: Any) -> None:
            if (take_from := hook()) is not None:
                take_from(logits)

        for module in modules:  # which may live longer than this
            weakref.finalize(self, module.register_forward_hook(called).remove)

    def _take_from(self, logits: torch.Tensor | None) -> None:
        if not self.is_wanted or logits is None or len(self._taken) == _MOST_KEPT:
            return
        try:
            self._taken.append(likely_tokens(logits))
        except Exception as error:
            self._say("logits", error)
            self._taken.append(torch.empty(0, _COUNT, dtype=torch.int32))  # fits no step

    def take(self) -> list[Rows]:
        """Return what was taken since last time.

        Returns:
            The most likely tokens, int32[positions, 8], of each time that logits were computed; at most of two.
        """
        taken, self._taken = self._taken, []
        try:
            return [tokens.cpu().numpy() for tokens in taken]
        except Exception as error:
            self._say("logits", error)
            return [np.empty((0, _COUNT), np.int32)]


def likely_tokens(logits: torch.Tensor) -> torch.Tensor:
    """Return the tokens of the greatest logits, int32[n, 8], the greatest first; fewer if the vocabulary is smaller.

    Args:
        logits: [n, vocabulary].
    """
    count = min(_COUNT, logits.shape[1])
    if logits.is_cpu:
        return torch.from_numpy(most_likely(logits.float().numpy(), count))
    return logits.topk(count).indices.to(torch.int32)
