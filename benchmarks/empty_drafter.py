"""A drafter for vLLM that never drafts a token: what vLLM's own path of speculation costs, for `bench_vllm.py`.

Once speculation is configured, vLLM 0.32 sends every step through it, also one without draft tokens: all rows through
the rejection sampler, and without asynchronous scheduling.
"""

from __future__ import annotations

from collections.abc import Sequence


class EmptyDrafter:
    """Proposes nothing.

    Args:
        vllm_config: vLLM's configuration; not used.
    """

    def __init__(self, vllm_config: object) -> None:
        pass

    def load_model(self, model: object) -> None:
        """Nothing to load."""

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: object,
        token_ids_cpu: object,
        slot_mappings: object = None,
    ) -> list[list[int]]:
        """Return no draft tokens for each row; vLLM calls this after each step."""
        return [[] for _ in sampled_token_ids]
