"""The plug-in in vLLM's place wraps and leaves alone what it should, and texts stay the same."""

from __future__ import annotations

import dataclasses
import functools
import gc
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from prometheus_client import REGISTRY

import rest_store
from rest_store.drafting.batch import accept_all
from rest_store.drafting.remembering import flush
from rest_store.engines import engine_metrics, latest_outputs, request_drafter
from rest_store.engines.request import NewRequest
from rest_store.engines.vllm import device_drafts, device_outputs, plugin, speculator
from rest_store.engines.vllm.confidences import Confidences
from rest_store.engines.vllm.device_drafts import (
    DeviceDrafts,
    continuations_in_texts,
    drafts_on_device,
)
from rest_store.engines.vllm.device_outputs import DeviceOutputs
from rest_store.engines.vllm.vllm_request import VllmRequest
from rest_store.errors import ArgumentError, DatastoreNotFoundError, TokenizerMismatchError
from tests.shared.engine import (
    VOCABULARY,
    AdaptiveHead,
    Engine,
    GroupCoordinator,
    LoRARequest,
    MultiModalFeatureSpec,
    NewRequestData,
    PlaceholderRange,
    Request,
    SamplingParams,
    ScheduledRequest,
    ScriptedHead,
    Vllm,
    cyclic,
    plain_output,
    written_datastore,
)
from tests.shared.members import scored
from tests.shared.strategies import ONE_TO_NINE, Corpus, identity, write_datastore

MODEL = cyclic(VOCABULARY)


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Vllm]]:
    """Puts vLLM's modules in place, as the plug-in finds them, and installs it."""

    def started(
        head: Callable[[Any], Any] | None = None, installed: bool = True, method: str | None = None
    ) -> Vllm:
        vllm = Vllm(identity(VOCABULARY), head, method)
        for name, module in vllm.modules.items():
            monkeypatch.setitem(sys.modules, name, module)
        if installed:
            plugin.install()
        return vllm

    yield started
    gc.collect()
    counters, sessions = engine_metrics._metrics(("engine", "model_name"))
    for metric in (*counters.values(), sessions):
        REGISTRY.unregister(metric)
    engine_metrics._metrics.cache_clear()


@pytest.fixture
def vllm(start: Callable[..., Vllm]) -> Vllm:
    return start()


@pytest.fixture
def place(tmp_path: Path) -> str:
    return written_datastore(tmp_path / "ds", MODEL)


def totals(engine: Engine, name: str) -> dict[str, float]:
    """Return a counter by label."""
    counted = engine.ours.drafter.metrics.totals().items()
    return {label: total for (counter, label), total in counted if counter == name and total}


def requests(seed: int, count: int = 8, most: int = 40) -> list[Request]:
    chance = random.Random(seed)
    return [
        Request([chance.randrange(290) for _ in range(chance.randrange(2, 30))], most)
        for _ in range(count)
    ]


def outputs_are_plain(engine: Engine, batch_requests: list[Request], **options: Any) -> None:
    outputs = engine.run(*batch_requests, **options)
    assert outputs == [
        plain_output(engine.model, request.prompt, request.most, 200) for request in batch_requests
    ]


