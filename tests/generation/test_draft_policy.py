"""Whether drafting pays, by a clock of known costs."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from statistics import fmean

import pytest

from rest_store.generation.costs import DraftPolicy, ForwardCosts

WIDTHS = range(17)  # steps are as wide as their trees


def known(slope: float = 0.1) -> ForwardCosts:
    """Return costs that are known: 1 for a plain step and `slope` more for each draft token."""
    costs = ForwardCosts(slope)
    for _ in range(9):
        for nodes in (0, 8, 16):
            costs.observe(nodes, 1 + slope * nodes)
    return costs


def simulate(policy: DraftPolicy, steps: int, tokens: float, *, slope: float = 0.1, drafting: float = 0.0) -> list[int]:
    """Let whole budgets be verified, each bringing `tokens`; return the budgets."""
    budgets = []
    for _ in range(steps):
        nodes, _ = policy.budget(WIDTHS)
        budgets.append(nodes)
        policy.observe(nodes, tokens if nodes else 1.0, 1 + slope * nodes, drafting if nodes else 0.0)
    return budgets


def promised_to(
    policy: DraftPolicy, steps: int, promised: float, accepted: Callable[[int], float], *, drafting: float = 0.0
) -> list[int]:
    """Let sessions promise `promised` tokens with 8 nodes at most, if these pay; return the nodes of the steps.

    Args:
        policy: decides; a step takes 0.1 more for each draft token.
        steps: how many.
        promised: of each tree.
        accepted: by step, what becomes of it.
        drafting: seconds of it.
    """
    widths = []
    for step in range(steps):
        most, costs = policy.budget(WIDTHS)
        nodes = min(8, most)
        if nodes:
            assert costs is not None
            nodes *= (1 + promised) / costs[nodes] >= 1 / costs[0]
        widths.append(nodes)
        tokens = 1 + accepted(step) * (nodes > 0)
        policy.observe(nodes, tokens, 1 + 0.1 * nodes, drafting * (most > 0), promised * (nodes > 0))
    return widths


def test_bad_luck_does_not_narrow_trees_whose_scores_are_right() -> None:
    """One step in five brings five tokens, the others none: on average what was promised."""
    policy = DraftPolicy(known())
    widths = promised_to(policy, 200, 1.0, lambda step: 5.0 * (step % 5 == 0))
    assert widths.count(8) >= 195, "others measure plain steps"
    assert policy.pauses == 0


@pytest.mark.parametrize("drafting", [0.0, 0.05])
@pytest.mark.parametrize("steps", [16, 64, 512])
def test_scores_that_are_wrong_cost_little(drafting: float, steps: int) -> None:
    policy = DraftPolicy(known())
    promised_to(policy, 40, 1.0, lambda _: 1.0)
    policy.begin()
    policy.observe(0, 1.0, 1.0, 0.0)  # confirms the costs
    widths = promised_to(policy, steps, 1.0, lambda _: 0.0, drafting=drafting)
    assert sum(0.1 * nodes + drafting * (nodes > 0) for nodes in widths) < 2 + 0.02 * steps


def test_a_generation_does_not_distrust_scores_for_what_others_were() -> None:
    policy = DraftPolicy(known())
    assert promised_to(policy, 40, 1.0, lambda _: 0.0)[-1] == 0
    policy.begin()
    policy.observe(0, 1.0, 1.0, 0.0)
    assert promised_to(policy, 40, 1.0, lambda _: 1.0)[-20:] == [8] * 20


def test_draft_tokens_cost_more_where_scores_promised_too_much() -> None:
    policy = DraftPolicy(known())
    promised_to(policy, 1, 0.9, lambda _: 0.9)
    _, before = policy.budget(WIDTHS)
    policy.observe(8, 1.0, 1.8, 0.0, 8.0)
    _, after = policy.budget(WIDTHS)
    assert before is not None
    assert after is not None
    assert after[0] == before[0]
    assert (after[1:] > before[1 : len(after)]).all()


def test_a_slow_pass_is_not_charged_to_trees_with_scores() -> None:
    policy = DraftPolicy(known())
    promised_to(policy, 4, 1.0, lambda _: 1.0)
    for _ in range(3):
        assert policy.budget(WIDTHS)[0] == 16
        policy.observe(8, 2.0, 30.0, 0.0, 1.0)
        promised_to(policy, 8, 1.0, lambda _: 1.0)
    assert policy.pauses == 0


def test_trees_that_lose_their_scores_are_narrow_again() -> None:
    policy = DraftPolicy(known())
    promised_to(policy, 2, 0.5, lambda _: 0.0)
    assert policy.budget(WIDTHS)[0] == 16
    policy.observe(1, 1.0, 1.1, 0.0)
    assert 0 < policy.budget(WIDTHS)[0] < 16


def test_trees_are_narrow_until_drafts_are_accepted() -> None:
    policy = DraftPolicy(known())
    assert simulate(policy, 1, 1.5)[0] in range(1, 5)
    budgets = simulate(policy, 20, 3.0)
    assert budgets == sorted(budgets)
    assert budgets[-1] == 16
    assert policy.pauses == 0


@pytest.mark.parametrize("slope", [0.0, 0.005, 0.1, 1.0])
@pytest.mark.parametrize("drafting", [0.0, 0.02, 0.5])
@pytest.mark.parametrize("steps", [8, 64, 512])
def test_drafts_that_are_never_accepted_cost_little(slope: float, drafting: float, steps: int) -> None:
    policy = DraftPolicy(known(slope))
    budgets = simulate(policy, steps, 1.0, slope=slope, drafting=drafting)
    lost = sum(slope * nodes + drafting * (nodes > 0) for nodes in budgets)
    assert lost < 0.3 + drafting + 0.02 * steps, "what is risked at first, one slow draft, and a small share"


def test_slow_drafts_do_not_pay_although_forward_passes_would() -> None:
    policy = DraftPolicy(known(0.02))
    budgets = simulate(policy, 100, 2.0, slope=0.02, drafting=2.0)
    assert sum(map(bool, budgets)) <= 5
    assert policy.pauses >= 1


def test_a_long_success_is_no_licence_for_a_long_failure() -> None:
    policy = DraftPolicy(known())
    simulate(policy, 300, 4.0)
    budgets = simulate(policy, 100, 1.0)
    assert 0.1 * sum(budgets) < 6


def test_drafting_is_tried_again() -> None:
    policy = DraftPolicy(known())
    simulate(policy, 100, 1.0)
    assert policy.budget(WIDTHS)[0] < 8
    assert simulate(policy, 200, 3.0)[-50:].count(16) >= 49


def test_a_delay_of_one_draft_does_not_end_drafting() -> None:
    policy = DraftPolicy(known())
    assert policy.budget(WIDTHS)[0]
    policy.observe(4, 1.0, 1.4, 1000.0)
    assert any(simulate(policy, 30, 3.0))


def write(
    drafts: int,
    length: int,
    slow: Callable[[int], float],
    *,
    of_pass: bool = False,
    load: Callable[[], float] = lambda: 1.0,
) -> tuple[float, int]:
    """Write `length` tokens, up to `drafts` + 1 of them with each tree; return the seconds and the steps.

    Args:
        drafts: tokens accepted of each tree that is wide enough, half as many as it has at most.
        length: tokens to write.
        slow: by number of the drafted step, from 1, the plain steps that it takes longer.
        of_pass: whether its forward pass does, instead of drafting.
        load: how many times as long the next forward pass takes because of other work.
    """
    policy = DraftPolicy(ForwardCosts(0.04))
    seconds, written, steps, drafted = 0.0, 0, 0, 0
    while written < length:
        nodes, _ = policy.budget(WIDTHS)
        drafted += nodes > 0
        extra = slow(drafted) if nodes else 0.0
        forward = (1 + 0.04 * nodes + extra * of_pass) * load()
        drafting = (0.03 + extra * (not of_pass)) * (nodes > 0)
        tokens = 1 + min(drafts, (nodes + 1) // 2)
        policy.observe(nodes, tokens, forward, drafting)
        seconds, written, steps = seconds + forward + drafting, written + tokens, steps + 1
    return seconds, steps


@pytest.mark.parametrize(("drafts", "least"), [(2, 1.5), (0, 0.85)], ids=["drafts that pay", "drafts that never do"])
def test_other_work_on_the_machine_is_not_charged_to_drafts(drafts: int, least: float) -> None:
    """A third of all forward passes takes three times as long on average, with drafts or without."""
    speeds = []
    for seed in range(12):
        random = Random(seed)

        def load(random: Random = random) -> float:
            return 1 + random.expovariate(0.5) * (random.random() < 1 / 3)

        seconds, _ = write(drafts, 128, lambda _: 0.0, load=load)
        speeds.append(128 * (1 + 2 / 3) / seconds)
    assert fmean(speeds) > least


@pytest.mark.parametrize("number", [1, 2, 5, 20])
@pytest.mark.parametrize(("extra", "of_pass"), [(2.5, False), (2.0, True), (10.0, False)])
def test_one_slow_step_costs_little_more_than_itself(number: int, extra: float, *, of_pass: bool) -> None:
    undisturbed, _ = write(2, 96, lambda _: 0.0)
    seconds, steps = write(2, 96, lambda drafted: extra * (drafted == number), of_pass=of_pass)
    assert 96 / steps > (2.2 if extra < 10 else 1.9)
    assert seconds < undisturbed + extra + 10


@pytest.mark.parametrize("period", [1, 2, 5])
@pytest.mark.parametrize(("length", "most"), [(64, 2), (256, 3), (2048, 14)])
def test_a_source_that_is_often_slow_is_stopped(period: int, length: int, most: int) -> None:
    """It costs more than its drafts save."""
    seconds, _ = write(1, length, lambda drafted: 2.5 * period * (drafted % period == 1 % period))
    assert seconds < length + most * 2.5 * period


def test_while_drafting_pauses_nothing_is_drafted_at_any_cost() -> None:
    """Steps with drafts take no longer than without; drafting takes time."""
    policy = DraftPolicy(known(0.0))
    assert sum(map(bool, simulate(policy, 100, 1.0, slope=0.0, drafting=2.5))) <= 3


def test_a_generation_begins_with_what_the_last_one_left() -> None:
    policy = DraftPolicy(known(0.05))
    first, _ = policy.budget(WIDTHS)
    simulate(policy, 50, 4.0, slope=0.05)
    policy.begin()
    policy.observe(0, 1.0, 1.0, 0.0)  # confirms the costs
    after_success, _ = policy.budget(WIDTHS)
    simulate(policy, 50, 1.0, slope=0.05)
    policy.begin()
    policy.observe(0, 1.0, 1.0, 0.0)
    assert 0 < policy.budget(WIDTHS)[0] < first < after_success < 16


def test_the_budget_knows_what_steps_are_padded_to() -> None:
    policy = DraftPolicy(known(0.04))
    nodes, costs = policy.budget([0, *[2] * 2, *[16] * 14])
    assert nodes == 2
    assert costs is not None
    assert costs[0] < costs[1] == costs[2]


def test_the_first_step_is_plain_while_its_cost_is_unknown() -> None:
    policy = DraftPolicy(ForwardCosts())
    assert policy.budget(WIDTHS) == (0, None)
    policy.observe(0, 1.0, 1.0, 0.0)
    assert policy.budget(WIDTHS)[0] > 0


def test_a_policy_that_is_not_adaptive_always_drafts() -> None:
    policy = DraftPolicy(known(), adaptive=False)
    assert simulate(policy, 50, 1.0, drafting=9.0) == [16] * 50
    assert policy.budget(WIDTHS) == (16, None)
