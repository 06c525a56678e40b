"""Drafts follow what steps cost, learned from the steps, and what they bring.

Asking that loses time pauses.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

import numpy as np
import pytest

from rest_store.drafting.costs import StepCosts
from rest_store.drafting.draft_policy import DraftPolicy

Cost = Callable[[int], float]  # milliseconds of a step by draft tokens


def cpu(drafted: int) -> float:
    return 21.45 + 0.95 * drafted


def saturated(drafted: int) -> float:
    return 32.1 + 1.0 * drafted


def heavy(drafted: int) -> float:
    """A saturated machine with one sequence: a draft token takes as long as a plain step."""
    return 1.1 + 1.0 * drafted


def flat(drafted: int) -> float:
    """A GPU that reads its weights for as long as few tokens take."""
    return 8.0 + 0.02 * drafted


def jumping(drafted: int) -> float:
    """A model whose verification takes longer than a plain step, with any draft."""
    return 10.0 + 0.02 * drafted + 2.0 * (drafted > 0)


# --- Costs of a step ------------------------------------------------------------------------------


def test_an_unknown_machine_is_taken_to_be_an_ordinary_one() -> None:
    times = StepCosts().table(8)
    assert np.all(np.diff(times) > 0)
    assert times[8] < 1.5 * times[0]


@pytest.mark.parametrize("cost", [cpu, heavy, saturated, jumping])
def test_costs_are_learned(cost: Cost) -> None:
    costs = StepCosts()
    chance = np.random.default_rng(0)
    for _ in range(100):
        drafted = int(chance.integers(0, 16)) * int(chance.random() < 0.9)
        costs.observe(drafted, cost(drafted) * chance.lognormal(0, 0.05))
    expected = [cost(drafted) for drafted in range(16)]
    assert costs.table(15) == pytest.approx(expected, rel=0.1)


def test_a_clock_that_stands_still_is_survived() -> None:
    costs = StepCosts()
    for drafted in (0, 3, 0, 5, 0, 0, 2):
        costs.observe(drafted, 0.0)
        assert costs.table(8).min() > 0


def test_costs_follow_the_load() -> None:
    costs = StepCosts()
    chance = np.random.default_rng(0)
    for cost in (cpu, saturated):
        for _ in range(400):
            drafted = int(chance.integers(0, 30))
            costs.observe(drafted, cost(drafted))
    assert costs.table(30) == pytest.approx([saturated(drafted) for drafted in range(31)], rel=0.1)


# --- Reliability of scores ------------------------------------------------------------------------


def test_failed_promises_count_and_are_forgotten_in_time() -> None:
    policy = DraftPolicy()
    policy.learn(1, 0.5, 0.0, 0.0)
    assert policy.reliability == 1.0, "that may be chance"
    policy.learn(1, 997.5, 248.0, 0.0)
    assert policy.reliability == pytest.approx(0.3125)
    for _ in range(256):
        policy.wants_drafts()
    assert policy.reliability == pytest.approx(1.25 * 126 / 501)
    for _ in range(10_000):
        policy.wants_drafts()
    assert policy.reliability == 1.0


# --- Costs of draft tokens ------------------------------------------------------------------------


def learned(cost: Cost) -> DraftPolicy:
    policy = DraftPolicy()
    chance = np.random.default_rng(0)
    for _ in range(64):
        drafted = int(chance.integers(0, 16))
        policy.observe(drafted, cost(drafted))
    return policy


def cut(policy: DraftPolicy, scores: list[float]) -> int:
    """Return how many draft tokens of these scores, descending, a session keeps."""
    return int(np.argmax((1 + np.append(0.0, np.cumsum(scores))) / policy.costs(len(scores))))


def test_costs_for_a_session_are_those_of_steps_until_promises_fail() -> None:
    policy = learned(cpu)
    before = policy.costs(16)
    assert before == pytest.approx([cpu(drafted) for drafted in range(17)], rel=0.05)
    for _ in range(100):
        policy.learn(5, 4.0, 1.0, 0.0)
    after = policy.costs(16)
    assert after[0] == before[0]
    assert after[16] - after[0] == pytest.approx(3.2 * (before[16] - before[0]), rel=0.1)


# --- Generations by a clock of known costs --------------------------------------------------------


class Run(NamedTuple):
    tokens: float
    milliseconds: float
    requests: int

    @property
    def speed(self) -> float:
        return self.tokens / self.milliseconds


def run(
    policy: DraftPolicy | None,
    cost: Cost,
    likely: float,
    drafting: float | Callable[[int], float],
    steps: int = 600,
    *,
    share: float = 1.0,
) -> Run:
    """Decode with chains whose tokens are accepted with probability `likely`.

    Args:
        policy: decides; None: no drafts.
        cost: of a step.
        likely: of each draft token, given that those before it are accepted.
        drafting: milliseconds of drafting, or a function of the number of the step that asks.
        steps: how many.
        kept: part of the promised tokens that is accepted.
    """
    chance = np.random.default_rng(0)
    tokens = 0.0
    milliseconds = 0.0
    requests = 0
    for _ in range(steps):
        drafted = 0
        promised = 0.0
        time = 0.0
        asks = policy is not None and policy.wants_drafts()
        if policy is not None and asks:
            requests += 1
            scores = [likely**depth for depth in range(1, 9)] if likely else []
            drafted = cut(policy, scores)
            promised = sum(scores[:drafted])
            time = drafting(requests) if callable(drafting) else drafting
        seconds = cost(drafted) * chance.lognormal(0, 0.05)
        if policy is not None:
            policy.observe(drafted, seconds)
            if asks:
                policy.learn(drafted, promised, promised * share, time)
        tokens += 1 + promised * share
        milliseconds += time + seconds
    return Run(tokens, milliseconds, requests)


LOADS = [cpu, saturated, flat, jumping]


@pytest.mark.parametrize("cost", LOADS)
@pytest.mark.parametrize("likely", [0.0, 0.1, 0.4, 0.8])
def test_no_load_is_slower_than_without_drafts(cost: Cost, likely: float) -> None:
    assert run(DraftPolicy(), cost, likely, 0.02).speed >= 0.98 * run(None, cost, likely, 0).speed


@pytest.mark.parametrize(("cost", "gain"), [(cpu, 2.5), (flat, 3.0)])
def test_drafts_that_pay_are_made(cost: Cost, gain: float) -> None:
    assert run(DraftPolicy(), cost, 0.8, 0.02).speed >= gain * run(None, cost, 0.8, 0).speed


@pytest.mark.parametrize("cost", LOADS)
@pytest.mark.parametrize("likely", [0.1, 0.4, 0.8])
@pytest.mark.parametrize(
    ("before", "steps", "part"), [(0, 128, 0.94), (0, 600, 0.97), (200, 600, 0.98)]
)
def test_promises_that_are_not_kept_cost_little(
    cost: Cost, likely: float, before: int, steps: int, part: float
) -> None:
    """The text is random, so that matches say nothing."""
    policy = DraftPolicy()
    plain = run(None, cost, likely, 0, steps)
    run(policy, cost, likely, 0.02, before, share=0.0)
    assert run(policy, cost, likely, 0.02, steps, share=0.0).speed >= part * plain.speed


@pytest.mark.parametrize("drafting", [0.0, 0.05])
@pytest.mark.parametrize("steps", [16, 64, 512])
def test_a_generation_whose_scores_are_wrong_loses_two_steps_and_a_fiftieth(
    drafting: float, steps: int
) -> None:
    """A step costs 1, and 0.1 more for each of the 8 draft tokens that are to bring one."""
    policy = DraftPolicy()
    for drafted in (0, 8, 16) * 9:
        policy.observe(drafted, 1 + 0.1 * drafted)
    lost = 0.0
    for _ in range(steps):
        asks = policy.wants_drafts()
        costs = policy.costs(8)
        drafted = 8 if asks and 2 / costs[8] >= 1 / costs[0] else 0
        policy.observe(drafted, 1 + 0.1 * drafted)
        if asks:
            policy.learn(drafted, drafted / 8, 0.0, drafting)
        lost += 0.1 * drafted + drafting * asks
    assert lost < 2 + 0.02 * steps


@pytest.mark.parametrize("cost", [cpu, flat, jumping])
def test_drafts_are_made_again_once_promises_are_kept(cost: Cost) -> None:
    policy = DraftPolicy()
    run(policy, cost, 0.3, 0.02, share=0.0)
    always, again = (run(judge, cost, 0.8, 0.02) for judge in (DraftPolicy(), policy))
    assert again.speed >= 0.9 * always.speed


def test_a_generation_does_not_distrust_scores_for_what_others_were() -> None:
    policy = DraftPolicy()
    run(policy, cpu, 0.3, 20.0, share=0.0)
    policy.begin()
    assert run(policy, cpu, 0.8, 0.1, 60).requests >= 58


def test_slow_drafting_pauses() -> None:
    """Drafting takes as long as a step, and its drafts are worth less."""
    policy = DraftPolicy()
    assert run(policy, cpu, 0.2, 20.0).requests < 20
    assert run(policy, cpu, 0.8, 0.1).requests > 500, "it is asked again once it pays"


@pytest.mark.parametrize("number", [1, 2, 20])
@pytest.mark.parametrize("extra", [2.5, 10.0, 1000.0])
def test_one_slow_draft_costs_little_more_than_itself(number: int, extra: float) -> None:
    undisturbed = run(DraftPolicy(), cpu, 0.7, 0.1, 96)
    disturbed = run(
        DraftPolicy(), cpu, 0.7, lambda requests: 0.1 + extra * 21.45 * (requests == number), 96
    )
    assert undisturbed.tokens - disturbed.tokens <= 10


@pytest.mark.parametrize("period", [1, 2, 5])
@pytest.mark.parametrize(("length", "requests"), [(64, 2.5), (256, 3.5), (2048, 14)])
def test_a_source_that_is_often_slow_is_asked_less_and_less(
    period: int, length: int, requests: float
) -> None:
    """The source brings one token a step, and costs 2.5 plain steps each time on average."""
    policy = DraftPolicy()
    seconds = 0.0
    written = 0
    drafts = 0
    while written < length:
        asks = policy.wants_drafts()
        drafts += asks
        drafted = cut(policy, [0.95]) if asks else 0
        drafting = (0.03 + 2.5 * period * (drafts % period == 1 % period)) * asks
        policy.observe(drafted, 1 + 0.04 * drafted)
        if asks:
            policy.learn(drafted, 0.95 * drafted, drafted, drafting)
        written += 1 + drafted
        seconds += 1 + 0.04 * drafted + drafting
    assert seconds < length + requests * 2.5 * period


def test_after_the_longest_pause_a_source_is_tried_again() -> None:
    """An hour of stalls does not end drafting in an engine that runs for days."""
    policy = DraftPolicy()
    run(policy, cpu, 0.5, 1e5, 5000)
    paused = 0
    while not policy.wants_drafts():
        policy.observe(0, 21.45)
        paused += 1
    assert paused <= 129
    assert run(policy, cpu, 0.8, 0.1, 600).requests > 450


@pytest.mark.parametrize(("gain", "seldom"), [(0.0, True), (0.2, True), (0.5, False)])
def test_services_are_asked_while_they_bring_what_they_cost(gain: float, seldom: bool) -> None:
    """Services take 0.3 of a plain step, while all other sources draft on."""
    policy = DraftPolicy()
    requests = 0
    for _ in range(600):
        if policy.wants_drafts():
            services = policy.wants_services()
            requests += services
            policy.observe(4, 1.1)
            policy.learn(4, 1.0, 1.0, 0.01 + 0.3 * services, 0.3 * services, gain * services)
        else:
            policy.observe(0, 1.0)
    assert requests < 120 if seldom else requests > 580


def some_slow(chance: Random) -> Callable[[], float]:
    """A third of all steps takes three times as long on average, with drafts or without."""
    return lambda: 1 + chance.expovariate(0.5) * (chance.random() < 1 / 3)


@pytest.mark.parametrize("likely", [0.4, 0.6, 0.8])
def test_other_work_on_the_machine_hardly_changes_what_is_drafted(likely: float) -> None:
    """M of a new policy's first 128 steps changes by a few percent, seldom by more."""
    quiet = run(DraftPolicy(), cpu, likely, 0.1, 128).tokens
    ratios = []
    for seed in range(24):
        factor = some_slow(Random(seed))
        loaded = run(DraftPolicy(), lambda drafted: cpu(drafted) * factor(), likely, 0.1, 128)
        ratios.append(loaded.tokens / quiet)
    assert 0.93 < np.mean(ratios) < 1.07
    assert min(ratios) > 0.65


