"""The most likely tokens of logits, and a hook that never fails and never changes them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rest_store.engines.vllm.target_logits import TargetLogits, likely_tokens


def test_likely_tokens_are_those_of_the_greatest_logits() -> None:
    logits = torch.randperm(5 * 300).reshape(5, 300).float()
    assert likely_tokens(logits).tolist() == logits.topk(8).indices.tolist()
    assert likely_tokens(logits[:, :5]).tolist() == logits[:, :5].topk(5).indices.tolist()


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
