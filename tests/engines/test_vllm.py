"""The plug-in in vLLM's place wraps and leaves alone what it should, and texts stay the same."""

from __future__ import annotations

import dataclasses
import gc
import random
from pathlib import Path
from typing import Any

import pytest
import torch

import rest_store
from rest_store.drafting.batch import accept_all
from rest_store.drafting.remembering import flush
from rest_store.engines import latest_outputs, request_drafter
from rest_store.engines.vllm import plugin, speculator
from rest_store.engines.vllm.vllm_request import VllmRequest
from tests.engines.runs import outputs_are_plain, requests, totals
from tests.shared.engine import (
    VOCABULARY,
    Engine,
    LoRARequest,
    MultiModalFeatureSpec,
    NewRequestData,
    PlaceholderRange,
    Request,
    SamplingParams,
    ScheduledRequest,
    Vllm,
    cyclic,
    plain_output,
)

MODEL = cyclic(VOCABULARY)


@pytest.mark.parametrize("lag", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_the_model_writes_the_same_in_fewer_steps(
    vllm: Vllm, place: str, tmp_path: Path, lag: bool, seed: int
) -> None:
    """Requests are read in chunks, preempted, and end a step before that is known."""
    chance = random.Random(seed)
    memory = str(tmp_path / "memory")
    settings = {"datastores": [place], "remember": memory, "lag": lag}
    engine = Engine(
        vllm, settings, MODEL, chunk=chance.choice([3, 7, 1000]), ahead=chance.random() < 0.5
    )
    batch_requests = requests(seed, 12)
    ends = {plain_output(MODEL, batch_requests[0].prompt, 23)[-1]}
    batch_requests[0].settings["all_stop_token_ids"] = ends
    outputs = engine.run(*batch_requests, seed=seed)
    for request, output in zip(batch_requests, outputs, strict=True):
        expected = plain_output(MODEL, request.prompt, request.most)
        assert output == expected[: len(output)]
        assert len(output) == 40 or request is batch_requests[0]
    assert totals(engine, "errors") == {}
    assert totals(engine, "accepted_tokens")[""] > 0.8 * engine.accepted
    by_source = totals(engine, "source_accepted_tokens")
    assert max(by_source, key=lambda source: by_source[source]).endswith("ds")
    assert not engine.ours.drafter._requests, "all have ended"
    engine.ours.drafter.close()
    with rest_store.LiveDatastore.open(memory, read_only=True) as live:
        assert live.info().document_count == 12
        for request in batch_requests:
            assert live.count([*request.prompt[-16:], *request.output]) > 0
            assert len(request.prompt) <= 16 or live.count(request.prompt[-17:]) == 0


@pytest.mark.parametrize("lag", [False, True])
@pytest.mark.parametrize(
    "verifies", [{"admits": 2}, {"scheduled": 2}, {"admits": 0}, {"scheduled": 0}]
)
def test_what_vllm_verified_counts_and_not_what_it_scheduled(
    vllm: Vllm, place: str, lag: bool, verifies: dict[str, int]
) -> None:
    """The device or the host may verify fewer draft tokens than were scheduled."""
    engine = Engine(vllm, {"datastores": [place], "lag": lag}, MODEL, shows_logits=True, **verifies)
    outputs_are_plain(engine, requests(0))
    assert totals(engine, "errors") == {}
    drafted, accepted = (
        sum(totals(engine, name).values()) for name in ("draft_tokens", "accepted_tokens")
    )
    assert accepted == engine.accepted
    assert accepted <= drafted <= engine.verified
    assert bool(accepted) == (0 not in verifies.values())


def test_a_lookup_ahead_loses_little(vllm: Vllm, place: str) -> None:
    steps = []
    for lag in (False, True):
        engine = Engine(vllm, {"datastores": [place], "lag": lag}, MODEL)
        outputs_are_plain(engine, requests(0))
        steps.append(engine.steps)
    assert steps[0] <= steps[1] < 1.5 * steps[0]


def test_outcomes_that_were_not_foreseen_are_continued_from_remembered_outputs(
    vllm: Vllm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latest_outputs, "_SECONDS", 0.0)
    monkeypatch.setattr(speculator, "lookahead_nodes", lambda rows: 1)
    steps = []
    for searches in (False, True):
        engine = Engine(vllm, {"remember": str(tmp_path / str(searches)), "lag": True}, MODEL)
        if not searches:
            monkeypatch.setattr(engine.ours, "_outputs_of", lambda ids, device: [])
        outputs_are_plain(engine, requests(0))
        flush(engine.ours.drafter._sources.target, None)
        engine.ours.drafter.work()
        before = engine.steps
        outputs_are_plain(engine, requests(0))
        steps.append(engine.steps - before)
        assert totals(engine, "errors") == {}
    assert steps[1] < 0.7 * steps[0], steps


@pytest.mark.parametrize("lag", [False, True])
def test_a_name_that_is_used_again_at_once_is_that_of_two_requests(
    vllm: Vllm, place: str, tmp_path: Path, lag: bool
) -> None:
    engine = Engine(
        vllm, {"datastores": [place], "remember": str(tmp_path / "memory"), "lag": lag}, MODEL
    )
    for prompt, most in (([100, 101], 12), ([50, 51], 40)):
        engine.waiting.append(request := Request(prompt, most, id="same"))
        while request in engine.requests + engine.waiting:
            engine.step()
    engine.step()
    assert engine.steps < 20
    engine.ours.drafter.close()
    with rest_store.LiveDatastore.open(tmp_path / "memory", read_only=True) as live:
        assert sorted(len(document.tokens) for document in live.documents()) == [14, 42]


def test_aborted_requests_leave_the_others_as_they_are(vllm: Vllm, place: str) -> None:
    engine = Engine(vllm, {"datastores": [place], "lag": True}, MODEL)
    batch_requests = requests(3)
    engine.waiting += batch_requests
    for _ in range(5):
        engine.step()
    aborted = engine.requests[1]
    engine.abort(aborted)
    engine.run()
    for request in batch_requests:
        expected = plain_output(MODEL, request.prompt, request.most)
        assert request.output == (
            expected[: len(request.output)] if request is aborted else expected
        )
    assert totals(engine, "errors") == {}


@pytest.mark.parametrize("lag", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_what_the_model_finds_likely_is_recycled(
    vllm: Vllm, place: str, lag: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The likeliest tokens of a place, and those that are right.
    seen: list[tuple[list[int], list[int]]] = []

    def accepted(sessions: Any, tokens: Any, top_k: Any, *, node_top_k: Any) -> None:
        accept_all(sessions, tokens, top_k, node_top_k=node_top_k)
        for new, rows in zip(tokens, top_k, strict=True):
            for likely, token in zip(rows[:-1], new, strict=True):
                seen.append((likely[:2].tolist(), [token, (token + 1) % VOCABULARY]))

    monkeypatch.setattr(request_drafter, "accept_all", accepted)
    chunk = random.Random(seed).choice([3, 7, 1000])
    engine = Engine(
        vllm, {"datastores": [place], "lag": lag}, MODEL, chunk=chunk, shows_logits=True
    )
    outputs_are_plain(engine, requests(seed, 12), seed=seed)
    assert totals(engine, "errors") == {}
    assert len(seen) > 300
    assert all(likely == right for likely, right in seen)
    processor = engine.runner.model.logits_processor
    logits = engine.ours.drafter._sources.chosen().scope.logits
    assert len(logits) > 500
    del engine
    gc.collect()
    assert not processor._forward_hooks, "a drafter that is gone listens no more"


def test_all_workers_verify_what_one_of_them_drafts(vllm: Vllm, place: str, tmp_path: Path) -> None:
    vllm.group.world_size = 2
    engine = Engine(vllm, {"datastores": [place]}, MODEL)
    outputs_are_plain(engine, requests(0))
    assert len(vllm.group._sent) == engine.steps
    vllm.group.rank_in_group = 1
    other = Engine(vllm, {"datastores": [str(tmp_path / "absent")]}, MODEL)
    outputs_are_plain(other, requests(0))
    assert other.ours is None
    assert other.accepted == 0, "nobody sends it anything here"


def test_a_prediction_is_drafted_from(vllm: Vllm, tmp_path: Path) -> None:
    """The prediction is given as token ids, and remembered with its group and epoch.

    Nothing else knows the text.
    """

    def model(text: list[int]) -> int:
        return hash(tuple(text[-3:])) % 290

    steps = []
    for predicted in (False, True):
        engine = Engine(vllm, {"remember": str(tmp_path / f"{predicted}")}, model)
        batch_requests = requests(0)
        for request in batch_requests if predicted else ():
            prediction = plain_output(model, request.prompt, 40)
            request.settings["extra_args"] = {"prediction": prediction, "group": "g", "epoch": 3}
        outputs_are_plain(engine, batch_requests)
        assert totals(engine, "errors") == {}
        steps.append(engine.steps)
        engine.ours.drafter.close()
        with rest_store.LiveDatastore.open(tmp_path / f"{predicted}", read_only=True) as live:
            groups = {(document.group, document.epoch) for document in live.documents()}
        assert groups == {("g", 3) if predicted else ("", 0)}
    assert steps[1] < 0.5 * steps[0]


@pytest.mark.parametrize("lag", [False, True])
@pytest.mark.parametrize(
    ("part", "name"), [(VllmRequest, "look_ahead"), (speculator, "Step"), (speculator.Step, "read")]
)
def test_whatever_fails_leaves_the_native_drafts_meanwhile(
    vllm: Vllm, place: str, monkeypatch: pytest.MonkeyPatch, part: Any, name: str, lag: bool
) -> None:
    engine = Engine(vllm, {"datastores": [place], "lag": lag}, MODEL)
    engine.waiting += requests(0, 4)
    with monkeypatch.context() as patched:
        patched.setattr(part, name, lambda *_: 1 / 0)
        for _ in range(5):
            engine.step()
    errors = totals(engine, "errors")
    assert set(errors) == {"propose"}
    assert errors["propose"] >= 5 - (lag and name == "read")
    outputs_are_plain(engine, [])
    assert engine.accepted > 80


@pytest.mark.parametrize("lag", [False, True])
@pytest.mark.parametrize(
    ("part", "name"), [(VllmRequest, "look_ahead"), (speculator.Speculator, "_end_step")]
)
def test_a_fault_of_one_request_costs_that_one_its_drafts(
    vllm: Vllm, place: str, monkeypatch: pytest.MonkeyPatch, part: Any, name: str, lag: bool
) -> None:
    engine = Engine(vllm, {"datastores": [place], "lag": lag}, MODEL)
    native = getattr(part, name)
    batch_requests = [Request([100, 101], 40, id=id) for id in ("faulty", "other")]

    def failing_for_one(*arguments: Any) -> Any:
        faulty = engine.ours._requests.get("faulty")
        is_faulty = any(argument is faulty for argument in arguments)
        return 1 / 0 if faulty is not None and is_faulty else native(*arguments)

    monkeypatch.setattr(part, name, failing_for_one)
    outputs_are_plain(engine, batch_requests)
    errors = totals(engine, "errors")
    accepted = engine.accepted
    assert set(errors) == {"propose"}
    alone = Engine(vllm, {"datastores": [place], "lag": lag}, MODEL)
    outputs_are_plain(alone, [Request([100, 101], 40)])
    assert accepted >= alone.accepted > 20, "the other has all of its drafts"


def test_models_whose_logits_cannot_be_seen_are_drafted_for(vllm: Vllm, place: str) -> None:
    for model, expected in ((object(), {"logits": 1}), (torch.nn.Linear(1, 1), {})):
        engine = Engine(vllm, {"datastores": [place]}, MODEL)
        engine.runner.model = model
        outputs_are_plain(engine, requests(0))
        assert totals(engine, "errors") == expected
        assert engine.accepted > 0


def test_requests_without_drafts_are_scheduled_without(vllm: Vllm, place: str) -> None:
    """The scheduler's process has the configuration, but no drafter."""
    from vllm.v1.core.sched.scheduler import Scheduler

    for settings, expected in ((None, [4, 4, 4, 4]), ({"datastores": [place]}, [4, 0, 4, 4])):
        scheduler = Scheduler(vllm.config(settings))
        for extra in (None, {"drafts": 0}, {"drafts": True}, {"drafts": "no"}):
            sampling = SamplingParams(9, extra_args=extra)
            scheduler.running.append(ScheduledRequest(sampling, [-1] * 4))
        assert scheduler.schedule(throttle_prefills=True) == expected
    plugin.install()
    assert not hasattr(Scheduler.schedule.__wrapped__, "__wrapped__"), "it is wrapped once"


def test_images_and_adapters_of_a_request_are_read(vllm: Vllm) -> None:
    """vLLM's own records tell the place of an image, and the name of an adapter."""
    images = [MultiModalFeatureSpec(PlaceholderRange(*place)) for place in ((1, 3), (6, 2))]
    new = NewRequestData("a", list(range(10)), 10, SamplingParams(9))
    assert plugin._request(new, pytest.fail).placeholders.tolist() == []
    assert plugin._request(new, pytest.fail).adapter == ""
    new = dataclasses.replace(
        new,
        lora_request=LoRARequest("tuned"),
        mm_features=images,
        prompt_is_token_ids=[True] * 9 + [False],
    )
    request = plugin._request(new, pytest.fail)
    assert request.placeholders.tolist() == [1, 2, 3, 6, 7, 9]
    assert request.adapter == "tuned"


def test_memory_can_be_written_by_the_next_engine_of_the_process(
    vllm: Vllm, tmp_path: Path
) -> None:
    """An engine that is dropped closes what it has opened."""
    for _ in range(2):
        engine = Engine(vllm, {"remember": str(tmp_path / "memory")}, MODEL)
        outputs_are_plain(engine, requests(0))
        flush(engine.ours.drafter._sources.target, None)
        del engine
        gc.collect()


@pytest.mark.parametrize("how", ["rest", "close"])
def test_the_last_step_is_remembered_with_lag_when_nobody_tells_of_its_end(
    vllm: Vllm, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine rests or ends without another step, in which that one would be read."""
    engine = Engine(vllm, {"remember": str(tmp_path / "memory"), "lag": True}, MODEL)
    engine.waiting.append(request := Request([100, 101], 12))
    while request in engine.requests + engine.waiting:
        engine.step()
    drafter = engine.ours.drafter
    if how == "rest":
        monkeypatch.setattr(request_drafter, "_IDLE_SECONDS", 0.0)
        drafter.work()
        assert flush(drafter._sources.target, None)
    else:
        drafter.close()
    with rest_store.LiveDatastore.open(tmp_path / "memory", read_only=True) as live:
        assert [document.tokens.tolist() for document in live.documents()] == [request.text]
    if how == "rest":
        monkeypatch.undo()
        outputs_are_plain(engine, requests(1))
        assert totals(engine, "errors") == {}
