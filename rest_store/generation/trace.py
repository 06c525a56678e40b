"""What each forward pass of a generation drafted and accepted, kept for a page about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rest_store.generation.drafts import Draft
from rest_store.generation.progress import Statistics


@dataclass(frozen=True)
class TracedPass:
    """One forward pass.

    Attributes:
        drafts: of each row, what was verified; empty where nothing was.
        tokens: of each row, the tokens written, possibly none: those of the accepted path, then the bonus token.
        seconds: of the whole step.
        drafting_seconds: of that, in `draft` of sessions.
        forward_seconds: of that, in the forward pass.
    """

    drafts: Sequence[Draft]
    tokens: Sequence[Sequence[int]]
    seconds: float
    drafting_seconds: float
    forward_seconds: float

    def accepted(self, row: int = 0) -> list[int]:
        """Return the nodes of the accepted path of `row`, from the context on."""
        path: list[int] = self.drafts[row].tree.longest_path(self.tokens[row]).tolist()
        return path


@dataclass
class Trace:
    """All forward passes of a generation, which keeps them if `generation.trace = Trace()` is set before the first.

    Attributes:
        passes: in order, the prompt's first.
    """

    passes: list[TracedPass] = field(default_factory=list)

    def add(self, tokens: Sequence[Sequence[int]], drafts: Sequence[Draft], statistics: Statistics) -> None:
        """Keep the latest forward pass.

        Args:
            tokens: that each row got.
            drafts: of each row.
            statistics: of the generation; its stopwatches have just measured this pass.
        """
        times = (statistics.steps.latest, statistics.drafting.latest, statistics.forward.latest)
        self.passes.append(TracedPass(list(drafts), [list(of_row) for of_row in tokens], *times))
