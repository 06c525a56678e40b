"""Draft lengths follow what steps cost, which is learned from the steps; drafting that does not pay pauses."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

from rest_store.engines.goodput import Goodput, StepCosts

Cost = Callable[[int, int], float]  # milliseconds of a step by rows and draft tokens


def cpu(rows: int, drafted: int) -> float:
    return 20.5 + 0.95 * (rows + drafted)


def saturated(rows: int, drafted: int) -> float:
    return 0.1 + 1.0 * (rows + drafted)


def flat(rows: int, drafted: int) -> float:
    """A GPU that reads its weights for as long as few tokens take."""
    return 8.0 + 0.02 * (rows + drafted) + 0.3 * max(0, rows + drafted - 200)


def jumping(rows: int, drafted: int) -> float:
    """An engine whose verification takes longer than sampling, however few draft tokens there are."""
    return 10.0 + 0.02 * (rows + drafted) + 2.0 * (drafted > 0)


def test_an_unknown_machine_is_taken_to_be_an_ordinary_one() -> None:
    times = StepCosts().table(1, 8)
    assert np.all(np.diff(times) > 0)
    assert times[8] < 1.5 * times[0]


@pytest.mark.parametrize("cost", [cpu, saturated, jumping])
@pytest.mark.parametrize("rows", [1, 8, 32])
def test_costs_are_learned(cost: Cost, rows: int) -> None:
    costs, chance = StepCosts(), np.random.default_rng(0)
    for _ in range(100):
        drafted = int(chance.integers(0, 6 * rows)) * int(chance.random() < 0.9)
        costs.observe(rows, drafted, cost(rows, drafted) * chance.lognormal(0, 0.05))
    expected = [cost(rows, drafted) for drafted in range(6 * rows)]
    assert costs.table(rows, 6 * rows - 1) == pytest.approx(expected, rel=0.1)


def test_a_few_slow_steps_change_little() -> None:
    costs, chance = StepCosts(), np.random.default_rng(0)
    for place in range(100):
        drafted = int(chance.integers(0, 9))
        costs.observe(1, drafted, cpu(1, drafted) * (20 if place % 20 == 7 else 1))
    assert costs.table(1, 8) == pytest.approx([cpu(1, drafted) for drafted in range(9)], rel=0.05)


def test_a_clock_that_stands_still_is_survived() -> None:
    costs = StepCosts()
    for drafted in (0, 3, 0, 5, 0, 0, 2):
        costs.observe(2, drafted, 0.0)
        assert min(costs.table(2, 8)) > 0


def test_costs_follow_the_load() -> None:
    costs, chance = StepCosts(), np.random.default_rng(0)
    for cost in (cpu, saturated):
        for _ in range(400):
            drafted = int(chance.integers(0, 30))
            costs.observe(8, drafted, cost(8, drafted))
    assert costs.table(8, 30) == pytest.approx([saturated(8, drafted) for drafted in range(31)], rel=0.1)


def test_steps_of_one_width_leave_the_slope_as_assumed() -> None:
    costs = StepCosts()
    for _ in range(100):
        costs.observe(4, 32, 50.0)
    times = costs.table(4, 32)
    assert times[32] == pytest.approx(50.0, rel=0.05)
    assert 0.3 < times[0] / times[32] < 0.9


def learned(cost: Cost, rows: int) -> Goodput:
    goodput, chance = Goodput(), np.random.default_rng(0)
    for _ in range(64):
        drafted = int(chance.integers(0, 4 * rows))
        goodput.observe(rows, drafted, cost(rows, drafted))
    return goodput


@pytest.mark.parametrize(("rows", "least"), [(1, 0.044), (8, 0.27)])
def test_a_draft_token_pays_from_a_score_that_grows_with_the_batch(rows: int, least: float) -> None:
    """One more token costs 0.95 ms; where each row has the same single candidate, it has to bring as much."""
    goodput = learned(cpu, rows)
    assert goodput.min_score == 0, "all are asked for"
    for score in (0.8 * least, 1.2 * least):
        assert goodput.chosen([[score]] * rows, rows) == [int(score > least)] * rows
        assert 0.3 * least < goodput.min_score < 0.8 * least, "less than pays at present"


def test_good_draft_tokens_are_asked_for_however_little_they_seem_to_pay() -> None:
    goodput = learned(saturated, 32)
    for _ in range(64):
        goodput.chosen([[0.9, 0.9]] * 32, 32)
        goodput.judge(32.0, 0)
        assert goodput.min_score <= 0.5


def test_the_best_of_all_rows_are_chosen() -> None:
    scores = [[0.9, 0.8, 0.1], [0.3, 0.02], [], [0.7, 0.65]]
    assert learned(cpu, 8).chosen(scores, 8) == [2, 0, 0, 2]


def test_equal_scores_are_treated_alike() -> None:
    assert learned(cpu, 3).chosen([[0.5] * 4, [0.5], [0.5] * 2], 3) == [4, 1, 2]


def test_a_saturated_machine_drafts_nothing() -> None:
    assert learned(saturated, 32).chosen([[0.9, 0.9]] * 32, 32) == [0] * 32


def test_nothing_to_choose_from() -> None:
    assert learned(cpu, 2).chosen([], 2) == []
    assert learned(cpu, 2).chosen([[], []], 2) == [0, 0]


def chain_scores(likely: float) -> list[float]:
    """The scores of eight tokens, each accepted with probability `likely`."""
    return [likely**place for place in range(1, 9)]


class Run(NamedTuple):
    tokens: float
    milliseconds: float
    asked: int


def run(
    goodput: Goodput | None,
    cost: Cost,
    rows: int,
    likely: float,
    drafting: float,
    steps: int = 600,
    *,
    honest: bool = True,
) -> Run:
    """Decode with chains whose tokens have scores as if each was accepted with probability `likely`.

    If the scores are honest, as many are accepted as they promise, else none.
    """
    chance = np.random.default_rng(0)
    tokens, milliseconds, asked = 0.0, 0.0, 0
    for _ in range(steps):
        drafted, time = 0, 0.0
        if goodput is not None and goodput.wants_drafts():
            asked += 1
            scores = chain_scores(likely) if likely else []
            counts = goodput.chosen([scores] * rows, rows)
            drafted = sum(counts)
            promised = sum(sum(scores[:count]) for count in counts)
            tokens += promised * honest
            goodput.settle(drafting)
            goodput.judge(promised, promised * honest)
            time += drafting
        seconds = cost(rows, drafted) * chance.lognormal(0, 0.05)
        if goodput is not None:
            goodput.observe(rows, drafted, seconds)
        tokens += rows
        milliseconds += time + seconds
    return Run(tokens, milliseconds, asked)


@pytest.mark.parametrize(
    ("cost", "rows"),
    [
        (cost, rows)
        for cost in (cpu, saturated, flat, jumping)
        for rows in (1, 16, 128)
        if (cost, rows) != (saturated, 1)
    ],
)
@pytest.mark.parametrize("likely", [0.0, 0.1, 0.4, 0.8])
def test_no_load_is_slower_than_without_drafts(cost: Cost, rows: int, likely: float) -> None:
    plain = run(None, cost, rows, likely, 0)
    drafted = run(Goodput(), cost, rows, likely, 0.02 * rows)
    assert drafted.tokens / drafted.milliseconds >= 0.98 * plain.tokens / plain.milliseconds


@pytest.mark.parametrize(("cost", "rows", "gain"), [(cpu, 1, 2.5), (cpu, 8, 1.5), (flat, 16, 3.0)])
def test_drafts_that_pay_are_made(cost: Cost, rows: int, gain: float) -> None:
    plain = run(None, cost, rows, 0.8, 0)
    drafted = run(Goodput(), cost, rows, 0.8, 0.02 * rows)
    assert drafted.tokens / drafted.milliseconds >= gain * plain.tokens / plain.milliseconds


@pytest.mark.parametrize("cost", [cpu, saturated, flat, jumping])
@pytest.mark.parametrize("rows", [1, 16])
@pytest.mark.parametrize("likely", [0.1, 0.4, 0.8])
def test_promises_that_are_not_kept_cost_little(cost: Cost, rows: int, likely: float) -> None:
    """As for random text, in which matches say nothing."""
    goodput = Goodput()
    run(goodput, cost, rows, likely, 0.02 * rows, 200, honest=False)
    plain = run(None, cost, rows, likely, 0)
    drafted = run(goodput, cost, rows, likely, 0.02 * rows, honest=False)
    assert drafted.tokens / drafted.milliseconds >= 0.98 * plain.tokens / plain.milliseconds


@pytest.mark.parametrize(("cost", "rows"), [(cpu, 1), (cpu, 8), (flat, 16), (jumping, 4)])
def test_drafts_are_made_again_once_promises_are_kept(cost: Cost, rows: int) -> None:
    goodput = Goodput()
    run(goodput, cost, rows, 0.3, 0.02 * rows, honest=False)
    always, again = (run(judge, cost, rows, 0.8, 0.02 * rows) for judge in (Goodput(), goodput))
    assert again.tokens / again.milliseconds >= 0.9 * always.tokens / always.milliseconds


@pytest.mark.parametrize("rows", [1, 4, 16])
@pytest.mark.parametrize("likely", [0.3, 0.6, 0.8])
def test_chance_changes_no_choice(rows: int, likely: float) -> None:
    """Promises that are kept on average are believed, though some steps accept nothing."""
    chance, scores = np.random.default_rng(0), [chain_scores(likely)] * rows
    judged, other = learned(cpu, rows), learned(cpu, rows)
    same = 0
    for _ in range(400):
        judged.wants_drafts()
        counts = judged.chosen(scores, rows)
        same += counts == other.chosen(scores, rows)
        runs = np.cumprod(chance.random((rows, 8)) < likely, axis=1).sum(axis=1).tolist()
        promised = sum(sum(row[:count]) for row, count in zip(scores, counts, strict=True))
        judged.judge(promised, sum(map(min, runs, counts)))
    assert same >= 380


def test_half_kept_promises_count_half() -> None:
    """One more token costs 0.95 ms, which a score of 0.06 brings in at one row, and one of 0.03 does not."""
    goodput = learned(cpu, 1)
    assert goodput.chosen([[0.06]], 1) == [1]
    for _ in range(100):
        goodput.judge(4.0, 1.6)
    assert goodput.chosen([[0.06]], 1) == [0]
    assert goodput.chosen([[0.12]], 1) == [1]


def test_broken_promises_are_forgotten() -> None:
    goodput = learned(cpu, 1)
    for _ in range(100):
        goodput.judge(2.0, 0.0)
    assert goodput.chosen([[0.3]], 1) == [0]
    for _ in range(1000):
        goodput.wants_drafts()
    assert goodput.chosen([[0.3]], 1) == [1]


def test_slow_drafting_pauses() -> None:
    """As of a service that takes as long as a step, for drafts that are worth less."""
    goodput = Goodput()
    assert run(goodput, cpu, 1, 0.2, 20.0).asked < 60
    assert run(goodput, cpu, 1, 0.8, 0.1).asked > 500, "it is asked again once it pays"


def test_drafting_that_costs_nothing_to_speak_of_does_not_pause() -> None:
    assert run(Goodput(), cpu, 1, 0.0, 0.05).asked > 590


def test_a_plain_step_is_measured_now_and_then() -> None:
    goodput = Goodput()
    plain = 0
    for _ in range(1000):
        plain += not goodput.wants_drafts()
        goodput.observe(4, 8, 30.0)
    assert plain == 9
