"""A drafter that proposes whatever vLLM lets one propose, right and wrong, and sees what vLLM does with rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np


class Adversary:
    """Proposes nothing, what is right, what is right but for one token, one token again and again, or anything.

    Args:
        vllm_config: the engine's.

    Attributes:
        texts: what rows may hold and how they go on: prompts with their outputs.
        seen: how often rows were "partial" (a prefill in several steps), "moved" (to another place), or "behind" (the
            engine did not ask for drafts in the step before).
    """

    texts: ClassVar[list[list[int]]] = []

    def __init__(self, vllm_config: Any) -> None:
        self.seen: Counter[str] = Counter()
        self._most = vllm_config.speculative_config.num_speculative_tokens
        self._vocabulary = vllm_config.model_config.get_vocab_size()
        self._random = np.random.default_rng(0)
        self._rows: list[list[int]] = []

    def load_model(self, model: object) -> None:
        """Nothing to load."""

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: np.ndarray,
        token_ids_cpu: np.ndarray,
        slot_mappings: object = None,
    ) -> list[list[int]]:
        rows = [token_ids_cpu[row, : num_tokens_no_spec[row]].tolist() for row in range(len(sampled_token_ids))]
        self._look(sampled_token_ids, rows)
        self._rows = rows
        return [
            self._draft(row)[: self._most] if sampled else []
            for row, sampled in zip(rows, sampled_token_ids, strict=True)
        ]

    def _look(self, sampled_token_ids: Sequence[Sequence[int]], rows: list[list[int]]) -> None:
        for place, (row, sampled) in enumerate(zip(rows, sampled_token_ids, strict=True)):
            self.seen["partial"] += not sampled
            before = [old for old, text in enumerate(self._rows) if text and row[: len(text)] == text]
            if before and sampled:
                self.seen["moved"] += place not in before
                self.seen["behind"] += max(len(self._rows[old]) for old in before) < len(row) - len(sampled)

    def _draft(self, row: list[int]) -> list[int]:
        future = next((text[len(row) :] for text in self.texts if text[: len(row)] == row), [])
        kind = self._random.integers(5)
        if kind == 0:
            return []
        if kind == 1:
            return self._random.integers(self._vocabulary, size=self._most).tolist()
        if kind == 2:
            return row[-1:] * self._most
        draft = future[: self._most]
        if kind == 3 and draft:
            place = int(self._random.integers(len(draft)))
            draft[place] = (draft[place] + 1) % self._vocabulary
        return draft
