"""Which token comes next, and whether it was the last: exactly as `generate` of transformers decides it.

Every generated token is one call of the logits processors, at most one draw and one call of the stopping criteria, in
the order of the sequence and with all that precedes it. A draft is accepted as far as the chosen tokens follow it, so
drafts cannot bias anything; `rest_store.generation.typical` is the exception. Nothing here is thread-safe.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
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


class Draws:
    """Draws from distributions row by row, as one call of `torch.multinomial` for all rows of a step would.

    `generate` draws for all rows of a batch at once. Rows that accept drafts are at different steps at one time, so the
    state of the random generator before each step is kept until all rows have passed it.

    Args:
        rows: rows of the batch.
        device: where the distributions are: that of the rows.
    """

    def __init__(self, rows: int, device: torch.device) -> None:
        self._rows = rows
        self._device = device
        self._states: dict[int, torch.Tensor] = {}
        self._drawn = [0] * rows
        self._steps = 0

    def draw(self, row: int, probabilities: torch.Tensor) -> torch.Tensor:
        """Return a token drawn from `probabilities`, float[1, vocabulary], for the next step of `row`, int64[1]."""
        if self._rows == 1:
            return torch.multinomial(probabilities, num_samples=1).squeeze(1)
        step = self._drawn[row]
        self._drawn[row] += 1
        newest = step == self._steps
        if newest:
            oldest = min(self._drawn)
            self._states = {step: state for step, state in self._states.items() if step >= oldest}
            self._states[step] = self._state()
            self._steps += 1
        else:
            latest = self._state()
            self._set_state(self._states[step])
        # The draw of a row depends on its own distribution and its place in the batch alone.
        token = torch.multinomial(probabilities.expand(self._rows, -1), num_samples=1)[row]
        if not newest:
            self._set_state(latest)
        return token

    def finish(self, row: int) -> None:
        """Note that `row` draws no more, so no states are kept for it."""
        self._drawn[row] = 2**62

    def _state(self) -> torch.Tensor:
        if self._device.type == "cuda":
            return torch.cuda.get_rng_state(self._device)
        return torch.get_rng_state()

    def _set_state(self, state: torch.Tensor) -> None:
        if self._device.type == "cuda":
            torch.cuda.set_rng_state(state, self._device)
        else:
            torch.set_rng_state(state)


class Choice:
    """Chooses the next token of a row from the logits at the end of its context.

    Args:
        processors: the prepared logits processors of the generation. Rows are at different steps at one time, so each
            call is about a single row, and every row of a batch has its own copies.
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
        self._processors = [processors] if rows == 1 else [_for_row(processors, row, rows) for row in range(rows)]
        self._draws = Draws(rows, device)

    def choose(self, row: int, ids: torch.Tensor, logits: torch.Tensor) -> tuple[int, torch.Tensor]:
        """Return the next token of `row` and its processed scores.

        Args:
            row: which row.
            ids: int64[1, length], the row so far, padding on the left included.
            logits: [1, vocabulary], any floating-point type.

        Returns:
            The token, and float32[1, vocabulary].

        Raises:
            ModeNotSupportedError: a processor returns scores of another shape.
        """
        scores = self.scores(row, ids, logits)
        return self.pick(row, scores), scores

    def scores(self, row: int, ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Return the processed scores of the next token of `row`, float32[1, vocabulary]; arguments as in `choose`.

        They are where `ids` are, as in `generate`: the model, or its last layers, may be on another device.
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
            return int(self._draws.draw(row, torch.nn.functional.softmax(scores, dim=-1)))
        return int(torch.argmax(scores, dim=-1))

    def finish(self, row: int) -> None:
        """Note that `row` has ended."""
        self._draws.finish(row)


def _for_row(processors: LogitsProcessorList, row: int, rows: int) -> LogitsProcessorList:
    """Return copies that judge one row of a batch alone as the originals judge it among the others.

    The prompts that processors hold are fewer than the rows where `num_return_sequences` rows continue each.

    Raises:
        ModeNotSupportedError: one cannot be copied.
    """
    copies = LogitsProcessorList()
    for processor in processors:
        if isinstance(processor, PrefixConstrainedLogitsProcessor):
            alone = copy.copy(processor)  # its function may hold much, and no state
            allowed = processor._prefix_allowed_tokens_fn
            alone._prefix_allowed_tokens_fn = lambda batch_id, ids, allowed=allowed: allowed(row + batch_id, ids)
            copies.append(alone)
            continue
        try:
            alone = copy.deepcopy(processor)
        except Exception as error:
            state = f"not copyable ({type(error).__name__}: {error})"
            expected = "a state that can be copied for each row of a batch"
            raise ModeNotSupportedError(describe(type(processor).__name__, "its state", state, expected)) from error
        if isinstance(alone, RepetitionPenaltyLogitsProcessor):
            if isinstance(alone.prompt_ignore_length, torch.Tensor):
                alone.prompt_ignore_length = alone.prompt_ignore_length[row : row + 1]
        elif isinstance(alone, EncoderRepetitionPenaltyLogitsProcessor):
            prompt = row * alone.encoder_input_ids.shape[0] // rows
            alone.encoder_input_ids = alone.encoder_input_ids[prompt : prompt + 1]
        elif isinstance(alone, EncoderNoRepeatNGramLogitsProcessor):
            prompt = row * alone.batch_size // rows
            alone.batch_size = 1
            alone.generated_ngrams = alone.generated_ngrams[prompt : prompt + 1]
        copies.append(alone)
    return copies


class Stops:
    """Decides whether a token was the last of its row.

    Args:
        criteria: the prepared stopping criteria of the generation; each is called with every token of a single row.

    Attributes:
        are_simple: only the length and single tokens end a row; no tensor of the row is needed.
        pads: whether rows that have ended are padded, as where an end token is set; if not, they are continued.
        max_length: most tokens of a row, prompt included; None: no limit.
    """

    def __init__(self, criteria: Sequence[Any]) -> None:
        self._criteria = criteria
        self.are_simple = all(type(criterion) in (EosTokenCriteria, MaxLengthCriteria) for criterion in criteria)
        self.pads = any(hasattr(criterion, "eos_token_id") for criterion in criteria)
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
