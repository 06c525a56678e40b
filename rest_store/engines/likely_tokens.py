"""The model's most likely tokens, from its logits."""

from __future__ import annotations

import torch

from rest_store.drafting.draft_options import TOP_K
from rest_store.drafting.most_likely import most_likely


def likely_tokens(logits: torch.Tensor) -> torch.Tensor:
    """Return the tokens of the greatest logits, int32[n, 8], the greatest first.

    Fewer if the vocabulary is smaller.

    Args:
        logits: [n, vocabulary].
    """
    count = min(TOP_K, logits.shape[1])
    if logits.is_cpu:
        return torch.from_numpy(most_likely(logits.float().numpy(), count))
    return logits.topk(count).indices.to(torch.int32)