@pytest.mark.parametrize("lag", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_the_model_writes_the_same_in_fewer_steps(
    vllm: Vllm, place: str, tmp_path: Path, lag: bool, seed: int
) -> None:
    """Requests are read in chunks, preempted, and end a step before that is known."""
    chance, memory = random.Random(seed), str(tmp_path / "memory")
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
    sampled, greedy = requests(0)[:4], requests(1)[:4]
    for request in sampled:
        request.settings["temperature"] = 0.7
    outputs_are_plain(engine, sampled)
    assert engine.accepted == 0
    outputs_are_plain(engine, greedy)
    assert engine.accepted > 0


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
    errors, accepted = totals(engine, "errors"), engine.accepted
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


def test_without_settings_vllm_is_left_alone(vllm: Vllm) -> None:
    runner = vllm.modules["vllm.v1.worker.gpu.model_runner"]
    assert not hasattr(
        runner.init_speculator(vllm.config(None), torch.device("cpu"), None), "rest_store"
    )
    before = runner.init_speculator
    plugin.install()
    assert runner.init_speculator is before, "wrapped once"


def test_a_pipeline_is_refused_by_name(vllm: Vllm) -> None:
    from vllm.engine.arg_utils import EngineArgs

    for settings in (None, {}):
        config = vllm.config(settings)
        config.parallel_config.pipeline_parallel_size = 2
        if settings is None:
            assert EngineArgs(config).create_engine_config() is config
            continue
        with pytest.raises(ArgumentError) as raised:
            EngineArgs(config).create_engine_config()
        expected = "additional_config.rest_store: pipeline_parallel_size is 2, expected 1"
        assert str(raised.value) == expected


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


def test_a_scheduler_that_differs_is_left_alone_by_name(
    start: Callable[..., Vllm], caplog: pytest.LogCaptureFixture
) -> None:
    vllm = start(installed=False)
    scheduler = vllm.modules["vllm.v1.core.sched.scheduler"].Scheduler
    scheduler.schedule = lambda scheduler_output: None
    plugin._warn_once.cache_clear()
    plugin.install()
    assert not hasattr(scheduler.schedule, "__wrapped__")
    assert "requests cannot switch drafts off in this vLLM: vllm.v1.core.sched" in caplog.text


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


def test_settings_are_checked_at_the_start(vllm: Vllm, tmp_path: Path, place: str) -> None:
    with pytest.raises(ArgumentError, match=r"additional_config\.rest_store: a key is 'datastors'"):
        Engine(vllm, {"datastors": [place]}, MODEL)
    with pytest.raises(ArgumentError, match="lag is 1, expected true or false"):
        Engine(vllm, {"lag": 1}, MODEL)
    with pytest.raises(DatastoreNotFoundError):
        Engine(vllm, {"datastores": [str(tmp_path / "absent")]}, MODEL)
    (tmp_path / "other").mkdir()
    other = write_datastore(tmp_path / "other", Corpus(301, ONE_TO_NINE.shards))
    with pytest.raises(TokenizerMismatchError):
        Engine(vllm, {"datastores": [str(other)]}, MODEL)


class OtherSpeculator:
    def propose(self, input_batch: Any, num_sampled: Any) -> None:
        """Propose with other parameters than before."""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("requests", "vllm.v1.worker.gpu.model_runner:GPUModelRunner.add_requests is absent"),
        ("states", "vllm.v1.worker.gpu.states:RequestState.all_token_ids is absent; "),
        (
            "propose",
            (
                "OtherSpeculator.propose takes self, input_batch, num_sampled, expected self,"
                " input_batch, attn_"
            ),
        ),
    ],
)
def test_a_seam_that_has_changed_is_left_alone(
    vllm: Vllm,
    place: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
    message: str,
) -> None:
    runner = vllm.modules["vllm.v1.worker.gpu.model_runner"]
    if change == "requests":
        del runner.GPUModelRunner.add_requests
    elif change == "states":
        monkeypatch.setattr(
            vllm.modules["vllm.v1.worker.gpu.states"], "RequestState", OtherSpeculator
        )
    else:
        vllm.head = lambda states: OtherSpeculator()
    speculator = runner.init_speculator(
        vllm.config({"datastores": [place]}), torch.device("cpu"), None
    )
    assert not hasattr(speculator, "rest_store")
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"rest-store: vLLM drafts alone: {message}")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"use_v2_model_runner": False}, "not in the V1 model runner"),
        ({"speculative_config": None}, "no speculative configuration"),
    ],
)
def test_one_line_says_why_settings_are_not_used(
    vllm: Vllm, caplog: pytest.LogCaptureFixture, change: dict[str, Any], reason: str | None
) -> None:
    plugin._warn_once.cache_clear()
    arguments = vllm.modules["vllm.engine.arg_utils"].EngineArgs
    for settings in (None, {}, {}):
        config = dataclasses.replace(vllm.config(settings), **change)
        assert arguments(config).create_engine_config() is config
    said = [record.getMessage() for record in caplog.records]
    assert said == ([f"rest-store: {reason}: no drafts, nothing is remembered"] if reason else [])
    with pytest.raises(ArgumentError, match=r"additional_config\.rest_store: a key is 'datastors'"):
        arguments(vllm.config({"datastors": []})).create_engine_config()


