"""What a step costs by its width, measured as a generation goes, and whether drafting pays.

Every step of a generation is a measurement of its width; no forward pass is spent on measuring alone.
"""

from __future__ import annotations

import statistics
import weakref
from collections import deque
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from rest_store.drafting.reliability import Reliability
from rest_store.generation.prefill import Prompt

_RECENT = 9  # times kept of each width
_AGE = 128  # steps after which a time is forgotten
_STALE = 64  # steps after which a plain step is measured again
_OUTLIER = 3.0  # estimates that a step counts as at most: other work took the processor
_GUESSED = 16  # weight of the guess of what a draft token adds, in measured draft tokens
_BAND = 1.25  # ratio up to which a time confirms the times of earlier generations
_SHORTEST = 1e-9  # seconds, also of a clock that stands still
# The credit, in plain steps.
_FIRST = 0.1  # of the first generation
_LEAST_FIRST, _MOST_FIRST = 0.05, 0.2  # of later ones
_LARGEST = 4.0  # at any time
_SHARE = 0.015  # added with each token
_PRIOR = 0.25  # of the reliability of scores, in tokens
# What a step takes beyond the credit.
_LEAST_CHARGE = 8 * _SHARE  # charged at once, if it is so much
_FIRST_PART, _GROWTH = 1 / 16, 8  # part charged at once, and how it grows while a debt is left


class Time(NamedTuple):
    """Seconds of one step, and its number among all steps."""

    step: int
    seconds: float


class ForwardCosts:
    """Seconds of a forward pass that verifies n draft tokens, learned from passes of any widths.

    The estimate is a line that begins at the plain step plus, at each measured width, the deviation of the median of
    its recent times, shrunk where there are few; deviations are interpolated in between. A single time moves neither:
    the first pass of a width often takes longer than later ones. Times of earlier generations are used until those of
    this one contradict them. While they are neither confirmed nor contradicted, `wants_plain` asks for plain steps,
    three at most.

    Args:
        slope: part of a plain step that each draft token is assumed to add until it is measured.
    """

    def __init__(self, slope: float = 0.04) -> None:
        self._slope = slope
        self._times: dict[int, deque[Time]] = {}
        self._steps = 0
        self._plain_seen = 0
        self._began = 0
        self._surprises: deque[float] = deque(maxlen=3)

    def begin(self) -> None:
        """Start another generation."""
        self._began = self._steps
        self._surprises.clear()

    def observe(self, nodes: int, seconds: float) -> None:
        """Learn that a forward pass which verified `nodes` draft tokens took `seconds`."""
        self._steps += 1
        seconds = max(seconds, _SHORTEST)
        times = self._times.setdefault(nodes, deque(maxlen=_RECENT))
        if times and times[0].step <= self._began:
            before = [time.seconds for time in times if time.step <= self._began]
            self._surprises.append(seconds / statistics.median(before))
        times.append(Time(self._steps, seconds))
        if nodes == 0:
            self._plain_seen = self._steps
        contradicted = len(self._surprises) == self._surprises.maxlen and not self._confirmed
        self._forget(self._began if contradicted else self._steps - _AGE)
        if contradicted:
            self._surprises.clear()

    @property
    def wants_plain(self) -> bool:
        """Whether the next step should be plain, because its cost is unknown, old or doubtful."""
        times = self._times.get(0)
        if not times or self._steps - self._plain_seen >= _STALE:
            return True
        doubted = self._steps - self._began >= 2 and not self._confirmed
        return doubted and times[0].step <= self._began

    @property
    def _confirmed(self) -> bool:
        """Whether steps of this generation took as long as those of earlier ones."""
        return bool(self._surprises) and 1 / _BAND <= statistics.median(self._surprises) <= _BAND

    def _forget(self, step: int) -> None:
        """Forget the times of all steps up to `step`."""
        for nodes, times in list(self._times.items()):
            while times and times[0].step <= step:
                times.popleft()
            if not times:
                del self._times[nodes]

    def table(self, max_nodes: int) -> npt.NDArray[np.float64] | None:
        """Return the seconds for 0 .. max_nodes draft tokens, float64[max_nodes + 1]; None before any measurement."""
        if not self._times:
            return None
        widths = np.array(sorted(self._times), dtype=np.float64)
        medians = np.array([self._median(int(width)) for width in widths])
        counts = np.array([len(self._times[int(width)]) for width in widths], dtype=np.float64)
        intercept, slope = self._line()
        places = np.arange(max_nodes + 1, dtype=np.float64)
        deviations = (medians - intercept - slope * widths) * (1 - 1 / counts)
        table: npt.NDArray[np.float64] = intercept + slope * places + np.interp(places, widths, deviations)
        return np.maximum(table, 0.5 * float(medians.min()))

    def plain(self) -> float | None:
        """Return the seconds that a step without draft tokens takes on average; None before any measurement.

        The mean of recent times, each capped, but at least their median: where other work delays steps now and then, it
        delays plain steps as well, and the estimates do not show it.
        """
        if 0 not in self._times:
            table = self.table(0)
            return float(table[0]) if table is not None else None
        median = self._median(0)
        return max(median, statistics.fmean(min(time.seconds, _OUTLIER * median) for time in self._times[0]))

    def _median(self, nodes: int) -> float:
        return statistics.median_low(time.seconds for time in self._times[nodes])

    def _line(self) -> tuple[float, float]:
        """Return the seconds of a plain step and what each draft token adds.

        The latter is a median weighted by draft tokens, with the guess in it: of a narrow step the noise is as large,
        but what it says of each draft token is less exact.
        """
        times = [(nodes, time.seconds) for nodes, recent in self._times.items() for time in recent]
        if 0 in self._times:
            intercept = self._median(0)
        else:
            intercept = statistics.median(seconds / (1 + self._slope * nodes) for nodes, seconds in times)
        measured = [((seconds - intercept) / nodes, nodes) for nodes, seconds in times if nodes]
        slopes, weights = zip(*sorted([(self._slope * intercept, _GUESSED), *measured]), strict=True)
        below = np.cumsum(weights)
        return intercept, max(0.0, slopes[int(np.searchsorted(below, below[-1] / 2))])


