"""The plug-in beside a trained head of vLLM's, and with its adaptive verification."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from rest_store.engines.vllm.confidences import Confidences
from rest_store.engines.vllm.device_drafts import DeviceDrafts
from tests.engines.runs import outputs_are_plain, requests, totals
from tests.shared.engine import (
    VOCABULARY,
    AdaptiveHead,
    Engine,
    GroupCoordinator,
    ScriptedHead,
    Vllm,
    cyclic,
)

MODEL = cyclic(VOCABULARY)


@pytest.mark.parametrize("lag", [False, True])
def test_beside_a_head_each_row_verifies_what_promises_more(
    start: Callable[..., Vllm], place: str, lag: bool
) -> None:
    """Half of the texts are known. The oftener the head is right, the more it is left to verify."""

    def model(text: list[int]) -> int:
        return MODEL(text) if text[0] < 290 else hash(tuple(text[-3:])) % 290

    def run(settings: object, head: Callable[[Any], Any] | None) -> Engine:
        engine = Engine(start(head), settings, model)
        batch_requests = requests(0, 16)
        for request in batch_requests[::2]:
            request.prompt[0] = 295
        outputs_are_plain(engine, batch_requests)
        return engine

    settings = {"datastores": [place], "lag": lag}
    ours = run(settings, None).steps
    for often, gain in ((0.1, 1.05), (0.6, 0.95), (0.98, 1.05)):
        head = functools.partial(ScriptedHead, model, often, most=4)
        beside = run(settings, head)
        assert totals(beside, "errors") == {}
        assert beside.steps <= gain * min(ours, run(None, head).steps)
        assert 0 < totals(beside, "draft_tokens")[""] < beside.verified


@pytest.mark.parametrize("lag", [False, True])
def test_adaptive_verification_reads_the_chances_of_drafts_from_here(
    start: Callable[..., Vllm], place: str, lag: bool
) -> None:
    """The estimator of vLLM learns from the drafts of the head alone."""
    head = functools.partial(AdaptiveHead, MODEL, 0.3, most=4)
    engine = Engine(start(head), {"datastores": [place], "lag": lag}, MODEL)
    engine.waiting += requests(0)
    chances = engine.speculator.draft_token_confidence_probs
    own_rows = 0
    while engine.requests or engine.waiting:
        count = len(engine.requests)
        engine.step()
        after = chances[: max(count, len(engine.requests))]
        assert bool(((after >= 0) & (after <= 1)).all())
        own_rows += int((after != 0.5).any(dim=1).sum())
    assert totals(engine, "errors") == {}
    assert own_rows > 20
    observed = sum(
        written - 1 + rejected
        for step in engine.speculator._observed
        for written, rejected in zip(*step, strict=True)
        if written
    )
    ours = totals(engine, "draft_tokens")[""]
    assert 0 < observed < engine.verified
    # Rows with tokens from here may end with tokens of the head.
    assert observed + ours <= engine.verified


def test_all_workers_have_the_chances_of_the_first_one() -> None:
    group = GroupCoordinator()
    group.world_size = 2
    chances = torch.full((3, 2), 0.5)
    confidences = Confidences(chances)
    seen: list[list[list[int]]] = []
    observe = confidences.observing(
        lambda rows, sampled, rejected: seen.append([sampled.tolist(), rejected.tolist()])
    )
    drafts = DeviceDrafts(
        torch.tensor([[7, 8], [9, 9]]),
        torch.tensor([[0.9, 0.0], [0.0, 0.0]]),
        torch.tensor([[True, False], [False, False]]),
    )
    rows = torch.tensor([2, 0], dtype=torch.int32)
    confidences.write(rows, drafts, group)
    assert chances.tolist() == [[pytest.approx(0.9), 0.5], [0.5, 0.5], [0.5, 0.5]]
    assert [tuple(sent.shape) for sent in group._sent] == [(2, 3)]
    observe(torch.tensor([0, 1, 2]), torch.tensor([3, 2, 1]), torch.tensor([0, 1, 2]))
    assert seen == [[[3, 2, 0], [0, 1, 0]]]
    confidences.write(rows, None, group)
    observe(torch.tensor([2]), torch.tensor([1]), torch.tensor([2]))
    assert seen[1:] == [[[1], [2]]]


@pytest.mark.parametrize("verifies", [{}, {"admits": 2}, {"scheduled": 2}])
def test_a_head_is_judged_by_what_was_verified(
    start: Callable[..., Vllm], verifies: dict[str, int]
) -> None:
    """It is always right, as far as it is asked; nothing else knows the texts."""

    def model(text: list[int]) -> int:
        return hash(tuple(text[-3:])) % 290

    engine = Engine(
        start(functools.partial(ScriptedHead, model, 1.0, most=4)), {}, model, **verifies
    )
    outputs_are_plain(engine, requests(0, 16))
    head = engine.ours._head
    assert head is not None
    survivals = [head.survival(bucket)[-1] for bucket in range(7) if head._tried[0, bucket] > 40]
    assert survivals
    assert min(survivals) > 0.75


def test_a_suffix_lookup_is_no_head(start: Callable[..., Vllm], place: str) -> None:
    """After 0.33, vLLM's suffix lookup fills the rows that have no draft from here."""
    engine = Engine(
        start(functools.partial(ScriptedHead, MODEL, 0.9, most=4), method="suffix"),
        {"datastores": [place]},
        MODEL,
    )
    outputs_are_plain(engine, requests(0))
    assert engine.ours._head is None
    assert totals(engine, "accepted_tokens")[""] > 0.7 * engine.accepted


def test_what_drafts_for_another_purpose_is_left_alone(
    start: Callable[..., Vllm], place: str, caplog: pytest.LogCaptureFixture
) -> None:
    vllm = start(
        functools.partial(ScriptedHead, MODEL, 0.0, most=4), method="extract_hidden_states"
    )
    engine = Engine(vllm, {"datastores": [place]}, MODEL)
    outputs_are_plain(engine, requests(0))
    assert not hasattr(engine.speculator, "rest_store")
    assert engine.accepted == 0
    (line,) = [record.getMessage() for record in caplog.records]
    method = "the speculative method extract_hidden_states is neither a lookup nor a trained head"
    assert line == f"rest-store: vLLM drafts alone: {method}"


def test_sampled_rows_keep_a_heads_drafts_that_are_judged_by_its_logits(
    start: Callable[..., Vllm], place: str
) -> None:
    def head(states: Any) -> ScriptedHead:
        made = ScriptedHead(MODEL, 0.0, states, 4)
        made.draft_logits = torch.zeros(1)
        return made

    engine = Engine(start(head), {"datastores": [place]}, MODEL)
    sampled = requests(0)[:4]
    greedy = requests(1)[:4]
    for request in sampled:
        request.settings["temperature"] = 0.7
    outputs_are_plain(engine, sampled)
    assert engine.accepted == 0
    outputs_are_plain(engine, greedy)
    assert engine.accepted > 0
