"""A hook that takes the most likely tokens of logits, never fails and never changes them."""

from __future__ import annotations

from typing import Any

import torch

from rest_store.engines.vllm.target_logits import TargetLogits


class Listened:
    """A module with a hook, and what was said."""

    def __init__(self) -> None:
        self.module = torch.nn.Identity()
        self.said: list[str] = []
        self.target = TargetLogits(
            [self.module], lambda where, error: self.said.append(f"{where}: {error}")
        )

    def show(self, logits: Any) -> None:
        assert self.module(logits) is logits


def test_the_first_computation_since_last_time_is_taken() -> None:
    """Log probabilities of prompts are computed after those of a step."""
    listened = Listened()
    logits = torch.rand(3, 2000)
    before = logits.clone()
    listened.show(None)  # with tensor parallelism only one worker has the logits
    listened.show(logits)
    listened.show(torch.rand(5, 2000))
    assert torch.equal(logits, before)
    taken = listened.target.take()
    assert taken is not None
    assert taken.tolist() == logits.topk(8).indices.tolist()
    assert listened.target.take() is None


def test_errors_are_said() -> None:
    listened = Listened()
    listened.show(torch.rand(7))
    assert listened.target.take() is None
    assert len(listened.said) == 1
    assert listened.said[0].startswith("logits: ")


def test_a_hook_ends_with_its_owner() -> None:
    listened = Listened()
    del listened.target
    listened.show(torch.rand(3, 2000))
    assert not listened.module._forward_hooks
