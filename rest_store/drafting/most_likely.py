"""The most likely tokens of logits that are in RAM."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rest_store.datastore.kernel import native_kernel


def most_likely(logits: npt.NDArray[np.float32], count: int) -> npt.NDArray[np.int32]:
    """Return the tokens of the greatest logits of each row, of many rows on several cores.

    Args:
        logits: [n, vocabulary], rows without gaps.
        count: of tokens, 1..8.

    Returns:
        int32[n, count], the most likely one first, and of equally likely ones the first. -1 where
        there are fewer: NaN and minus infinity are no likely tokens.

    Raises:
        NativeKernelError: the kernel was not compiled.
        ValueError: `count` is out of range, or rows have gaps.
    """
    packed = native_kernel().top_tokens(logits, count)
    return np.frombuffer(bytearray(packed), np.int32).reshape(len(logits), count)
