"""How to draft, and what to do with what was written."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rest_store.datastore.kernel import MAX_NODES
from rest_store.datastore.validation import IntSequence, limit
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.limits import references_of
from rest_store.drafting.remembering import require_target
from rest_store.drafting.session import DraftSession
from rest_store.drafting.sources import require_source_timeout, require_sources
from rest_store.errors import CalibrationError, DrafterError, LimitError, describe
from rest_store.generation.draft_sessions import Session
from rest_store.generation.typical import ACCEPTANCES


@dataclass(frozen=True)
class Options:
    """How to draft, and where to remember; the fields are arguments of `rest_store.generate`, which describes them.

    Raises:
        DrafterError, SourceError, NativeKernelError: `drafter` cannot draft.
        ContextTypeError, TokenRangeError: a reference is not token ids.
        LimitError: something else than a number, or one that is out of range.
        RememberError: nothing can be added to `remember`.
        CalibrationError: `calibration` is none, or is there beside a callable `drafter`.
    """

    drafter: Sequence[object] | Callable[[list[int]], Session] | None = None
    references: Sequence[IntSequence] = ()
    max_nodes: int | None = None
    source_timeout: float | None = 0.5
    adaptive: bool = True
    remember: Any = None
    calibration: Calibration | None = None
    acceptance: str = ACCEPTANCES[0]

    def __post_init__(self) -> None:
        if isinstance(self.drafter, list | tuple):
            require_sources("generate", self.drafter)
        elif self.drafter is not None and not callable(self.drafter):
            expected = "a list of sources, or a function that makes the session of a prompt"
            raise DrafterError(describe("generate", "drafter", f"a {type(self.drafter).__name__}", expected))
        references_of(self.references)
        if self.max_nodes is not None:
            limit("max_nodes", self.max_nodes, MAX_NODES, least=0, where="generate")
        require_source_timeout("generate", self.source_timeout)
        require_target(self.remember)
        if self.calibration is not None:
            expected = "a Calibration, such as Calibration.load(path), beside a list of sources"
            found = f"a {type(self.calibration).__name__}"
            if not isinstance(self.calibration, Calibration):
                raise CalibrationError(describe("generate", "calibration", found, expected))
            if callable(self.drafter):
                raise CalibrationError(describe("generate", "calibration", f"{found} and a drafter", expected))
        if self.acceptance not in ACCEPTANCES:
            expected = " or ".join(map(repr, ACCEPTANCES))
            raise LimitError(describe("generate", "acceptance", repr(self.acceptance), expected))

    def max_nodes_on(self, device: torch.device) -> int:
        """Return the most draft tokens of a step."""
        if self.max_nodes is not None:
            return self.max_nodes
        return 16 if device.type == "cpu" else 64

    def session_factory(self) -> Callable[[list[int]], Session] | None:
        """Return what makes the session of each row, which share a calibration; None: nothing drafts."""
        if not isinstance(self.drafter, list | tuple):
            return self.drafter  # type: ignore[return-value]
        if not self.drafter:
            return None
        return functools.partial(
            DraftSession,
            list(self.drafter),  # the caller may change it
            calibration=Calibration.default() if self.calibration is None else self.calibration,
            source_timeout=self.source_timeout,
            references=self.references,
        )
