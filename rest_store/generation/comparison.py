"""Two ways to write the same text, timed in turns: the speedup, and how sure it is."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rest_store.datastore.render import counted

MAX_SECONDS = 30.0  # for a comparison, but for the pair that is under way then
MIN_PAIRS = 4  # of runs, where there is time: two may agree by chance
_NARROW = 1.1  # greatest ratio of the ends of an interval that a verdict rests on


@dataclass(frozen=True)
class Speedup:
    """How many times as fast one way is as another.

    Attributes:
        median: the ratio of the median seconds of both.
        low: lower end of the range of the ratio, over pairs of neighbouring runs.
        high: upper end of that range.
        pairs: number of pairs.
    """

    median: float
    low: float
    high: float
    pairs: int

    @classmethod
    def from_runs(cls, slow: Sequence[float], fast: Sequence[float]) -> Speedup:
        """Return the figures of runs that took so many seconds, pair by pair.

        The range is a confidence interval of the median, of about 95% where there are six pairs or
        more, and the whole range of fewer: it assumes nothing about how other work disturbs single
        runs.
        """
        pairs = zip(slow, fast, strict=True)
        ratios = sorted(slow_seconds / fast_seconds for slow_seconds, fast_seconds in pairs)
        aside = max(0, int((len(ratios) - 1.96 * len(ratios) ** 0.5) / 2))
        median = statistics.median(slow) / statistics.median(fast)
        return cls(median, min(median, ratios[aside]), max(median, ratios[-1 - aside]), len(ratios))

    @property
    def is_certain(self) -> bool:
        """Whether the range of several pairs is so narrow that the median is reliable."""
        return self.pairs > 1 and self.high <= _NARROW * self.low

    def __str__(self) -> str:
        """Return the median if it is certain, or "faster" or "slower" if that is, or neither."""
        pairs = f"{counted(self.pairs, 'pair')} of runs"
        ends = f"{self.low:.2f}" if self.pairs == 1 else f"{self.low:.2f} to {self.high:.2f}"
        if self.is_certain:
            return f"{self.median:.2f} times as fast ({ends} in {pairs})"
        if self.low > 1 or self.high < 1:
            word = "faster" if self.low > 1 else "slower"
            return f"{word}, {ends} times as fast in {pairs}; how much is uncertain"
        return (
            f"this machine is too busy for a verdict: {ends} times as fast in {pairs} (median"
            f" {self.median:.2f})"
        )


def in_turns(
    plain: Callable[[], float], drafted: Callable[[], float]
) -> tuple[list[float], list[float]]:
    """Run two ways in turns until their speedup is certain, or for `MAX_SECONDS`.

    The order is plain, drafted, drafted, plain, so that a machine that becomes slower or faster
    meanwhile favours none.

    Args:
        plain: runs once, and returns the seconds that count.
        drafted: the same.

    Returns:
        The seconds of each run, of both.
    """
    slow: list[float] = []
    fast: list[float] = []
    end = time.perf_counter() + MAX_SECONDS
    ways = ((slow, plain), (fast, drafted))
    while True:
        for seconds, way in ways:
            seconds.append(way())
        ways = ways[::-1]
        speedup = Speedup.from_runs(slow, fast)
        if time.perf_counter() >= end or (speedup.pairs >= MIN_PAIRS and speedup.is_certain):
            return slow, fast


@dataclass(frozen=True)
class Comparison:
    """Drafted generation beside plain generation of the same prompt.

    Attributes:
        speedup: how many times as fast the drafted generation was.
        identical: whether both wrote the same tokens.
        tokens: that each run wrote, over all rows.
        seconds: that plain generation took, in the median.
        drafted_seconds: the same with drafts.
        max_nodes: most draft tokens of a step.
        mean_tokens_at_max: M where every step may verify so many draft tokens at any cost:
            a figure that other work on the machine does not move, which stands in for speeds that
            it has moved.
    """

    speedup: Speedup
    identical: bool
    tokens: int
    seconds: float
    drafted_seconds: float
    max_nodes: int
    mean_tokens_at_max: float

    def __str__(self) -> str:
        plain, drafted = (self.tokens / seconds for seconds in (self.seconds, self.drafted_seconds))
        text = "the same text" if self.identical else "another text"
        sentence = (
            f"plain decoding wrote {text} at {plain:.1f} tokens a second, drafts at {drafted:.1f}:"
            f" {self.speedup}"
        )
        if self.speedup.is_certain:
            return sentence
        return f"{sentence}; on an idle machine, M is up to {self.mean_tokens_at_max:.2f}"
