"""The target model's most likely tokens, taken from its logits while vLLM computes them."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch

from rest_store.drafting.top_k import most_likely
from rest_store.engines.likely_tokens import Rows

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
        drafts: the draft tokens of each row in the next step, so that on a CPU positions behind one that the model
            rejects are not read; their order and number may turn out otherwise. None: nothing is taken.
    """

    def __init__(self, modules: Iterable[torch.nn.Module], say: Callable[[str, BaseException], None]) -> None:
        self.drafts: Sequence[Sequence[int]] | None = []
        self._taken: list[torch.Tensor] = []
        self._seconds = 0.0
        self._say = say
        hook = weakref.WeakMethod(self._take_from)

        def called(module: torch.nn.Module, arguments: object, logits: Any) -> None:
            if (take_from := hook()) is not None:
                take_from(logits)

        for module in modules:  # which may live longer than this
            weakref.finalize(self, module.register_forward_hook(called).remove)

    def _take_from(self, logits: torch.Tensor | None) -> None:
        if self.drafts is None or logits is None or len(self._taken) == _MOST_KEPT:
            return
        began = time.perf_counter()
        try:
            self._taken.append(likely_tokens(logits, self.drafts))
        except Exception as error:
            self._say("logits", error)
            self._taken.append(torch.empty(0, _COUNT, dtype=torch.int32))  # fits no step
        self._seconds += time.perf_counter() - began

    def take(self) -> tuple[list[Rows], float]:
        """Return what was taken since last time, and the seconds of this process that it took.

        Returns:
            The most likely tokens, int32[positions, 8], of each time that logits were computed; at most of two.
        """
        began = time.perf_counter()
        taken, self._taken = self._taken, []
        try:
            rows = [tokens.cpu().numpy() for tokens in taken]
        except Exception as error:
            self._say("logits", error)
            rows = [np.empty((0, _COUNT), np.int32)]
        seconds, self._seconds = self._seconds, 0.0
        return rows, seconds + time.perf_counter() - began


def likely_tokens(logits: torch.Tensor, drafts: Sequence[Sequence[int]] = ()) -> torch.Tensor:
    """Return the tokens of the greatest logits, int32[n, 8], the greatest first; fewer if the vocabulary is smaller.

    Args:
        logits: [n, vocabulary].
        drafts: the draft tokens of each row at these positions; ignored if their number does not fit. On a CPU, all
            tokens of positions behind a draft token that is not the likeliest are -1.
    """
    count = min(_COUNT, logits.shape[1])
    if not logits.is_cpu:
        return logits.topk(count).indices.to(torch.int32)
    verified = [token for draft in drafts for token in (*draft, -1)]
    is_known = len(verified) == len(logits)
    return torch.from_numpy(
        most_likely(logits.float().numpy(), count, np.array(verified, np.int32) if is_known else None)
    )
