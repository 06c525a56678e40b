"""How to draft, and what to do with what was written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from rest_store.datastore.kernel import MAX_NODES
from rest_store.datastore.validation import limit
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.remembering import require_target
from rest_store.drafting.sources import require_source_timeout
from rest_store.errors import CalibrationError, LimitError, describe
from rest_store.generation.typical import ACCEPTANCES


@dataclass(frozen=True)
class Options:
    """How to draft, and where to remember; the fields are arguments of `rest_store.generate`, which describes them.

    Raises:
        LimitError: something else than a number, or one that is out of range.
        RememberError: nothing can be added to `remember`.
        CalibrationError: `calibration` is none.
    """

    max_nodes: int | None = None
    source_timeout: float | None = 0.5
    adaptive: bool = True
    remember: Any = None
    calibration: Calibration | None = None
    acceptance: str = ACCEPTANCES[0]

    def __post_init__(self) -> None:
        if self.max_nodes is not None:
            limit("max_nodes", self.max_nodes, MAX_NODES, least=0, where="generate")
        require_source_timeout("generate", self.source_timeout)
        require_target(self.remember)
        if self.calibration is not None and not isinstance(self.calibration, Calibration):
            kind = f"a {type(self.calibration).__name__}"
            raise CalibrationError(
                describe("generate", "calibration", kind, "a Calibration, such as Calibration.load(path)")
            )
        if self.acceptance not in ACCEPTANCES:
            expected = " or ".join(map(repr, ACCEPTANCES))
            raise LimitError(describe("generate", "acceptance", repr(self.acceptance), expected))

    def max_nodes_on(self, device: torch.device) -> int:
        """Return the most draft tokens of a step."""
        if self.max_nodes is not None:
            return self.max_nodes
        return 16 if device.type == "cpu" else 64
