"""The rows of a batch: tokens are chosen one by one, as `generate` of transformers does.

Every generated token is one call of the logits processors and at most one draw, in the order of the
sequence and with all that precedes it. A draft is accepted as far as the chosen tokens follow it,
so drafts cannot bias anything; `rest_store.generation.typical` is the exception. Nothing here is
thread-safe.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import LogitsProcessorList

from rest_store.errors import NotSupportedError, describe
from rest_store.generation.processors import Processor, for_row


class Row:
    """A sequence being written.

    Args:
        ids: int64[length], the prompt.
        processors: logits processors; each call is about this row alone.
        sample: draw tokens, or take the most likely ones.
        generator: to draw with; None: torch's own.

    Attributes:
        tokens: all of it, the prompt and padding on its left included.
        processors: as above.
        scores: float32[1, vocabulary] of each generated token, if they are kept.
        logits: the same before processing.
        ended: whether a stopping criterion was met.
    """

    def __init__(
        self,
        ids: torch.Tensor,
        processors: Sequence[Processor],
        *,
        sample: bool,
        generator: torch.Generator | None,
    ) -> None:
        self.tokens: list[int] = ids.tolist()
        self.scores: list[torch.Tensor] = []
        self.logits: list[torch.Tensor] = []
        self.ended = False
        self._ids = ids[None]
        self.processors = processors
        self._sample = sample
        self._generator = generator

    def ids(self) -> torch.Tensor:
        """Return the row as a tensor, int64[1, length]."""
        if new := self.tokens[self._ids.shape[1] :]:
            self._ids = torch.cat([self._ids, self._ids.new_tensor([new])], dim=1)
        return self._ids

    def processed(self, ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Return the processed scores of the token that follows `ids`, float32[1, vocabulary].

        They are where `ids` are, as in `generate`: the model, or its last layers, may be on another
        device.

        Args:
            ids: int64[1, length], the row so far, perhaps with draft tokens.
            logits: [1, vocabulary], any floating-point type.

        Raises:
            NotSupportedError: a processor returns scores of another shape.
        """
        scores = logits.to(copy=True, dtype=torch.float32, device=ids.device)
        for processor in self.processors:
            scores = processor(ids, scores)
            if scores.shape != logits.shape:
                expected = f"{list(logits.shape)}: each call is about one row"
                raise NotSupportedError(
                    describe(
                        type(processor).__name__,
                        "the shape of its scores",
                        list(scores.shape),
                        expected,
                    )
                )
        return scores

    def pick(self, scores: torch.Tensor) -> int:
        """Return the next token, drawn from its processed scores or the most likely one."""
        if self._sample:
            probabilities = torch.nn.functional.softmax(scores, dim=-1)
            return int(torch.multinomial(probabilities, num_samples=1, generator=self._generator))
        return int(torch.argmax(scores, dim=-1))

    def keep(
        self, raw: torch.Tensor, processed: torch.Tensor | None, *, logits: bool, scores: bool
    ) -> None:
        """Keep the requested scores and logits of the next token, [1, vocabulary].

        `processed` is None if nothing changes the logits.
        """
        copy = raw.to(copy=True, dtype=torch.float32, device=self._ids.device)
        if logits:
            self.logits.append(copy)
        if scores:
            self.scores.append(copy if processed is None else processed)


def make_rows(
    input_ids: torch.Tensor, processors: LogitsProcessorList, *, sample: bool
) -> list[Row]:
    """Return the rows of `input_ids`, int64[rows, length].

    A single row draws from torch's own generator, as `generate` of transformers does. Rows of a
    batch accept drafts and so are at different steps at one time: each has its own copies of the
    processors and a generator of its own, seeded from torch's.

    Raises:
        NotSupportedError: as in `for_row`.
    """
    rows = input_ids.shape[0]
    if rows == 1:
        return [Row(input_ids[0], processors, sample=sample, generator=None)]
    own = []
    for row in range(rows):
        own.append([for_row(processor, row, rows) for processor in processors])
    generators: list[torch.Generator | None] = [None] * rows
    if sample:
        seeds = torch.randint(2**63 - 1, (rows,)).tolist()
        generators = [torch.Generator(input_ids.device).manual_seed(seed) for seed in seeds]
    return [
        Row(ids, processors, sample=sample, generator=generator)
        for ids, processors, generator in zip(input_ids, own, generators, strict=True)
    ]
