"""Options of drafting: sources, budget, and the place to remember outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rest_store.datastore.kernel import MAX_NODES
from rest_store.datastore.store import Store
from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.datastore.validation import IntSequence, check_int, label
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.draft_options import parse_references
from rest_store.drafting.grammar import Grammar
from rest_store.drafting.remembering import are_groups_apart, earlier, require_target
from rest_store.drafting.session import DraftSession
from rest_store.drafting.sources import PromptLookup, require_sources
from rest_store.errors import ArgumentError, DataFileError, describe
from rest_store.generation.typical import ACCEPTANCES


@dataclass(frozen=True)
class DraftingOptions:
    """How to draft, and where to remember.

    The fields are arguments of `rest_store.generate`, which describes them.

    Attributes:
        tokenizer: of the model; None: unknown, or not needed, since no source has one.
        grammars: of the output, beside the sources: one for all rows, or as many as there are
            prompts.
        is_trial: whether nothing is remembered of the output, though it is drafted as if.

    Raises:
        SourceError, NativeKernelError: `sources` cannot draft.
        TokenizerMismatchError: a datastore in this process, or one that is to remember, has another
            tokenizer.
        ContextTypeError, QueryError: a reference is not token ids.
        ArgumentError: something else than a number, or one that is out of range.
        SourceError: nothing can be added to `remember`.
        DocumentError: `group` is not a valid name of a group.
        DataFileError: `calibration` is not a `Calibration`.
    """

    sources: Sequence[object] | None = None
    references: Sequence[IntSequence] = ()
    max_nodes: int | None = None
    adaptive: bool = True
    remember: Any = None
    calibration: Calibration | None = None
    acceptance: str = ACCEPTANCES[0]
    group: str = ""
    epoch: int = 0
    tokenizer: TokenizerIdentity | None = None
    grammars: Sequence[Grammar] = ()
    is_trial: bool = False

    def __post_init__(self) -> None:
        if self.sources is not None:
            require_sources("generate", self.sources)
        if self.grammars:
            require_sources("generate", [*(self.sources or ()), self.grammars[0]])
        # An iterator can be read once.
        object.__setattr__(self, "references", parse_references(self.references))
        if self.max_nodes is not None:
            check_int("max_nodes", self.max_nodes, MAX_NODES, minimum=0, where="generate")
        require_target(self.remember)
        label("generate", "a group", self.group)
        check_int("epoch", self.epoch, 2**62, minimum=0, where="generate")
        if self.calibration is not None and not isinstance(self.calibration, Calibration):
            actual = f"a {type(self.calibration).__name__}"
            expected = "a Calibration, such as Calibration.load(path)"
            raise DataFileError(describe("generate", "calibration", actual, expected))
        if self.acceptance not in ACCEPTANCES:
            expected = " or ".join(map(repr, ACCEPTANCES))
            raise ArgumentError(describe("generate", "acceptance", repr(self.acceptance), expected))
        self._require_one_tokenizer()

    def _require_one_tokenizer(self) -> None:
        """Check that all datastores of this process, and the model if known, share a tokenizer."""
        stores = [
            store for store in (*(self.sources or ()), self.remember) if isinstance(store, Store)
        ]
        for store in stores:
            store.tokenizer.require_same(
                self.tokenizer or stores[0].tokenizer, f"generate: {store.path}"
            )

    def max_nodes_on(self, device: torch.device) -> int:
        """Return the most draft tokens of a step."""
        if self.max_nodes is not None:
            return self.max_nodes
        return 16 if device.type == "cpu" else 64

    def grammar_of(self, row: int, rows: int) -> Grammar | None:
        """Return the grammar that a row of so many follows; None: it follows none."""
        if self.grammars:
            return self.grammars[row * len(self.grammars) // rows]
        return next((source for source in self.sources or () if isinstance(source, Grammar)), None)

    def group_of(self, row: int, rows: int) -> str:
        """Return the group of a row's output: where the caller names none, that of its grammar.

        Where groups are kept apart, those who share a grammar are not one group.
        """
        if self.group or are_groups_apart(self.remember):
            return self.group
        grammar = self.grammar_of(row, rows)
        return "" if grammar is None else grammar.group

    def session_factory(
        self, rows: int, failed: Callable[[Exception], object]
    ) -> Callable[[int, list[int]], DraftSession] | None:
        """Return a function that opens the session of a row; all share a calibration.

        None: nothing drafts.

        Args:
            rows: of the generation.
            failed: called with why nothing was read of a group.
        """
        if not self.sources and not self.grammars:
            return None
        sources = list(self.sources or ())  # the caller may change it
        calibration = Calibration.default() if self.calibration is None else self.calibration
        by_group: dict[str, list[IntSequence]] = {}

        def make(row: int, prompt: list[int]) -> DraftSession:
            group = self.group_of(row, rows)
            if group not in by_group:
                by_group[group] = self._references_of(group, failed)
            own = [self.grammars[row * len(self.grammars) // rows]] if self.grammars else []
            references = by_group[group]
            return DraftSession(
                [*sources, *own],
                prompt,
                calibration=calibration,
                references=references,
                tokenizer=self.tokenizer,
                group=self.group,
            )

        return make

    def _references_of(
        self, group: str, failed: Callable[[Exception], object]
    ) -> list[IntSequence]:
        """Return the earlier outputs of a group, for prompt lookup, and the references."""
        has_lookup = any(isinstance(source, PromptLookup) for source in self.sources or ())
        return [*(earlier(self.remember, group, failed) if has_lookup else ()), *self.references]
