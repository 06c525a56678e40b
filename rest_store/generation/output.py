"""What a generation returns: the tensors of transformers, and statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.generation.utils import GenerateDecoderOnlyOutput

from rest_store.generation.progress import Statistics
from rest_store.generation.rows import Row


@dataclass
class GenerateOutput(GenerateDecoderOnlyOutput):
    """What `generate` returns with `return_dict_in_generate=True`: the fields of transformers, and statistics.

    Attributes:
        statistics: forward passes, M, what the sessions did, where each token came from.
    """

    statistics: Statistics | None = None


def output_of(
    rows: Sequence[Row], config: Any, input_ids: torch.Tensor, cache: Any, statistics: Statistics
) -> torch.Tensor | GenerateOutput:
    """Return what `generate` returns.

    Args:
        rows: what was written, with the scores and logits that were kept.
        config: the prepared `GenerationConfig`.
        input_ids: int64[rows, length], the prompts.
        cache: of the model; None if it is not returned.
        statistics: of the generation.
    """
    padding = config.pad_token_id
    if padding is None:  # as `generate` of transformers does
        ends = config.eos_token_id
        padding = ends[0] if isinstance(ends, list) else ends if ends is not None else 0
    length = max(len(row.tokens) for row in rows)
    sequences = input_ids.new_full((len(rows), length), padding, dtype=torch.int64)
    for number, row in enumerate(rows):
        sequences[number, : len(row.tokens)] = torch.tensor(row.tokens)
    if not config.return_dict_in_generate:
        return sequences
    return GenerateOutput(
        sequences=sequences,
        scores=_by_token([row.scores for row in rows]) if config.output_scores else None,
        logits=_by_token([row.logits for row in rows]) if config.output_logits else None,
        past_key_values=cache,
        statistics=statistics,
    )


def _by_token(rows: Sequence[list[torch.Tensor]]) -> tuple[torch.Tensor, ...]:
    """Return [rows, vocabulary] of each generated token, 0 behind a row's end."""
    if not rows[0]:  # closed before the first token
        return ()
    zeros = torch.zeros_like(rows[0][0])
    steps = range(max(len(row) for row in rows))
    return tuple(torch.cat([row[step] if step < len(row) else zeros for row in rows]) for step in steps)