# --- Drafts that are read again if they are partly wrong ------------------------------------------


def measured_policy() -> DraftPolicy:
    """One that has seen steps of 1 second, and 0.1 more for each further token."""
    policy = DraftPolicy()
    for _ in range(8):
        for more in (0, 2, 4, 8, 16):
            policy.observe(more, 1 + 0.1 * more)
    return policy


def test_a_chain_is_shorter_where_much_would_be_read_again() -> None:
    policy = measured_policy()
    scores = 0.8 ** np.arange(1, 17)
    sizes = [policy.worth(scores, waiting) for waiting in range(24)]
    assert sizes == sorted(sizes, reverse=True)
    assert 0 < sizes[0] < 16
    assert sizes[-1] == 0, "then a step without drafts commits"


def test_what_is_certain_is_verified_whatever_waits() -> None:
    policy = measured_policy()
    assert policy.worth(np.ones(16), 9) == 16
    assert policy.worth(np.full(16, 1e-3), 0) == 0
    assert policy.worth(np.zeros(0), 3) == 0


def rate(policy: DraftPolicy, right: float, size_of: Callable[[int], int]) -> float:
    """Tokens a second of long texts, if each draft token is right with this probability."""
    random = np.random.default_rng(0)
    seconds = policy.costs(64) / policy.reliability
    tokens = 0
    time = 0.0
    waiting = 0
    for _ in range(10_000):
        size = size_of(waiting)
        accepted = int(random.geometric(1 - right)) - 1
        tokens += 1 + min(accepted, size)
        time += seconds[waiting + size]
        waiting = 0 if accepted >= size else waiting + 1 + accepted
    return tokens / time


@pytest.mark.parametrize("right", [0.6, 0.8])
def test_more_tokens_a_second_than_with_any_one_size_or_limit(right: float) -> None:
    policy = measured_policy()
    ours = rate(policy, right, lambda waiting: policy.worth(right ** np.arange(1, 17), waiting))
    others = [
        rate(policy, right, lambda waiting, size=size, limit=limit: size if waiting < limit else 0)
        for size in (1, 2, 3, 4, 6, 8, 12)
        for limit in (1, 4, 8, 12, 16)
    ]
    assert ours > 0.99 * max(others)


def test_tokens_that_are_read_again_cost_what_draft_tokens_do() -> None:
    policy = measured_policy()
    assert policy.costs(8, 4).tolist() == pytest.approx(policy.costs(12)[4:].tolist())


def test_a_step_that_reads_something_again_is_no_plain_one() -> None:
    policy = DraftPolicy()
    policy.observe(0, 1.0)
    while policy.wants_drafts():
        policy.observe(1, 1.1)
    policy = DraftPolicy()
    policy.observe(0, 1.0)
    for _ in range(200):
        assert policy.wants_drafts(waiting=1)
        policy.observe(1, 1.1)
