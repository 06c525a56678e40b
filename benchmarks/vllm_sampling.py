"""What keeps vLLM 0.32.0 from sampling with drafts on a CPU, and a remedy for tests and measurements.

A sampled row's temperature, top-k and top-p are meant to be repeated for each of its draft tokens. vLLM's version for
CPUs repeats them into a copy that it drops, so that what drafts are judged by is whatever the memory held, in every
batch with a sampled row and with every drafter.
"""

from __future__ import annotations

from typing import Any


def repeat_settings() -> None:
    """Have vLLM repeat them rightly in this process; call it once an engine has started."""
    import torch
    from vllm.triton_utils.dispatcher import register_kernels

    def expand(output: Any, values: Any, ends: Any, replaced: float, replacement: float, most: int = 0) -> None:
        counts = torch.diff(ends, prepend=ends.new_zeros(1))
        output.copy_(values.masked_fill(values == replaced, replacement).repeat_interleave(counts))

    register_kernels({"vllm.v1.sample.rejection_sampler.expand_kernel": expand})
