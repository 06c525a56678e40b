"""What keeps vLLM 0.32.0 from sampling with drafts on a CPU, and a remedy for tests and measurements.

A sampled row's temperature, top-k and top-p are meant to be repeated for each of its draft tokens. vLLM's version for
CPUs repeats them into a copy that it drops, so that what drafts are judged by is whatever the memory held, in every
batch with a sampled row and with every drafter.
"""

from __future__ import annotations

from typing import Any


def repeat_settings() -> None:
    """Have vLLM repeat them rightly in this process."""
    import torch
    from vllm.v1.sample import rejection_sampler

    def repeated(values: Any, ends: Any, number: int, replace_from: float = 0, replace_to: float = 0) -> Any:
        counts = torch.diff(ends, prepend=ends.new_zeros(1))
        return values.masked_fill(values == replace_from, replace_to).repeat_interleave(counts)

    rejection_sampler.expand_batch_to_tokens = repeated
