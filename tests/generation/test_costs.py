"""What steps are found to cost, and whether drafting pays; generations run by a clock that only their steps advance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import rest_store.generation.generate as entry
from rest_store.generation import costs as costs_module
from rest_store.generation import progress
from rest_store.generation.costs import DraftPolicy, ForwardCosts
from rest_store.generation.generator import Generator
from rest_store.generation.graphs import FixedVerifier
from rest_store.generation.verify import Step, Verifier
from tests.shared.tiny import Scripted, futures_of, prompts, right, tiny_model, wrong


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
    assert costs.plain() == 40.0


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
    found, table = costs.plain(), costs.table(12)
    assert found is not None
    assert table is not None
    assert 1.7 < found <= 2
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


class Known(ForwardCosts):
    """Costs that are known: of a plain step `seconds`, or unknown if that is None."""

    def __init__(self, seconds: float | None = 1.0) -> None:
        super().__init__()
        self.seconds = seconds

    @property
    def wants_plain(self) -> bool:
        return False

    def plain(self) -> float | None:
        return self.seconds


def simulate(tokens: float, cost: float, steps: int) -> tuple[int, int, DraftPolicy]:
    """Steps drafted for, and not, if a drafted step brings `tokens` and costs `cost` times a plain one."""
    policy = DraftPolicy(Known())
    drafted = 0
    for _ in range(steps):
        if policy.drafts():
            drafted += 1
            policy.observe(8, tokens, cost - 0.1, 0.1)
        else:
            policy.observe(0, 1.0, 1.0, 0.0)
    return drafted, steps - drafted, policy


def test_drafting_that_pays_goes_on() -> None:
    assert simulate(2.0, 1.7, 300)[0] == 300


def test_drafting_that_does_not_pay_pauses_longer_and_longer() -> None:
    drafted, plain, policy = simulate(1.0, 1.7, 256)
    assert policy.pauses >= 3
    assert 0.7 * drafted < 0.05 * (drafted + plain), "less than a twentieth lost"


def test_slow_drafts_do_not_pay_although_forward_passes_would() -> None:
    policy = DraftPolicy(Known())
    for _ in range(6):
        assert policy.drafts()
        policy.observe(8, 2.0, 1.2, 1.0)
    assert policy.pauses == 1
    assert not policy.drafts()


def test_drafting_is_tried_again() -> None:
    policy = DraftPolicy(Known())
    drafted = []
    for step in range(400):
        drafted.append(policy.drafts())
        policy.observe(8, 1.0 if step < 40 else 3.0, 1.5, 0.0)
    assert not all(drafted[:40])
    assert all(drafted[-200:])


def test_nothing_is_decided_before_the_cost_of_a_plain_step_is_known() -> None:
    policy = DraftPolicy(Known(None))
    for _ in range(50):
        assert policy.drafts()
        policy.observe(8, 1.0, 9.0, 0.0)


def test_a_policy_that_is_not_adaptive_always_drafts() -> None:
    policy = DraftPolicy(Known(), adaptive=False)
    for _ in range(50):
        assert policy.drafts()
        policy.observe(8, 1.0, 9.0, 0.0)
    assert policy.table([0, 8]) is None


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
    assert {nodes for nodes, _ in given} == {9}
    tables = [costs for _, costs in given if costs is not None]
    assert tables
    assert all(table.shape == (10,) and (table > 0).all() for table in tables)


# --- Generations by a clock of their own ------------------------------------------------------------------------------


class Clock:
    """Time that stands still but for forward passes, which take `cost(draft tokens, tokens held)` seconds each."""

    def __init__(self) -> None:
        self.now = 0.0
        self.cost: Callable[[int, int], float] = lambda nodes, held: 0.01 * (1 + 0.03 * nodes)

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    found = Clock()
    for kind in (Verifier, FixedVerifier):

        def timed(self: Any, step: Step, run: Any = kind.run) -> torch.Tensor:
            logits: torch.Tensor = run(self, step)
            found.now += found.cost(step.width - 1, self.cache.end)
            return logits

        monkeypatch.setattr(kind, "run", timed)
    monkeypatch.setattr(progress, "time", found)
    return found


class Always:
    """Drafts a tree of twelve nodes that is always wrong, or almost."""

    def __init__(self, prompt: list[int]) -> None:
        pass

    def draft(self, *, max_nodes: int, costs: Any) -> Any:
        return wrong([2] * 4, np.random.default_rng(0), max_nodes)

    def accept(self, tokens: Any) -> None:
        pass

    def close(self) -> None:
        pass


def timed(model: Any, clock: Clock, drafter: Any, new_tokens: int, **options: Any) -> tuple[float, Any]:
    """Seconds of a generation by the clock, and its output."""
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


def test_drafting_rests_although_plain_steps_used_to_cost_more(clock: Clock) -> None:
    """A plain generation on a machine under load, then one that is drafted for wrongly without that load."""
    model = tiny_model("llama")
    clock.cost = lambda nodes, held: 0.02
    timed(model, clock, None, 12)
    clock.cost = lambda nodes, held: 0.01 * (1 + 0.03 * nodes)
    took, output = timed(model, clock, Always, 200)
    assert output.statistics.pauses >= 3
    assert took < 1.02 * 199 * 0.01


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
    assert len(costs_module._known_costs[model]) == 2
    timed(model.to(torch.float64), clock, Always, 5)
    assert len(costs_module._known_costs[model]) == 3


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
    given = []

    class Asking(Always):
        def draft(self, *, max_nodes: int, costs: Any) -> Any:
            given.append(costs)
            return super().draft(max_nodes=max_nodes, costs=costs)

    timed(tiny_model("llama"), clock, Asking, 30, widths=(1, 5, 17))
    table = given[-1]
    assert table.shape == (17,)
    assert len(set(table[1:5].tolist())) == 1
    assert len(set(table[5:].tolist())) == 1
    assert table[0] < table[1] < table[5]
