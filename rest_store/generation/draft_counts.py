"""Counts of drafting in one generation."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field


@dataclass
class DraftCounts:
    """The work of the draft sessions of one generation.

    Attributes:
        requested: trees requested.
        empty: of these, trees without a node: nothing matched, or nothing was likely enough to pay.
        paused: steps in which no tree was requested, although there could have been one: drafting
            did not pay.
        nodes: draft tokens verified.
        accepted: draft tokens accepted.
        failed: calls that raised.
        errors: the first few reasons, as text.
        omissions: steps that went on without a source, as in `SessionStatistics`; added up when
            sessions close.
    """

    requested: int = 0
    empty: int = 0
    paused: int = 0
    nodes: int = 0
    accepted: int = 0
    failed: int = 0
    errors: list[str] = field(default_factory=list)
    omissions: dict[tuple[str, str], int] = field(default_factory=dict)

    @property
    def dropped(self) -> dict[tuple[str, str], int]:
        """The former name of `omissions`, which goes with the next release."""
        warnings.warn("dropped is now called omissions", FutureWarning, stacklevel=2)
        return self.omissions
