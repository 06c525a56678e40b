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

_RECENT = 9  # times kept of each width
_AGE = 128  # steps after which a time is forgotten
_STALE = 64  # steps after which a plain step is measured again
_BAND = 1.25  # ratio up to which a time confirms the times of earlier generations
_FIRST_TRIAL = 6  # drafted steps; later trials are half as long
_FIRST_PAUSE, _LONGEST_PAUSE = 16, 256  # steps
_FADING = 0.9  # of what a step counts in the next one


class Time(NamedTuple):
    """Seconds of one step, and its number among all steps."""

    step: int
    seconds: float


class ForwardCosts:
    """Seconds of a forward pass that verifies n draft tokens, learned from passes of any widths.

    The estimate is a line through all widths plus, at each measured width, the deviation of the median of its recent
    times, shrunk where there are few; deviations are interpolated in between. Times of earlier generations are used
    until those of this one contradict them. While they are neither confirmed nor contradicted, `wants_plain` asks for
    plain steps, three at most.

    Args:
        slope: part of a plain step that each draft token is assumed to add until two widths are measured.
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
        before = [time.seconds for time in self._times.get(nodes, ()) if time.step <= self._began]
        if before:
            self._surprises.append(seconds / statistics.median(before))
        self._times.setdefault(nodes, deque(maxlen=_RECENT)).append(Time(self._steps, seconds))
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
        intercept, slope = self._line(widths, medians, counts)
        places = np.arange(max_nodes + 1, dtype=np.float64)
        deviations = (medians - intercept - slope * widths) * counts / (counts + 1)
        table: npt.NDArray[np.float64] = intercept + slope * places + np.interp(places, widths, deviations)
        return np.maximum(table, 0.5 * float(medians.min()))

    def plain(self) -> float | None:
        """Return the seconds without draft tokens; None before any measurement."""
        if 0 in self._times:
            return self._median(0)
        table = self.table(0)
        return float(table[0]) if table is not None else None

    def _median(self, nodes: int) -> float:
        return statistics.median(time.seconds for time in self._times[nodes])

    def _line(
        self, widths: npt.NDArray[np.float64], medians: npt.NDArray[np.float64], counts: npt.NDArray[np.float64]
    ) -> tuple[float, float]:
        weights = np.sqrt(counts)
        mean, height = float(np.average(widths, weights=weights)), float(np.average(medians, weights=weights))
        if widths[-1] - widths[0] < 4:
            intercept = height / (1 + self._slope * mean)
            return intercept, self._slope * intercept
        spread = float(np.average((widths - mean) ** 2, weights=weights))
        slope = float(np.average((widths - mean) * (medians - height), weights=weights)) / spread
        slope = max(0.0, slope)
        return height - slope * mean, slope


class DraftPolicy:
    """Decides before each step whether to draft, from what steps brought and took.

    A trial of a few drafted steps comes first. While drafted steps bring fewer tokens a second than plain steps would,
    drafting pauses. Each failed trial doubles the pause, so drafts that never pay cost little. Only drafting and the
    forward pass are compared: choosing and writing tokens takes its time in plain steps too.

    Args:
        costs: of forward passes like those to come.
        adaptive: draft only while it pays; False: always, and pass no costs to sessions.

    Attributes:
        pauses: how often drafting paused.
    """

    def __init__(self, costs: ForwardCosts, *, adaptive: bool = True) -> None:
        self._costs = costs
        self._adaptive = adaptive
        self._drafted = False
        self._trial = _FIRST_TRIAL
        self._pause = _FIRST_PAUSE  # steps of the next one
        self._pausing = 0  # steps left
        self._steps = self._tokens = self._seconds = 0.0  # of drafted steps, fading
        self.pauses = 0

    def drafts(self) -> bool:
        """Return whether to draft in the next step; called once for each step in which a draft could be accepted."""
        self._drafted = not self._adaptive or not (self._pausing or self._costs.wants_plain)
        self._pausing = max(0, self._pausing - 1)
        return self._drafted

    def table(self, padded: Sequence[int]) -> npt.NDArray[np.float64] | None:
        """Return the estimated seconds of a forward pass for each of `padded`, float64[len(padded)]; None if unknown.

        Args:
            padded: for 0, 1, ... draft tokens the number that a step is padded to, ascending.
        """
        table = self._costs.table(padded[-1]) if self._adaptive else None
        return table[list(padded)] if table is not None else None

    def observe(self, nodes: int, tokens: float, forward: float, drafting: float) -> None:
        """Learn from a step.

        Args:
            nodes: draft tokens that the forward pass verified, padding included.
            tokens: new tokens, for each row that was written to.
            forward: seconds of the forward pass.
            drafting: seconds of drafting.
        """
        self._costs.observe(nodes, forward)
        drafted, self._drafted = self._drafted, False
        plain = self._costs.plain()
        if not drafted or not self._adaptive or plain is None:
            return
        self._steps = _FADING * self._steps + 1
        self._tokens = _FADING * self._tokens + tokens
        self._seconds = _FADING * self._seconds + forward + drafting
        if self._steps < (1 - _FADING**self._trial) / (1 - _FADING) - 1e-9:
            return
        if self._tokens * plain >= 0.98 * self._seconds:
            self._pause = _FIRST_PAUSE
            return
        self._pausing, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE)
        self._trial = max(2, self._trial // 2)
        self._steps = self._tokens = self._seconds = 0.0
        self.pauses += 1


_known_costs: weakref.WeakKeyDictionary[Any, dict[Hashable, ForwardCosts]] = weakref.WeakKeyDictionary()


def known_costs(model: Any, conditions: Hashable, slope: float) -> ForwardCosts:
    """Return what generations of `model` have learned under these conditions, ready for another one.

    Args:
        model: the target model, which is not kept alive.
        conditions: all that the time of a step depends on besides its width.
        slope: as of `ForwardCosts`, if there are none yet.
    """
    costs = _known_costs.setdefault(model, {}).setdefault(conditions, ForwardCosts(slope))
    costs.begin()
    return costs
