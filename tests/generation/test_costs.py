"""Costs of steps; generations run by a clock that only their forward passes advance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import rest_store
import rest_store.generation.generate as entry
from rest_store.bench.baselines import tree_of
from rest_store.generation import costs as costs_module
from rest_store.generation import progress
from rest_store.generation.costs import ForwardCosts
from rest_store.generation.generator import Generator
from rest_store.generation.graphs import FixedVerifier
from rest_store.generation.verify import Step, Verifier
from tests.shared.tiny import Scripted, futures_of, prompts, right, tiny_model


def test_costs_are_unknown_before_the_first_step_and_then_a_guess() -> None:
    costs = ForwardCosts(0.1)
    assert costs.table(8) is None
    assert costs.plain() is None
    assert costs.wants_plain
    costs.observe(10, 2.0)
    table = costs.table(10)
    assert table is not None
    assert np.allclose(table, 1 + 0.1 * np.arange(11))


def test_costs_approach_what_is_measured_whatever_its_shape() -> None:
    """A kernel that is slower for a few rows than for some more, and one time in three a disturbance."""
    true = {0: 40.0, 3: 84.0, 7: 76.0, 15: 90.0, 31: 120.0}
    costs = ForwardCosts()
    for turn in range(9):
        for nodes, seconds in true.items():
            costs.observe(nodes, seconds * (5 if turn % 3 == 1 else 1))
    table = costs.table(31)
    assert table is not None
    for nodes, seconds in true.items():
        assert abs(table[nodes] - seconds) < 0.1 * seconds
    assert table[0] < table[7] < table[3], "the dip is seen"
    assert table[0] == 40.0
    assert costs.plain() == pytest.approx((40 * 2 + 3 * 40) / 3), "the mean, each time at most three times the median"


def test_a_single_time_of_a_width_is_not_trusted() -> None:
    """The first pass of a width may prepare what later ones use."""
    costs = ForwardCosts(0.04)
    costs.observe(0, 1.0)
    costs.observe(3, 5.0)
    table = costs.table(16)
    assert table is not None
    assert np.allclose(table, 1 + 0.04 * np.arange(17))
    costs.observe(3, 5.0)
    table = costs.table(16)
    assert table is not None
    assert table[3] > 3


def test_noise_of_narrow_steps_does_not_say_what_wide_ones_cost() -> None:
    """Steps with one draft token are a little shorter than plain ones by chance; those with twelve are not."""
    costs = ForwardCosts()
    costs.observe(0, 1.0)
    for _ in range(8):
        costs.observe(1, 0.9)
    costs.observe(12, 1.6)
    table = costs.table(16)
    assert table is not None
    assert table[16] > 1.3


def test_plain_steps_are_measured_anew_after_a_while() -> None:
    costs = ForwardCosts()
    costs.observe(0, 1.0)
    for _ in range(63):
        assert not costs.wants_plain
        costs.observe(8, 1.5)
    costs.observe(8, 1.5)
    assert costs.wants_plain
    costs.observe(0, 1.0)
    assert not costs.wants_plain


def test_what_was_measured_long_ago_is_forgotten() -> None:
    costs = ForwardCosts()
    for _ in range(9):
        costs.observe(0, 5.0)
    for _ in range(128):
        costs.observe(4, 2.0)
    costs.observe(0, 1.0)
    assert costs.plain() == 1.0


def test_costs_follow_a_context_that_grows() -> None:
    """Steps take twice as long after 640 of them; one in 64 is measured without drafts."""
    costs = ForwardCosts()
    plain = 0
    for step in range(640):
        level = 1 + step / 640
        if costs.wants_plain:
            plain += 1
            costs.observe(0, level)
        else:
            costs.observe(12, 1.4 * level)
    assert plain == 10
    plain_seconds, table = costs.plain(), costs.table(12)
    assert plain_seconds is not None
    assert table is not None
    assert 1.7 < plain_seconds <= 2
    assert 2.6 < table[12] <= 2.8


def test_what_earlier_generations_took_holds_while_steps_confirm_it() -> None:
    costs = ForwardCosts()
    for nodes, seconds in ((0, 1.0), (8, 1.5)) * 4:
        costs.observe(nodes, seconds)
    costs.begin()
    for turn in range(40):
        assert not costs.wants_plain
        costs.observe(8, 1.5 if turn != 20 else 9.0)
    assert costs.plain() == 1.0


@pytest.mark.parametrize("nodes", [8, 5], ids=["a width known before", "another width"])
def test_what_earlier_generations_took_is_forgotten_when_steps_contradict_it(nodes: int) -> None:
    costs = ForwardCosts()
    for known, seconds in ((0, 1.0), (8, 1.5)) * 6:
        costs.observe(known, seconds)
    costs.begin()
    plain = 0
    for _ in range(30):
        if costs.wants_plain:
            plain += 1
            costs.observe(0, 3.0)
        else:
            costs.observe(nodes, 4.0)
    assert costs.plain() == 3.0
    assert plain <= 3
    table = costs.table(8)
    assert table is not None
    assert abs(table[nodes] - 4.0) < 0.4


def test_a_generation_measures_and_hands_costs_to_its_session() -> None:
    model = tiny_model("llama")
    inputs = prompts(1)
    plain = model.generate(**inputs, max_new_tokens=60, do_sample=False)
    futures = futures_of(inputs, plain)
    given = []

    class Asking(Scripted):
        def draft(self, *, max_nodes: int, costs: Any) -> Any:
            given.append((max_nodes, costs))
            return super().draft(max_nodes=max_nodes, costs=costs)

    output = model.generate(
        **inputs,
        max_new_tokens=60,
        do_sample=False,
        custom_generate=entry.generate,
        drafter=lambda prompt: Asking(prompt, futures, right),
        max_nodes=9,
        return_dict_in_generate=True,
    )
    assert torch.equal(output.sequences, plain)
    assert all(1 <= nodes <= 9 and costs.shape == (nodes + 1,) and (costs > 0).all() for nodes, costs in given)
    assert given[-1][0] == 9


# --- Generations by a clock of their own ------------------------------------------------------------------------------


class Clock:
    """A clock that only forward passes advance, by `cost(draft tokens, tokens held)` seconds each."""

    def __init__(self) -> None:
        self.now = 0.0
        self.cost: Callable[[int, int], float] = lambda nodes, held: 0.01 * (1 + 0.03 * nodes)

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    for kind in (Verifier, FixedVerifier):

        def timed(self: Any, step: Step, run: Any = kind.run) -> torch.Tensor:
            logits: torch.Tensor = run(self, step)
            clock.now += clock.cost(step.width - 1, self.cache.end)
            return logits

        monkeypatch.setattr(kind, "run", timed)
    monkeypatch.setattr(progress, "time", clock)
    return clock


class Always:
    """Drafts a tree that is almost always wrong."""

    def __init__(self, prompt: list[int]) -> None:
        pass

    def draft(self, *, max_nodes: int, costs: Any) -> Any:
        return tree_of([[3] * min(4, max_nodes)])

    def accept(self, tokens: Any) -> None:
        pass

    def close(self) -> None:
        pass


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


@pytest.mark.parametrize("widths", [(9,), (5, 17)])
def test_fixed_widths_need_none_for_plain_steps(clock: Clock, widths: tuple[int, ...]) -> None:
    """The narrowest step is a plain one, however wide it is."""
    model = tiny_model("llama")
    inputs = prompts(1)
    plain = model.generate(**inputs, max_new_tokens=60, do_sample=False)
    futures = futures_of(inputs, plain)
    _, output = timed(model, clock, lambda prompt: Scripted(prompt, futures, right), 60, widths=widths)
    assert torch.equal(output.sequences, plain)
    assert output.statistics.forward_passes < 20


def test_drafting_goes_on_by_a_clock_that_stands_still(clock: Clock) -> None:
    model = tiny_model("llama")
    clock.cost = lambda nodes, held: 0.0
    for _ in range(2):
        _, output = timed(model, clock, [rest_store.PromptLookup()], 24)
        assert not output.statistics.drafts.errors
    assert output.statistics.drafts.asked


@pytest.mark.parametrize("nothing", [{"max_nodes": 0}, {"widths": (1,)}])
def test_where_nothing_may_be_drafted_nothing_pauses(clock: Clock, nothing: dict[str, Any]) -> None:
    _, output = timed(tiny_model("llama"), clock, Always, 24, **nothing)
    assert (output.statistics.drafts.asked, output.statistics.pauses) == (0, 0)


def test_drafting_pauses_although_plain_steps_used_to_cost_more(clock: Clock) -> None:
    """A plain generation on a machine under load, then one that is drafted for wrongly without that load."""
    model = tiny_model("llama")
    clock.cost = lambda nodes, held: 0.02
    timed(model, clock, None, 12)
    clock.cost = lambda nodes, held: 0.01 * (1 + 0.03 * nodes)
    took, output = timed(model, clock, Always, 200)
    assert output.statistics.pauses >= 3
    assert took < 1.03 * 199 * 0.01


def test_measuring_costs_little_and_nothing_where_it_is_known(clock: Clock) -> None:
    model = tiny_model("llama")
    inputs = prompts(1)
    plain = model.generate(**inputs, max_new_tokens=240, do_sample=False)
    futures = futures_of(inputs, plain)

    def drafter(prompt: list[int]) -> Scripted:
        return Scripted(prompt, futures, right)

    least = timed(model, clock, drafter, 240, adaptive=False)[0]
    first = timed(model, clock, drafter, 240)[0]
    later, output = timed(model, clock, drafter, 240)
    assert torch.equal(output.sequences, plain)
    step = clock.cost(5, 0)
    assert least < first < least + 2 * step
    assert later < least + step


def test_costs_are_kept_apart_by_what_they_depend_on(clock: Clock) -> None:
    model = tiny_model("llama")
    for options in ({}, {}, {"widths": (1, 17)}):
        timed(model, clock, Always, 5, **options)
    assert len(costs_module._known_policies[model]) == 2
    timed(model.to(torch.float64), clock, Always, 5)
    assert len(costs_module._known_policies[model]) == 3


def test_the_reader_of_a_stream_may_take_its_time(clock: Clock) -> None:
    model = tiny_model("llama")
    inputs = prompts(1)
    plain = model.generate(**inputs, max_new_tokens=60, do_sample=False)
    futures = futures_of(inputs, plain)
    generator = Generator(model, None, lambda prompt: Scripted(prompt, futures, right))
    passes = []
    for away in (0.0, 1.0):
        began = clock.now
        pieces = generator.begin(inputs, max_new_tokens=60, do_sample=False)
        read = 0.0
        for _ in pieces:
            clock.now += away
            read += away
        statistics = pieces.statistics
        assert statistics.pauses == 0
        assert abs(statistics.seconds - (clock.now - began - read)) < 1e-9
        passes.append(statistics.forward_passes)
    assert passes[1] <= passes[0] < 20


def test_a_padded_step_costs_what_its_width_costs(clock: Clock) -> None:
    model = tiny_model("llama")
    inputs = prompts(1)
    futures = futures_of(inputs, model.generate(**inputs, max_new_tokens=30, do_sample=False))
    given = []

    class Asking(Scripted):
        def draft(self, *, max_nodes: int, costs: Any) -> Any:
            given.append(costs)
            return super().draft(max_nodes=max_nodes, costs=costs)

    timed(model, clock, lambda prompt: Asking(prompt, futures, right), 30, widths=(1, 5, 17))
    table = given[-1]
    assert table.shape == (17,)
    assert len(set(table[1:5].tolist())) == 1
    assert len(set(table[5:].tolist())) == 1
    assert table[0] < table[1] < table[5]