def test_a_vllm_without_the_seam_is_left_alone(
    start: Callable[..., Vllm], caplog: pytest.LogCaptureFixture
) -> None:
    vllm = start(installed=False)
    package = vllm.modules["vllm.v1.worker.gpu.spec_decode"]
    package.init_speculator = native = lambda config: None
    plugin.install()
    assert package.init_speculator is native
    assert "rest-store: not in this vLLM: " in caplog.text
    assert "takes config, expected vllm_config, device, req_states" in caplog.text


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


def test_the_device_takes_the_draft_after_the_outcome() -> None:
    verified = np.array([7, 8], np.int32)
    #                  0: 7       1: 8   2: 1, 3: 2    4: 9  5: 4         6: 5  7: 6
    tree = scored(
        [7, 8, 1, 2, 9, 4, 5, 6],
        [-1, 0, 1, 2, 1, 0, 5, -1],
        [0.8, 0.6, 0.3, 0.15, 0.2, 0.1, 0.05, 0.1],
    )
    request = VllmRequest(NewRequest("a", [], 0), None)
    texts = torch.zeros(2, 10, dtype=torch.int32)
    texts[1, :4] = torch.tensor([3, 6, 6, 3])
    rows, native = torch.tensor([1, 0]), torch.full((2, 2), 42)
    for new, expected, again in (
        ([7, 8, 1], [2, 42], [2, 42]),
        ([7, 8, 9], [42, 42], [42, 42]),  # foreseen, and nothing follows
        ([7, 4], [5, 42], [5, 42]),
        ([7], [8, 1], [8, 1]),  # the draft was cut
        ([6], [42, 42], [42, 42]),
        ([3], [42, 42], [3, 3]),  # not foreseen: 3 3 was not written before, 3 was
        ([7, 6], [42, 42], [3, 7]),
        ([7, 8, 2], [42, 42], [42, 42]),  # not foreseen, and new to the text
    ):
        request.look_ahead(tree, verified, 2, 6)
        texts[1, 4 : 4 + len(new)] = torch.tensor(new)
        texts[1, 4 + len(new) :] = 0
        lengths = torch.tensor([0, 4 + len(new)])
        for looks_up_texts, tokens in ((False, expected), (True, again)):
            drafts = drafts_on_device(
                [request.outcomes, None],
                [4, 0],
                texts,
                rows,
                lengths,
                native,
                looks_up_texts=looks_up_texts,
            )
            assert drafts is not None
            assert drafts.tokens.tolist() == [tokens, [42, 42]], new
            ours = sum(token != 42 for token in expected)
            assert drafts.is_ours.tolist() == [[True] * ours + [False] * (2 - ours), [False] * 2]
        request.end_step(np.array(new, np.int32))
        assert request.is_chosen == bool(ours)
        assert request.draft.tokens.tolist() == expected[:ours]
        assert request.verified(1).tokens.tolist() == expected[: min(1, ours)]
        # Scores are products of chances, as vLLM's are.
        chances = np.cumprod(drafts.chances[0, :ours].numpy())
        assert chances == pytest.approx(np.asarray(request.draft.scores))
    request.look_ahead(tree, verified, 2, 6)
    request.set_draft(np.array([7], np.int32))
    assert np.asarray(request.draft.scores) == pytest.approx([0.75, 0.375])
    request.end_step(np.zeros(0, np.int32))
    assert not len(request.draft), "a step that writes nothing has no outcome"
    request.look_ahead(tree, verified, 2, 3)  # room for three tokens
    request.set_draft(np.array([7, 8], np.int32))
    assert request.draft.tokens.tolist() == [1]


@pytest.mark.parametrize("seed", range(5))
def test_the_device_continues_the_longest_suffix_that_occurred_before(seed: int) -> None:
    chance = np.random.default_rng(seed)
    texts = torch.from_numpy(chance.integers(0, 4, (6, 40), np.int32))
    rows = torch.tensor([4, 0, 5, 2])
    lengths = torch.tensor([1, 2, 17, 40])
    continued = continuations_in_texts(texts, rows, lengths, 5).tolist()
    for row, length, tokens in zip(rows.tolist(), lengths.tolist(), continued, strict=True):
        text = texts[row, :length].tolist()
        assert tokens == continuation_plainly(text, 5)


