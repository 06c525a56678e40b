"""Drafts follow what steps cost, learned from the steps, and what they bring; asking that loses time pauses."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

import numpy as np
import pytest

from rest_store.drafting.costs import DraftPolicy, StepCosts

Cost = Callable[[int, int], float]  # milliseconds of a step by rows and draft tokens


def cpu(rows: int, drafted: int) -> float:
    return 20.5 + 0.95 * (rows + drafted)


def saturated(rows: int, drafted: int) -> float:
    return 0.1 + 1.0 * (rows + drafted)


def flat(rows: int, drafted: int) -> float:
    """A GPU that reads its weights for as long as few tokens take."""
    return 8.0 + 0.02 * (rows + drafted) + 0.3 * max(0, rows + drafted - 200)


def jumping(rows: int, drafted: int) -> float:
    """A model whose verification takes longer than a plain step, however few draft tokens there are."""
    return 10.0 + 0.02 * (rows + drafted) + 2.0 * (drafted > 0)


# --- Costs of a step --------------------------------------------------------------------------------------------------


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
    for step in range(100):
        drafted = int(chance.integers(0, 9))
        costs.observe(1, drafted, cpu(1, drafted) * (20 if step % 20 == 7 else 1))
    assert costs.table(1, 8) == pytest.approx([cpu(1, drafted) for drafted in range(9)], rel=0.05)


def test_a_clock_that_stands_still_is_survived() -> None:
    costs = StepCosts()
    for drafted in (0, 3, 0, 5, 0, 0, 2):
        costs.observe(2, drafted, 0.0)
        assert costs.table(2, 8).min() > 0


def test_costs_follow_the_load() -> None:
    costs, chance = StepCosts(), np.random.default_rng(0)
    for cost in (cpu, saturated):
        for _ in range(400):
            drafted = int(chance.integers(0, 30))
            costs.observe(8, drafted, cost(8, drafted))
    assert costs.table(8, 30) == pytest.approx([saturated(8, drafted) for drafted in range(31)], rel=0.1)


# --- Reliability of scores --------------------------------------------------------------------------------------------


def test_failed_promises_count_and_are_forgotten_in_time() -> None:
    policy = DraftPolicy()
    policy.judge(2, 1.0, 0.0)
    assert policy.reliability == 1.0, "that may be chance"
    policy.judge(2, 2 * 998.0 - 1, 2 * 248.0)
    assert policy.reliability == pytest.approx(0.3125)
    for _ in range(256):
        policy.wants_drafts()
    assert policy.reliability == pytest.approx(1.25 * 126 / 501)
    for _ in range(10_000):
        policy.wants_drafts()
    assert policy.reliability == 1.0


# --- Choice of draft tokens -------------------------------------------------------------------------------------------


def learned(cost: Cost, rows: int) -> DraftPolicy:
    policy, chance = DraftPolicy(), np.random.default_rng(0)
    for _ in range(64):
        drafted = int(chance.integers(0, 4 * rows))
        policy.observe(rows, drafted, cost(rows, drafted))
    return policy


@pytest.mark.parametrize(("rows", "least"), [(1, 0.044), (8, 0.27)])
def test_a_draft_token_pays_from_a_score_that_grows_with_the_batch(rows: int, least: float) -> None:
    """One more token costs 0.95 ms; where each row has the same single candidate, it has to bring as much."""
    policy = learned(cpu, rows)
    assert policy.min_score == 0, "all are asked for"
    for score in (0.8 * least, 1.2 * least):
        assert policy.chosen([[score]] * rows, rows) == [int(score > least)] * rows
        assert 0.3 * least < policy.min_score < 0.8 * least, "less than pays at present"


def test_good_draft_tokens_are_asked_for_however_little_they_seem_to_pay() -> None:
    policy = learned(saturated, 32)
    for _ in range(64):
        policy.chosen([[0.9, 0.9]] * 32, 32)
        policy.judge(32, 32.0, 0)
        assert policy.min_score <= 0.5


@pytest.mark.parametrize(
    ("cost", "rows", "scores", "counts"),
    [
        (cpu, 8, [[0.9, 0.8, 0.1], [0.3, 0.02], [], [0.7, 0.65]], [2, 0, 0, 2]),
        (cpu, 3, [[0.5] * 4, [0.5], [0.5] * 2], [4, 1, 2]),
        (saturated, 32, [[0.9, 0.9]] * 32, [0] * 32),
        (cpu, 2, [], []),
        (cpu, 2, [[], []], [0, 0]),
    ],
    ids=["the best of all rows", "equal scores alike", "none on a saturated machine", "no session", "no draft token"],
)
def test_draft_tokens_of_a_batch_are_chosen(
    cost: Cost, rows: int, scores: list[list[float]], counts: list[int]
) -> None:
    assert learned(cost, rows).chosen(scores, rows) == counts


def test_costs_for_a_session_are_those_of_steps_until_promises_fail() -> None:
    policy = learned(cpu, 1)
    before = policy.costs(1, 16)
    assert before == pytest.approx([cpu(1, drafted) for drafted in range(17)], rel=0.05)
    for _ in range(100):
        policy.judge(1, 4.0, 1.0)
    after = policy.costs(1, 16)
    assert after[0] == before[0]
    assert after[16] - after[0] == pytest.approx(3.2 * (before[16] - before[0]), rel=0.1)


# --- Generations by a clock of known costs ----------------------------------------------------------------------------


class Run(NamedTuple):
    tokens: float
    milliseconds: float
    asked: int

    @property
    def speed(self) -> float:
        return self.tokens / self.milliseconds


def run(
    policy: DraftPolicy | None,
    cost: Cost,
    rows: int,
    likely: float,
    drafting: float | Callable[[int], float],
    steps: int = 600,
    *,
    kept: float = 1.0,
) -> Run:
    """Decode with chains whose tokens have scores as if each was accepted with probability `likely`.

    Args:
        policy: decides; None: no drafts.
        cost: of a step.
        rows: of the batch.
        likely: of each draft token, given that those before it are accepted.
        drafting: milliseconds of drafting, or a function of the number of the step that asks.
        steps: how many.
        kept: part of the promised tokens that is accepted.
    """
    chance = np.random.default_rng(0)
    tokens, milliseconds, asked = 0.0, 0.0, 0
    for _ in range(steps):
        drafted, promised, time = 0, 0.0, 0.0
        asks = policy is not None and policy.wants_drafts()
        if policy is not None and asks:
            asked += 1
            scores = [likely**depth for depth in range(1, 9)] if likely else []
            counts = policy.chosen([scores] * rows, rows)
            drafted = sum(counts)
            promised = sum(sum(scores[:count]) for count in counts)
            time = drafting(asked) if callable(drafting) else drafting
        seconds = cost(rows, drafted) * chance.lognormal(0, 0.05)
        if policy is not None:
            policy.observe(rows, drafted, seconds)
            if asks:
                policy.settle(rows, drafted, promised, time)
                policy.judge(rows, promised, promised * kept)
        tokens += rows + promised * kept
        milliseconds += time + seconds
    return Run(tokens, milliseconds, asked)


LOADS = [
    (cost, rows) for cost in (cpu, saturated, flat, jumping) for rows in (1, 16, 128) if (cost, rows) != (saturated, 1)
]


@pytest.mark.parametrize(("cost", "rows"), LOADS)
@pytest.mark.parametrize("likely", [0.0, 0.1, 0.4, 0.8])
def test_no_load_is_slower_than_without_drafts(cost: Cost, rows: int, likely: float) -> None:
    assert run(DraftPolicy(), cost, rows, likely, 0.02 * rows).speed >= 0.98 * run(None, cost, rows, likely, 0).speed


@pytest.mark.parametrize(("cost", "rows", "gain"), [(cpu, 1, 2.5), (cpu, 8, 1.5), (flat, 16, 3.0)])
def test_drafts_that_pay_are_made(cost: Cost, rows: int, gain: float) -> None:
    assert run(DraftPolicy(), cost, rows, 0.8, 0.02 * rows).speed >= gain * run(None, cost, rows, 0.8, 0).speed


@pytest.mark.parametrize(("cost", "rows"), LOADS)
@pytest.mark.parametrize("likely", [0.1, 0.4, 0.8])
@pytest.mark.parametrize(("before", "steps", "part"), [(0, 128, 0.94), (0, 600, 0.97), (200, 600, 0.98)])
def test_promises_that_are_not_kept_cost_little(
    cost: Cost, rows: int, likely: float, before: int, steps: int, part: float
) -> None:
    """As for random text, in which matches say nothing."""
    policy, plain = DraftPolicy(), run(None, cost, rows, likely, 0, steps)
    run(policy, cost, rows, likely, 0.02 * rows, before, kept=0.0)
    assert run(policy, cost, rows, likely, 0.02 * rows, steps, kept=0.0).speed >= part * plain.speed


@pytest.mark.parametrize("likely", [0.1, 0.4, 0.8])
def test_one_step_shows_that_no_draft_token_pays(likely: float) -> None:
    """Each takes as long as a plain step, so that a chain is many times as long as what was known."""
    policy, plain = DraftPolicy(), run(None, saturated, 1, likely, 0)
    run(policy, saturated, 1, likely, 0.02, 200, kept=0.0)
    assert run(policy, saturated, 1, likely, 0.02, kept=0.0).speed >= 0.98 * plain.speed


@pytest.mark.parametrize("drafting", [0.0, 0.05])
@pytest.mark.parametrize("steps", [16, 64, 512])
def test_a_generation_whose_scores_are_wrong_loses_two_steps_and_a_fiftieth(drafting: float, steps: int) -> None:
    """What steps cost is known: 1, and 0.1 for each of the 8 draft tokens that are to bring one."""
    policy = DraftPolicy()
    for drafted in (0, 8, 16) * 9:
        policy.observe(1, drafted, 1 + 0.1 * drafted)
    lost = 0.0
    for _ in range(steps):
        asks = policy.wants_drafts()
        costs = policy.costs(1, 8)
        drafted = 8 if asks and 2 / costs[8] >= 1 / costs[0] else 0
        policy.observe(1, drafted, 1 + 0.1 * drafted)
        if asks:
            policy.settle(1, drafted, drafted / 8, drafting)
            policy.judge(1, drafted / 8, 0.0)
        lost += 0.1 * drafted + drafting * asks
    assert lost < 2 + 0.02 * steps


@pytest.mark.parametrize(("cost", "rows"), [(cpu, 1), (cpu, 8), (flat, 16), (jumping, 4)])
def test_drafts_are_made_again_once_promises_are_kept(cost: Cost, rows: int) -> None:
    policy = DraftPolicy()
    run(policy, cost, rows, 0.3, 0.02 * rows, kept=0.0)
    always, again = (run(judge, cost, rows, 0.8, 0.02 * rows) for judge in (DraftPolicy(), policy))
    assert again.speed >= 0.9 * always.speed


def test_a_generation_does_not_distrust_scores_for_what_others_were() -> None:
    policy = DraftPolicy()
    run(policy, cpu, 1, 0.3, 20.0, kept=0.0)
    policy.begin()
    assert run(policy, cpu, 1, 0.8, 0.1, 60).asked >= 58


@pytest.mark.parametrize("rows", [1, 4, 16])
@pytest.mark.parametrize("likely", [0.3, 0.6, 0.8])
def test_chance_changes_hardly_a_choice(rows: int, likely: float) -> None:
    """Promises that are kept on average are believed, though some steps accept nothing."""
    chance, scores = np.random.default_rng(0), [[likely**depth for depth in range(1, 9)]] * rows
    judged, other = learned(cpu, rows), learned(cpu, rows)
    same = 0
    for _ in range(400):
        judged.wants_drafts()
        counts = judged.chosen(scores, rows)
        same += counts == other.chosen(scores, rows)
        runs = np.cumprod(chance.random((rows, 8)) < likely, axis=1).sum(axis=1).tolist()
        promised = sum(sum(row[:count]) for row, count in zip(scores, counts, strict=True))
        judged.judge(rows, promised, sum(map(min, runs, counts)))
    assert same >= 380


def test_slow_drafting_pauses() -> None:
    """As of a service that takes as long as a step, for drafts that are worth less."""
    policy = DraftPolicy()
    assert run(policy, cpu, 1, 0.2, 20.0).asked < 20
    assert run(policy, cpu, 1, 0.8, 0.1).asked > 500, "it is asked again once it pays"


def test_drafting_that_costs_nothing_to_speak_of_does_not_pause() -> None:
    assert run(DraftPolicy(), cpu, 1, 0.0, 0.05).asked > 590


@pytest.mark.parametrize("share", [0.02, 0.1, 1.0, 3.0])
def test_asking_for_nothing_costs_little(share: float) -> None:
    """As of a service whose datastore knows nothing of the text: `share` is of a plain step."""
    plain = run(None, cpu, 1, 0.0, 0)
    assert run(DraftPolicy(), cpu, 1, 0.0, share * 21.45).speed >= 0.95 * plain.speed


@pytest.mark.parametrize("number", [1, 2, 20])
@pytest.mark.parametrize("extra", [2.5, 10.0, 1000.0])
def test_one_slow_draft_costs_little_more_than_itself(number: int, extra: float) -> None:
    undisturbed = run(DraftPolicy(), cpu, 1, 0.7, 0.1, 96)
    disturbed = run(DraftPolicy(), cpu, 1, 0.7, lambda asked: 0.1 + extra * 21.45 * (asked == number), 96)
    assert undisturbed.tokens - disturbed.tokens <= 10


@pytest.mark.parametrize("period", [1, 2, 5])
@pytest.mark.parametrize(("length", "asked"), [(64, 2.5), (256, 3.5), (2048, 14)])
def test_a_source_that_is_often_slow_is_asked_less_and_less(period: int, length: int, asked: float) -> None:
    """It brings one token a step, and costs 2.5 plain steps each time on average."""
    policy, seconds, written, drafts = DraftPolicy(), 0.0, 0, 0
    while written < length:
        asks = policy.wants_drafts()
        drafts += asks
        drafted = policy.chosen([[0.95]], 1)[0] if asks else 0
        drafting = (0.03 + 2.5 * period * (drafts % period == 1 % period)) * asks
        policy.observe(1, drafted, 1 + 0.04 * drafted)
        if asks:
            policy.settle(1, drafted, 0.95 * drafted, drafting)
            policy.judge(1, 0.95 * drafted, drafted)
        written += 1 + drafted
        seconds += 1 + 0.04 * drafted + drafting
    assert seconds < length + asked * 2.5 * period


def test_after_the_longest_pause_a_source_is_tried_again() -> None:
    """As in an engine, which runs for days: an hour of stalls does not end drafting."""
    policy = DraftPolicy()
    run(policy, cpu, 1, 0.5, 1e5, 5000)
    paused = 0
    while not policy.wants_drafts():
        policy.observe(1, 0, 21.45)
        paused += 1
    assert paused <= 129
    assert run(policy, cpu, 1, 0.8, 0.1, 600).asked > 450


@pytest.mark.parametrize(("gain", "seldom"), [(0.0, True), (0.2, True), (0.5, False)])
def test_services_are_asked_while_they_bring_what_they_cost(gain: float, seldom: bool) -> None:
    """They take 0.3 of a plain step, and everything else drafts on."""
    policy, asked = DraftPolicy(), 0
    for _ in range(600):
        if policy.wants_drafts():
            services = policy.wants_services()
            asked += services
            policy.observe(1, 4, 1.1)
            policy.settle(1, 4, 1.0, 0.01 + 0.3 * services, 0.3 * services)
            policy.judge(1, 1.0, 1.0, gain * services)
        else:
            assert not policy.is_paused
            policy.observe(1, 0, 1.0)
    assert asked < 120 if seldom else asked > 580


def some_slow(chance: Random) -> Callable[[], float]:
    """A third of all steps takes three times as long on average, with drafts or without."""
    return lambda: 1 + chance.expovariate(0.5) * (chance.random() < 1 / 3)


def slow_for_a_while(chance: Random) -> Callable[[], float]:
    """Steps take three times as long, or not, for twenty steps on average."""
    slow = iter([number % 2 for number in range(99) for _ in range(round(chance.expovariate(1 / 20)))])
    return lambda: 1 + 2 * next(slow)


def slow_at_first(chance: Random) -> Callable[[], float]:
    slow = iter([1] * chance.randrange(1, 5))
    return lambda: 1 + 3 * next(slow, 0)


def slow_later(chance: Random) -> Callable[[], float]:
    fast = iter([1] * chance.randrange(2, 60))
    return lambda: 3 - 2 * next(fast, 0)


LOADS_OF_OTHERS = [some_slow, slow_for_a_while, slow_at_first, slow_later]


@pytest.mark.parametrize("load", LOADS_OF_OTHERS)
@pytest.mark.parametrize("likely", [0.4, 0.6, 0.8])
def test_other_work_on_the_machine_hardly_changes_what_is_drafted(
    load: Callable[[Random], Callable[[], float]], likely: float
) -> None:
    """Of new policies, in a first generation of 128 steps: M moves by a few percent, seldom by more."""
    quiet, ratios = run(DraftPolicy(), cpu, 1, likely, 0.1, 128).tokens, []
    for seed in range(24):
        factor = load(Random(seed))
        loaded = run(DraftPolicy(), lambda rows, drafted: cpu(rows, drafted) * factor(), 1, likely, 0.1, 128)  # noqa: B023
        ratios.append(loaded.tokens / quiet)
    assert 0.93 < np.mean(ratios) < 1.07
    assert min(ratios) > 0.65


@pytest.mark.parametrize("likely", [0.0, 0.7])
def test_other_work_on_the_machine_is_not_charged_to_drafts(likely: float) -> None:
    gains = []
    for seed in range(12):
        speeds = []
        for policy in (None, DraftPolicy()):
            factor = some_slow(Random(seed))
            speeds.append(run(policy, lambda rows, drafted: cpu(rows, drafted) * factor(), 1, likely, 0.1, 128).speed)  # noqa: B023
        gains.append(speeds[1] / speeds[0])
    assert np.mean(gains) > (1.6 if likely else 0.95)
