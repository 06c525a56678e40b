"""Costs of steps; generations run by a clock that only their forward passes advance."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import rest_store
import rest_store.generation.generate as entry
from rest_store.datastore.tree import TokenTree
from rest_store.generation import loop
from rest_store.generation.verify import Verifier
from tests.shared.members import ScriptedSource, scored
from tests.shared.strategies import Corpus, write_datastore
from tests.shared.tiny import VOCABULARY, Drafted, Scripted, futures_of, prompts, right, tiny_model

# --- Generations by a clock of their own ------------------------------------------------------------------------------


class Clock:
    """A clock that only forward passes advance, by `cost(draft tokens, tokens held)` seconds each."""

    def __init__(self) -> None:
        self.now = 0.0
        self.cost: Callable[[int, int], float] = lambda nodes, held: 0.01 * (1 + 0.03 * nodes)

    def perf_counter(self) -> float:
        return self.now

    process_time = perf_counter


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock, run = Clock(), Verifier.run

    def timed(self: Verifier, last: Any, trees: Any, width: int) -> torch.Tensor:
        logits = run(self, last, trees, width)
        clock.now += clock.cost(width - 1, self.cache.end)
        return logits

    monkeypatch.setattr(Verifier, "run", timed)
    monkeypatch.setattr(loop, "time", clock)
    return clock


def timed(model: Any, clock: Clock, drafter: Any, new_tokens: int, **options: Any) -> tuple[float, Any]:
    """Return the seconds of a generation by the clock, and its output."""
    began = clock.now
    output = model.generate(
        **prompts(1),
        max_new_tokens=new_tokens,
        do_sample=False,
        custom_generate=entry.generate,
        drafter=drafter,
        return_dict_in_generate=True,
        **options,
    )
    return clock.now - began, output


def test_measuring_costs_little_and_nothing_where_it_is_known(clock: Clock) -> None:
    model = tiny_model("llama")
    inputs = prompts(1)
    plain = model.generate(**inputs, max_new_tokens=240, do_sample=False)
    futures = futures_of(inputs, plain)

    drafter = [Drafted(lambda prompt: Scripted(prompt, futures, right))]

    least = timed(model, clock, drafter, 240, adaptive=False)[0]
    first = timed(model, clock, drafter, 240)[0]
    later, output = timed(model, clock, drafter, 240)
    assert torch.equal(output.sequences, plain)
    step = clock.cost(5, 0)
    assert least < first < least + 2 * step
    assert later < least + step


def test_what_other_processes_do_to_the_time_of_steps_changes_no_draft() -> None:
    """Forward passes over trees wait for others, most of the time, and take no more of the processor's time."""
    model = tiny_model("llama")
    inputs = prompts(1)
    plain = model.generate(**inputs, max_new_tokens=120, do_sample=False)
    futures = futures_of(inputs, plain)
    chance = random.Random(5)

    def disturbed(module: Any, arguments: Any, options: dict[str, Any]) -> None:
        if options["input_ids"].shape[1] > 1 and chance.random() < 0.8:
            time.sleep(0.05)

    model.register_forward_pre_hook(disturbed, with_kwargs=True)
    output = model.generate(
        **inputs,
        max_new_tokens=120,
        do_sample=False,
        custom_generate=entry.generate,
        drafter=[Drafted(lambda prompt: Scripted(prompt, futures, right))],
        return_dict_in_generate=True,
    )
    assert torch.equal(output.sequences, plain)
    assert output.statistics.drafts.paused < 15
    assert output.statistics.mean_tokens > 3


def test_a_slow_service_that_adds_nothing_is_asked_less_while_the_rest_drafts_on(tmp_path: Path) -> None:
    class Slow(ScriptedSource):
        def receive(self, timeout: float | None) -> TokenTree:
            time.sleep(0.02)
            return super().receive(timeout)

    model = tiny_model("llama")
    plain = model.generate(**prompts(1), max_new_tokens=120, do_sample=False)
    store = rest_store.Datastore.open(write_datastore(tmp_path, Corpus(VOCABULARY, [[plain[0].tolist()]])))
    slow = Slow(scored([], [], []))
    output = model.generate(
        **prompts(1),
        max_new_tokens=120,
        do_sample=False,
        custom_generate=entry.generate,
        drafter=[store, slow],
        return_dict_in_generate=True,
    )
    assert torch.equal(output.sequences, plain)
    assert output.statistics.mean_tokens > 2
    assert len(slow.calls("receive")) < output.statistics.drafts.asked / 2