@pytest.mark.parametrize("seed", range(5))
def test_the_device_continues_a_suffix_that_occurred_in_a_rows_memory(seed: int) -> None:
    chance = np.random.default_rng(seed)
    texts = torch.from_numpy(chance.integers(0, 9, (6, 40), np.int32))
    documents = [
        [chance.integers(0, 9, chance.integers(1, 9)).tolist() for _ in range(count)]
        for count in (40, 3)
    ]
    long, short = (
        torch.tensor([token for one in some for token in (*one, -1)], dtype=torch.int32)
        for some in documents
    )
    rows = torch.tensor([4, 0, 5, 2])
    lengths = torch.tensor([1, 5, 17, 40])
    memories = [long, short, None, long]
    continued = continuations_in_texts(texts, rows, lengths, 5, memories).tolist()
    own = [documents[0], documents[1], [], documents[0]]
    for row, length, before, tokens in zip(
        rows.tolist(), lengths.tolist(), own, continued, strict=True
    ):
        assert tokens == continuation_plainly(texts[row, :length].tolist(), 5, before)


def test_a_row_without_a_lookup_is_not_continued_from_its_memory() -> None:
    request = VllmRequest(NewRequest("a", [], 0), None)
    request.look_ahead(scored([], [], []), np.zeros(0, np.int32), 2, 9)
    memory = torch.tensor([3, 5, 6, -1], dtype=torch.int32)
    drafts = drafts_on_device(
        [request.outcomes, None],
        [1, 1],
        torch.tensor([[1, 3, 0, 0], [1, 3, 0, 0]], dtype=torch.int32),
        torch.tensor([0, 1]),
        torch.tensor([2, 2]),
        torch.full((2, 3), 42),
        looks_up_texts=True,
        outputs=[memory, memory],
    )
    assert drafts is not None
    assert drafts.tokens.tolist() == [[5, 6, 42], [42, 42, 42]]
    assert not drafts.is_ours.any()


def test_an_array_is_copied_to_the_device_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_outputs, "_MAX_ARRAYS", 2)
    arrays = [np.array([number, -1], np.int32) for number in range(3)]
    memory = DeviceOutputs(torch.device("cpu"))
    copies = [memory.copy_of(array) for array in arrays[:2]]
    assert [memory.copy_of(array) for array in arrays[:2]] == copies
    assert memory.copy_of(np.zeros(0, np.int32)) is None
    assert [None if one is None else one.tolist() for one in copies] == [[0, -1], [1, -1]]
    memory.copy_of(arrays[2])
    assert memory.copy_of(arrays[1]) is copies[1]
    assert memory.copy_of(arrays[0]) is not copies[0], "the one that was not used longest"


def test_of_long_texts_the_last_part_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = torch.tensor([[1, 2, 3, 9, 9, 5, 6, 1, 8, 1], [1, 7, 1, 0, 0, 0, 0, 0, 0, 0]])
    rows = torch.tensor([0, 1])
    for searched, expected in ((20, [[8, 1], [7, 1]]), (8, [[8, 1], [7, 1]]), (4, [[-1, -1]] * 2)):
        monkeypatch.setattr(device_drafts, "_MAX_SEARCHED", searched)
        lengths = torch.tensor([10, 3])
        assert continuations_in_texts(texts.int(), rows, lengths, 2).tolist() == expected


def continuation_plainly(
    text: list[int], count: int, memory: list[list[int]] | None = None
) -> list[int]:
    for size in range(min(8, len(text)), 0, -1):
        for end in range(len(text) - 1, size - 1, -1):  # after the occurrence
            if text[end - size : end] == text[-size:]:
                period = text[end:]
                return (period * count)[:count]
        for document in reversed(memory or []):
            for end in range(len(document) - 1, size - 1, -1):
                if document[end - size : end] == text[-size:]:
                    tokens = document[end : end + count]
                    return tokens + [-1] * (count - len(tokens))
    return [-1] * count