class DraftPolicy:
    """Decides before each step how many draft tokens it may verify, so that no generation loses more than a little.

    Drafted steps spend a credit, counted in plain steps. Each token written adds a little to it. A drafted step adds
    what it saves against plain steps that write as many tokens, or takes what it loses, drafting included. While the
    credit is below zero, drafting pauses. So drafts that never pay cost about the share that is added. The next
    generation begins with what the last one left, within narrow bounds. Choosing and writing tokens is not compared:
    it takes its time in plain steps too.

    Trees with scores are cut by their session where another draft token costs more than it promises. So their width is
    not limited, and a step saves what its scores promise, whatever chance makes of it. Where less is accepted than was
    promised, scores count for less: the session is told higher costs of draft tokens. The time of the forward pass is
    that of the estimates. On a machine that does other work, any single pass may take long.

    Trees without scores are judged by what they bring. A step may verify as many draft tokens as the credit would pay
    for if none of them were accepted: such generations begin with narrow trees, which grow with the first success. The
    time of a forward pass is capped at `_OUTLIER` times its estimate, and plain steps count with the mean of theirs,
    capped in the same way: what delays all steps alike says nothing of drafts.

    A step may take more than the credit: a source was slow, or the machine. One slow step says little about the next,
    so it is charged in part, and the rest is a debt that half of all that drafts save pays off. While a debt is left,
    the next such step is charged a greater part: pauses grow from about ten tokens to what the share takes to pay for
    everything.

    Args:
        costs: of forward passes like those to come.
        adaptive: draft only while it pays; False: always, and pass no costs to sessions.

    Attributes:
        pauses: how often drafting paused in this generation because the credit was spent.
    """

    def __init__(self, costs: ForwardCosts, *, adaptive: bool = True) -> None:
        self._costs = costs
        self._adaptive = adaptive
        self._credit = _FIRST
        self._drafts = False  # in this step
        self._is_scored = False  # whether the latest trees had scores
        self._reliability = Reliability(prior=_PRIOR)
        self._table: npt.NDArray[np.float64] | None = None  # of costs, as the step was chosen by
        self._pausing = False
        self._debt = 0.0
        self._part = _FIRST_PART
        self.pauses = 0

    def begin(self) -> None:
        """Start another generation."""
        self._costs.begin()
        self._credit = min(max(self._credit, _LEAST_FIRST), _MOST_FIRST)
        self._drafts = self._pausing = self._is_scored = False
        self._reliability = Reliability(prior=_PRIOR)
        self._debt, self._part = 0.0, _FIRST_PART
        self.pauses = 0

    def budget(self, padded: Sequence[int]) -> tuple[int, npt.NDArray[np.float64] | None]:
        """Return the most draft tokens of the next step, 0: none; called once for each step that could accept any.

        Args:
            padded: for 0, 1, ... draft tokens by how many tokens the step is wider than a plain one, ascending from 0.

        Returns:
            The number, and the estimated seconds of a forward pass with 0, 1, ... up to that many draft tokens, more
            where scores promised too much; None: draft whatever it costs.
        """
        nodes, costs = len(padded) - 1, None
        if self._adaptive:
            table = None if self._costs.wants_plain else self._costs.table(padded[-1])
            if table is None:
                nodes = 0
            else:
                self._table, costs = table, table[list(padded)]
                if self._credit < 0:
                    nodes = 0
                elif not self._is_scored:
                    nodes = int(np.flatnonzero(costs <= costs[0] * (1 + self._credit))[-1])
                costs = self._doubted(costs[: nodes + 1])
                self.pauses += not nodes and not self._pausing
                self._pausing = not nodes
        self._drafts = nodes > 0
        return nodes, costs

    def _doubted(self, costs: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return higher costs of draft tokens where less was accepted than scores promised."""
        added = costs - costs[0]
        doubted: npt.NDArray[np.float64] = costs[0] + np.where(added > 0, added / self._reliability.factor, added)
        return doubted

    def observe(
        self, nodes: int, tokens: float, forward: float, drafting: float, promised: float | None = None
    ) -> None:
        """Learn from a step.

        Args:
            nodes: by how many tokens the step was wider than a plain one.
            tokens: new tokens, for each row that was written to.
            forward: seconds of the forward pass.
            drafting: seconds of drafting.
            promised: draft tokens that were to be accepted by the scores of the trees, for each row that was written
                to; None: a tree had no scores.
        """
        self._costs.observe(nodes, forward)
        plain = self._costs.plain()
        drafted, self._drafts = self._drafts, False
        if plain is None:
            return
        earned = _SHARE * tokens
        if drafted and self._table is not None:
            estimates = float(self._table[0]), float(self._table[nodes])
            if promised is None:
                saved = tokens - (min(forward, _OUTLIER * estimates[1]) + drafting) / plain
            else:
                saved = self._expected(promised, tokens - 1) - (estimates[1] + drafting) / estimates[0]
            self._is_scored = promised is not None and (promised > 0 or self._is_scored)
            earned += self._pay_debt(saved)
        credit = min(self._credit + earned, _LARGEST)
        self._credit = credit if credit >= 0 or not drafted else -self._charge(-credit)

    def _expected(self, promised: float, accepted: float) -> float:
        """Return the tokens that a step was expected to bring, and learn how many draft tokens of it were accepted."""
        expected = 1 + self._reliability.factor * promised
        self._reliability.forget()
        self._reliability.add(promised, accepted)
        return expected

    def _pay_debt(self, saved: float) -> float:
        """Pay off the debt with half of what a step saved, if it saved anything; return what is left of that."""
        paid = min(self._debt, max(0.0, saved / 2))
        self._debt -= paid
        if not self._debt:
            self._part = _FIRST_PART
        return saved - paid

    def _charge(self, excess: float) -> float:
        """Return the part of `excess`, what a step took beyond the credit, that is charged at once; owe the rest."""
        counted = min(excess, _LARGEST)
        charge = min(excess, max(_LEAST_CHARGE, self._part * counted))
        if charge < excess:
            self._debt += excess - charge
            self._part = _GROWTH * charge / counted
        return charge


_known_policies: weakref.WeakKeyDictionary[Any, dict[Hashable, DraftPolicy]] = weakref.WeakKeyDictionary()


def known_policy(model: Any, conditions: Hashable, *, slope: float, adaptive: bool) -> DraftPolicy:
    """Return the policy with all that generations of `model` have learned under these conditions, for another one.

    Args:
        model: the target model, which is not kept alive.
        conditions: all that the time of a step depends on besides its width.
        slope: that of new `ForwardCosts`, if there is no policy yet.
        adaptive: that of `DraftPolicy`.
    """
    policies = _known_policies.setdefault(model, {})
    policy = policies.get((conditions, adaptive))
    if policy is None:
        policy = policies[conditions, adaptive] = DraftPolicy(ForwardCosts(slope), adaptive=adaptive)
    policy.begin()
    return policy


def policy_of(model: Any, prompt: Prompt, widths: tuple[int, ...], *, adaptive: bool) -> DraftPolicy:
    """Return the policy of a generation behind `prompt`, with what is known of steps at about this context length.

    Args:
        model: the target model.
        prompt: that the model has read.
        widths: of steps, where these are fixed.
        adaptive: that of `DraftPolicy`.
    """
    device, rows = prompt.logits.device, prompt.logits.shape[0]
    prepacked = any("forward" in vars(module) for module in model.modules())
    patterns = tuple(sorted({(pattern.name, pattern.window) for pattern in prompt.patterns}))
    context = max(prompt.length, 256).bit_length()
    conditions = (rows, context, widths, patterns, str(device), torch.get_num_threads(), prompt.logits.dtype, prepacked)
    slope = 0.04 if device.type == "cpu" else 0.005
    return known_policy(model, conditions, slope=slope, adaptive=adaptive)
