"""Graphs are captured once for many generations; here a stand-in that runs on a CPU captures them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import StaticCache

import rest_store
import rest_store.generation.generate as entry
from rest_store.generation import costs, graph_pool, progress
from rest_store.generation.graphs import FixedVerifier
from tests.shared.tiny import Scripted, bushy, futures_of, prompts, tiny_model

WIDTHS = (1, 5, 17)


class Replayed:
    """What a graph does: the captured step again, from and to the memory of then."""

    def __init__(self, verifier: FixedVerifier, inputs: torch.Tensor, width: int) -> None:
        self.verifier, self.inputs, self.width = weakref.ref(verifier), inputs, width
        self.logits = verifier._run(inputs, width).clone()
        self.places = self.places_now()

    def places_now(self) -> list[int]:
        verifier = self.verifier()
        assert verifier is not None
        tensors = [self.inputs, self.logits, verifier._seen, verifier._origin]
        for group in verifier.cache.groups:
            tensors += [group.keys, group.values]
        return [tensor.data_ptr() for tensor in [*tensors, *verifier.model.parameters()]]

    def replay(self) -> None:
        assert self.places_now() == self.places, "a graph reads and writes where it was captured"
        verifier = self.verifier()
        assert verifier is not None
        self.logits.copy_(verifier._run(self.inputs, self.width))


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The widths that were captured, each of them slowly by the loop's clock."""
    widths: list[int] = []
    original = FixedVerifier.__init__

    def capturing(self: FixedVerifier, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **{**options, "capture": True})

    def capture(self: FixedVerifier, inputs: torch.Tensor, width: int) -> tuple[Any, torch.Tensor]:
        widths.append(width)
        graph = Replayed(self, inputs, width)
        return graph, graph.logits

    monkeypatch.setattr(FixedVerifier, "__init__", capturing)
    monkeypatch.setattr(FixedVerifier, "_capture_graph", capture)
    return widths


def agrees(model: Any, inputs: dict[str, torch.Tensor], new_tokens: int = 40, **options: Any) -> Any:
    """The output drafted with fixed widths, which is the plain one."""
    plain = model.generate(**inputs, max_new_tokens=new_tokens, do_sample=False)
    futures = futures_of(inputs, plain)
    output = model.generate(
        **inputs,
        max_new_tokens=new_tokens,
        do_sample=False,
        custom_generate=entry.generate,
        drafter=lambda prompt: Scripted(prompt, futures, bushy),
        return_dict_in_generate=True,
        **{"widths": WIDTHS, "adaptive": False, **options},
    )
    assert torch.equal(output.sequences, plain)
    assert output.statistics.drafts.accepted > 0
    return output


@pytest.mark.parametrize("architecture", ["llama", "mistral with a sliding window", "gemma3n"])
@pytest.mark.parametrize("rows", [1, 3])
def test_each_width_is_recorded_once_for_all_prompts(architecture: str, rows: int, captured: list[int]) -> None:
    model = tiny_model(architecture)
    for seed, length, padded in ((0, 14, True), (1, 14, False), (2, 31, True), (3, 9, True)):
        agrees(model, prompts(rows, length, seed=seed, padded=padded))
    assert sorted(captured) == sorted(set(captured))
    assert set(captured) <= set(WIDTHS)


def test_others_are_recorded_for_other_shapes_and_weights_and_the_oldest_dropped(captured: list[int]) -> None:
    model = tiny_model("llama")
    agrees(model, prompts(1))
    once = len(captured)
    agrees(model, prompts(2))
    assert len(captured) == 2 * once
    agrees(model, prompts(1))
    assert len(captured) == 2 * once, "both are kept"
    agrees(model, prompts(3))
    agrees(model, prompts(2))
    assert len(captured) == 4 * once, "two are kept"
    with torch.no_grad():
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.flip(0).clone())
    agrees(model, prompts(2))
    assert len(captured) == 5 * once, "captured with weights that are elsewhere now"


