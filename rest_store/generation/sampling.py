"""Which token comes next, and whether it was the last: as `generate` of transformers decides it.

Every generated token is one call of the logits processors, at most one draw and one call of the stopping criteria, in
the order of the sequence and with all that precedes it. A draft is accepted as far as the chosen tokens follow it, so
drafts cannot bias anything; `rest_store.generation.typical` is the exception. Nothing here is thread-safe.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import LogitsProcessorList
from transformers.generation.logits_process import (
    EncoderNoRepeatNGramLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
)
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria

from rest_store.errors import ModeNotSupportedError, describe

Processor = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

# Processors that hold something for each row, by its place in the batch.
_OF_THE_BATCH = (
    EncoderNoRepeatNGramLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
)


class Choice:
    """Chooses the next token of a row from the logits at the end of its context.

    A single row draws from torch's own generator, as `generate` of transformers does. Rows of a batch accept drafts and
    so are at different steps at one time: each has its own copies of the processors and a generator of its own, seeded
    from torch's.

    Args:
        processors: the prepared logits processors of the generation; each call is about a single row.
        sample: draw, or take the most likely token.
        rows: rows of the batch.
        device: where the rows are.

    Attributes:
        is_argmax: the most likely token of the raw logits is chosen, so all nodes of a step can be judged at once.

    Raises:
        ModeNotSupportedError: a processor that cannot be copied for each row.
    """

    def __init__(self, processors: LogitsProcessorList, *, sample: bool, rows: int, device: torch.device) -> None:
        self.is_argmax = not sample and len(processors) == 0
        self._sample = sample
        self._processors: list[Sequence[Processor]] = [processors]
        self._generators: list[torch.Generator | None] = [None] * rows
        if rows > 1:
            self._processors = [[_for_row(one, row, rows) for one in processors] for row in range(rows)]
            seeds = torch.randint(2**63 - 1, (rows,)).tolist() if sample else []
            self._generators[: len(seeds)] = [torch.Generator(device).manual_seed(seed) for seed in seeds]

    def scores(self, row: int, ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Return the processed scores of the next token of `row`, float32[1, vocabulary].

        They are where `ids` are, as in `generate`: the model, or its last layers, may be on another device.

        Args:
            row: which row.
            ids: int64[1, length], the row so far, padding on the left included.
            logits: [1, vocabulary], any floating-point type.

        Raises:
            ModeNotSupportedError: a processor returns scores of another shape.
        """
        scores = logits.to(copy=True, dtype=torch.float32, device=ids.device)
        for processor in self._processors[row]:
            scores = processor(ids, scores)
            if scores.shape != logits.shape:
                expected = f"{list(logits.shape)}: each call is about one row"
                raise ModeNotSupportedError(
                    describe(type(processor).__name__, "the shape of its scores", list(scores.shape), expected)
                )
        return scores

    def pick(self, row: int, scores: torch.Tensor) -> int:
        """Return the next token of `row`, drawn from its processed scores or the most likely one."""
        if self._sample:
            probabilities = torch.nn.functional.softmax(scores, dim=-1)
            return int(torch.multinomial(probabilities, num_samples=1, generator=self._generators[row]))
        return int(torch.argmax(scores, dim=-1))


def _for_row(processor: Any, row: int, rows: int) -> Processor:
    """Return what judges one row of a batch as `processor` judges it among the others.

    Raises:
        ModeNotSupportedError: it cannot be copied.
    """
    of_the_batch = isinstance(processor, _OF_THE_BATCH)
    if isinstance(processor, RepetitionPenaltyLogitsProcessor):
        of_the_batch = isinstance(processor.prompt_ignore_length, torch.Tensor)
    if of_the_batch:
        return lambda ids, scores: processor(ids.expand(rows, -1), scores.expand(rows, -1).clone())[row : row + 1]
    try:
        return copy.deepcopy(processor)  # type: ignore[no-any-return]
    except Exception as error:
        state = f"not copyable ({type(error).__name__}: {error})"
        expected = "a state that can be copied for each row of a batch"
        raise ModeNotSupportedError(describe(type(processor).__name__, "its state", state, expected)) from error


class Stops:
    """Decides whether a token was the last of its row.

    Args:
        criteria: the prepared stopping criteria of the generation; each is called with every token of a single row.

    Attributes:
        are_simple: only the length and single tokens end a row; no tensor of the row is needed.
        max_length: most tokens of a row, prompt included; None: no limit.
    """

    def __init__(self, criteria: Sequence[Any]) -> None:
        self._criteria = criteria
        self.are_simple = all(type(criterion) in (EosTokenCriteria, MaxLengthCriteria) for criterion in criteria)
        lengths = [criterion.max_length for criterion in criteria if isinstance(criterion, MaxLengthCriteria)]
        self.max_length: int | None = min(lengths) if lengths else None
        self._ends: set[int] = set()
        for criterion in criteria:
            if type(criterion) is EosTokenCriteria:
                self._ends.update(criterion.eos_token_id.flatten().tolist())

    def is_end(self, token: int) -> bool:
        """Return whether `token` ends a row, whatever precedes it."""
        return token in self._ends

    def after(self, token: int, length: int) -> bool:
        """Return whether a row of `length` tokens that ends in `token` has ended; for simple criteria."""
        return token in self._ends or (self.max_length is not None and length >= self.max_length)

    def judge(self, ids: torch.Tensor, scores: Any) -> bool:
        """Return whether the row `ids`, int64[1, length], has ended; for any criteria.

        Raises:
            ModeNotSupportedError: a criterion answers for several rows.
        """
        ended = False
        for criterion in self._criteria:
            answer = criterion(ids, scores)
            if isinstance(answer, torch.Tensor) and answer.numel() != 1:
                shape, expected = f"of shape {list(answer.shape)}", "for one row: each call is about one"
                raise ModeNotSupportedError(describe(type(criterion).__name__, "its answer", shape, expected))
            ended = bool(answer) or ended
        return ended
