"""The chances of draft tokens by which vLLM decides how many it verifies.

With adaptive verification, vLLM reads for each draft token the chance that it is accepted if those
before it are. It verifies the likeliest tokens of the batch, as many as pay. An estimator of vLLM
learns these chances for the tokens of its own head, from the outcome of each step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from rest_store.engines.vllm.device_drafts import DeviceDrafts
from rest_store.engines.vllm.seam import CONFIDENCE_PARTS
from rest_store.seam import differences


class Confidences:
    """vLLM's chances, with those of drafts from here in their rows.

    Args:
        chances: float32[M, K], vLLM's; the first rows are those of the batch.
    """

    def __init__(self, chances: torch.Tensor) -> None:
        self._chances = chances
        # By row of the states of requests: whether the latest draft has tokens from here.
        self._has_ours = torch.zeros(len(chances), dtype=torch.bool, device=chances.device)

    def write(self, rows: torch.Tensor, drafts: DeviceDrafts | None, group: Any) -> None:
        """Write the chances of the latest drafts.

        Args:
            rows: int[R], the rows of the batch's requests among the states.
            drafts: of the batch's rows; None: all are vLLM's own, or another worker has them.
            group: vLLM's workers that share each layer. All have those of the first one.
        """
        own = self._chances[: len(rows)]
        columns = torch.cat([own, torch.zeros_like(own[:, :1])], dim=1)
        if drafts is not None:
            columns[:, :-1] = torch.where(drafts.is_ours, drafts.chances.to(own.dtype), own)
            columns[:, -1] = drafts.is_ours.any(dim=1)
        if group.world_size > 1:
            columns = group.broadcast(columns, src=0)
        own.copy_(columns[:, :-1])
        self._has_ours[rows.long()] = columns[:, -1] > 0

    def observing(self, native: Callable[..., Any]) -> Callable[..., Any]:
        """Return `observe_verification` for the rows alone that vLLM's own speculator drafted."""

        @functools.wraps(native)
        def observe_verification(
            idx_mapping: torch.Tensor, num_sampled: torch.Tensor, num_rejected: torch.Tensor
        ) -> Any:
            is_native = ~self._has_ours[idx_mapping.long()]
            # A row in which nothing was verified teaches nothing.
            return native(idx_mapping, num_sampled * is_native, num_rejected * is_native)

        return observe_verification


def find_confidences(speculator: Any) -> Confidences | None:
    """Return the chances of a speculator; None: vLLM does not verify adaptively.

    Raises:
        TypeError: vLLM differs from its table.
    """
    if not getattr(speculator, "enable_adaptive_verification", False):
        return None
    if problems := differences(CONFIDENCE_PARTS):
        raise TypeError("; ".join(problems))
    confidences = Confidences(speculator.draft_token_confidence_probs)
    speculator.observe_verification = confidences.observing(speculator.observe_verification)
    return confidences
