"""The rows of recycled logits."""

from __future__ import annotations

import numpy as np

from rest_store.drafting.sources import RecycledLogits

_CONTEXT, _LIKELY, _WIDTH = 4, 8, 21


def recycled_rows(logits: RecycledLogits, vocabulary_size: int) -> list[tuple[list[int], list[int]]]:
    """Return contexts of one to four tokens, oldest first, each with its most likely next tokens."""
    rows = np.frombuffer(logits.native.rows(vocabulary_size), np.int32).reshape(-1, _WIDTH).tolist()
    end = _CONTEXT + _LIKELY
    return [
        (
            [token for token in row[_CONTEXT - 1 :: -1] if token >= 0],
            [token for token in row[_CONTEXT:end] if token >= 0],
        )
        for row in rows
    ]
