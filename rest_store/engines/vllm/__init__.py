"""Drafts inside vLLM, as a proposer of its speculative decoding: `rest_store.engines.vllm.Drafter`."""

from rest_store.engines.vllm.drafter import Drafter

__all__ = ["Drafter"]