def test_others_are_recorded_for_a_narrower_window(captured: list[int]) -> None:
    model = tiny_model("mistral with a sliding window")
    for size in (80, 6, 80):
        caches = [StaticCache(config=model.config, max_cache_len=size) for _ in range(2)]
        fixed = {"max_new_tokens": 20, "do_sample": False}
        plain = model.generate(**prompts(1), **fixed, past_key_values=caches[0])
        generator = rest_store.Generator(model, widths=WIDTHS)
        output = generator.generate(prompts(1), **fixed, past_key_values=caches[1])
        assert torch.equal(output.sequences, plain)
    assert captured == [1, 1]


class Adapted(torch.nn.Module):
    """A layer with two adapters, of which one is in use, as those of PEFT."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer
        self.adapters = torch.nn.ModuleDict(
            {name: torch.nn.Linear(layer.in_features, layer.out_features) for name in ("one", "other")}
        )
        self.active = ["one"]

    def forward(self, rows: torch.Tensor) -> Any:
        return self.layer(rows) + self.adapters[self.active[0]](rows)


def test_others_are_recorded_for_another_adapter(captured: list[int]) -> None:
    model = tiny_model("llama")
    adapted = model.model.layers[0].mlp.down_proj = Adapted(model.model.layers[0].mlp.down_proj)
    agrees(model, prompts(1))
    once = len(captured)
    adapted.active = ["other"]
    agrees(model, prompts(1))
    assert len(captured) == 2 * once
    adapted.active = ["one"]
    agrees(model, prompts(1))
    assert len(captured) == 2 * once, "both are kept"


def test_what_is_kept_goes_with_its_model(captured: list[int]) -> None:
    model = tiny_model("llama")
    agrees(model, prompts(1))
    (kept,) = graph_pool._verifiers[model].values()
    gone, verifier = weakref.ref(model), weakref.ref(kept)
    del model, kept
    gc.collect()
    assert gone() is None
    assert verifier() is None


@pytest.mark.parametrize("way", ["dropped", "failed"])
def test_what_a_generation_recorded_before_it_was_left_is_kept(way: str, captured: list[int]) -> None:
    model = tiny_model("llama")
    inputs = prompts(1)
    generation = rest_store.Generator(model, widths=WIDTHS).begin(inputs, max_new_tokens=40, do_sample=False)
    for place, _ in enumerate(generation):
        if place == 3:
            break
    assert len(captured) == 1
    assert not graph_pool._verifiers.get(model)
    if way == "failed":
        with pytest.raises(AttributeError):
            generation.stream_to(None)
        assert graph_pool._verifiers[model], "at once"
    del generation
    assert graph_pool._verifiers[model]
    agrees(model, inputs)
    assert sorted(captured) == sorted(set(captured))


def test_a_step_that_was_recorded_is_no_measure_of_later_ones(
    captured: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model("llama")
    run = FixedVerifier.run

    class Clock:
        now = 0.0

        def perf_counter(self) -> float:
            return self.now

    clock = Clock()

    def timed(self: FixedVerifier, step: Any) -> torch.Tensor:
        before = len(captured)
        logits = run(self, step)
        clock.now += 1.0 if len(captured) > before else 0.01
        return logits

    monkeypatch.setattr(FixedVerifier, "run", timed)
    monkeypatch.setattr(progress, "time", clock)
    output = agrees(model, prompts(1), 100, adaptive=True)
    assert len(captured) > 1
    (policy,) = costs._known_policies[model].values()
    assert {round(time.seconds, 6) for times in policy._costs._times.values() for time in times} == {0.01}
    assert output.statistics.pauses == 1  # at first, until the credit pays for the narrowest tree


def test_steps_run_unrecorded_where_recording_fails(captured: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: FixedVerifier, inputs: torch.Tensor, width: int) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(FixedVerifier, "_capture_graph", fails)
    model = tiny_model("llama")
    with pytest.warns(RuntimeWarning, match="LlamaForCausalLM: no graph of a step .*not permitted"):
        agrees(model, prompts(2))
    assert not graph_pool._verifiers.get(model), "nothing to keep"
