"""The most likely tokens of logits, and a hook that never fails and never changes them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rest_store.engines.vllm.target_logits import TargetLogits, likely_tokens


@pytest.mark.parametrize("vocabulary", [5, 8, 300, 1024, 1152, 1200, 49152, 50000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_likely_tokens_are_those_of_the_greatest_logits(vocabulary: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    logits = torch.stack([torch.randperm(vocabulary)[:vocabulary] for _ in range(5)]).to(torch.float32)
    if dtype == torch.bfloat16:  # in which few numbers differ
        logits[:, :] = 0.0
        logits.scatter_(
            1, torch.randperm(vocabulary)[:8].expand(5, -1), torch.arange(1.0, 9.0)[: min(8, vocabulary)].expand(5, -1)
        )
    likely = likely_tokens(logits.to(dtype))
    assert likely.dtype == torch.int32
    assert likely.tolist() == logits.topk(min(8, vocabulary)).indices.tolist()


class Listened:
    """A module with a hook, and what was said."""

    def __init__(self) -> None:
        self.module = torch.nn.Identity()
        self.said: list[str] = []
        self.target = TargetLogits([self.module], lambda where, error: self.said.append(f"{where}: {error}"))

    def show(self, logits: Any) -> None:
        assert self.module(logits) is logits


def test_each_computation_is_taken_once() -> None:
    listened = Listened()
    logits = torch.rand(3, 2000)
    before = logits.clone()
    listened.show(logits)
    assert torch.equal(logits, before)
    assert [rows.tolist() for rows in listened.target.take()] == [logits.topk(8).indices.tolist()]
    assert listened.target.take() == []


def test_nothing_is_taken_while_it_is_off_or_elsewhere() -> None:
    """With tensor parallelism only one worker has the logits."""
    listened = Listened()
    listened.show(None)
    listened.target.is_wanted = False
    listened.show(torch.rand(3, 2000))
    assert listened.target.take() == []


def test_errors_are_said_and_fit_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    listened = Listened()
    listened.show(torch.rand(7))
    assert [rows.shape for rows in listened.target.take()] == [(0, 8)]
    assert len(listened.said) == 1
    assert listened.said[0].startswith("logits: ")

    def unreachable(self: torch.Tensor) -> Any:
        raise RuntimeError("the device is gone")

    listened.show(torch.rand(3, 2000))
    monkeypatch.setattr(torch.Tensor, "cpu", unreachable)
    assert [rows.shape for rows in listened.target.take()] == [(0, 8)]
    assert listened.said[1:] == ["logits: the device is gone"]


def test_a_hook_ends_with_its_owner() -> None:
    listened = Listened()
    del listened.target
    listened.show(torch.rand(3, 2000))
    assert not listened.module._forward_hooks
