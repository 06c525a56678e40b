"""Recycled logits as the file of them holds them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.drafting.sources import RecycledLogits

_CONTEXT, _LIKELY, _WIDTH = 4, 8, 21


def recycled_rows(file: Path, tokenizer: TokenizerIdentity) -> list[tuple[list[int], list[int]]]:
    """Return contexts of one to four tokens, oldest first, each with its most likely next tokens."""
    packed = RecycledLogits.load(file, tokenizer).native.rows(tokenizer.vocabulary_size)
    rows = np.frombuffer(packed, np.int32).reshape(-1, _WIDTH).tolist()
    end = _CONTEXT + _LIKELY
    return [
        (
            [token for token in row[_CONTEXT - 1 :: -1] if token >= 0],
            [token for token in row[_CONTEXT:end] if token >= 0],
        )
        for row in rows
    ]
