"""What a step costs by its width, measured as a generation goes, and whether drafting pays.

No forward pass is spent on measuring: every step of a generation is a measurement of its width. Seconds throughout.
"""

from __future__ import annotations

import statistics
from collections import deque
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_RECENT = 9  # times kept of each width
_AGE = 128  # steps after which a time is forgotten
_STALE = 64  # steps after which the cost of a plain step is measured anew
_BAND = 1.25  # how far off a step may be and still confirm what was known before


class Time(NamedTuple):
    """What one step took: `seconds`, as step number `step` of all."""

    step: int
    seconds: float


class ForwardCosts:
    """Seconds of a step that verifies n draft tokens, learnt from steps of any widths.

    A line through the widths seen, and at each width seen the median of its recent times, trusted the more the more
    there are; in between the deviations from the line are interpolated. What earlier generations took holds until the
    steps of this one contradict it, or say nothing about it; then plain steps are measured, three at most.

    Args:
        slope: how much of a plain step each draft token is taken to add until two widths have been seen.
    """

    def __init__(self, slope: float = 0.04) -> None:
        self._slope = slope
        self._times: dict[int, deque[Time]] = {}
        self._steps = 0
        self._plain_seen = 0
        self._began = 0
        self._surprises: deque[float] = deque(maxlen=3)

    def begin(self) -> None:
        """Take note that another generation begins."""
        self._began = self._steps
        self._surprises.clear()

    def observe(self, nodes: int, seconds: float) -> None:
        """Take in that a step which verified `nodes` draft tokens took `seconds`."""
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
        """Whether the cost of a step without drafts is not known, or not known to hold: the next had better be one."""
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
        """Return the seconds of steps with 0 .. max_nodes draft tokens, float64[max_nodes + 1]; None before any."""
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
        """Return the seconds of a step without drafts; None before any step."""
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


class Payoff:
    """Decides from what steps brought and took whether to go on drafting, to rest, or to try again.

    A trial of a few drafted steps comes first. While drafted steps bring fewer tokens a second than plain ones would,
    drafting rests, for twice as long after each trial that fails, so that a drafter that never pays costs little.

    Args:
        first: steps of the first trial; later ones are half as long.
        rest: steps of the first rest.
        longest: steps of the longest rest.
    """

    def __init__(self, *, first: int = 6, rest: int = 16, longest: int = 256) -> None:
        self._trial = first
        self._shortest, self._longest = rest, longest
        self._rest = rest
        self._resting = 0
        self._steps = 0.0
        self._tokens = 0.0
        self._seconds = 0.0
        self.pauses = 0

    def drafts(self) -> bool:
        """Return whether to draft for the next step; to be asked once for each step."""
        if self._resting:
            self._resting -= 1
            return False
        return True

    def observe(self, tokens: float, seconds: float, plain: float | None) -> None:
        """Take in a step for which drafts were asked.

        Args:
            tokens: what it brought, for each row that it worked for.
            seconds: what it took, waiting for the draft included.
            plain: seconds of a step without drafts; None: not known.
        """
        if plain is None:
            return
        fading = 0.9
        self._steps = fading * self._steps + 1
        self._tokens = fading * self._tokens + tokens
        self._seconds = fading * self._seconds + seconds
        if self._steps < (1 - fading**self._trial) / (1 - fading) - 1e-9:
            return
        if self._tokens * plain >= 0.98 * self._seconds:
            self._rest = self._shortest
            return
        self._resting, self._rest = self._rest, min(2 * self._rest, self._longest)
        self._trial = max(2, self._trial // 2)
        self._steps = self._tokens = self._seconds = 0.0
        self.pauses += 1
