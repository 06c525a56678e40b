"""The most likely tokens of logits in main memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rest_store.datastore.kernel import native_kernel


def most_likely(
    logits: npt.NDArray[np.float32], count: int, drafted: npt.NDArray[np.int32] | None = None
) -> npt.NDArray[np.int32]:
    """Return the tokens of the greatest logits of each row, of many rows on several cores.

    Args:
        logits: [n, vocabulary], rows without gaps.
        count: of tokens, 1..8.
        drafted: int32[n], the draft token that is verified after each row; -1 at the end of a chain of rows. Of a
            chain, rows behind the first one whose most likely token is not its draft token are not read.

    Returns:
        int32[n, count], the most likely one first, and of equally likely ones the first. -1 where there are fewer: NaN
        and minus infinity are no likely tokens. -1 in rows that are not read.

    Raises:
        NativeKernelError: the kernel was not compiled.
        ValueError: `count` is out of range, rows have gaps, or `drafted` is of another length.
    """
    packed = native_kernel().top_tokens(logits, count, drafted)
    return np.frombuffer(bytearray(packed), np.int32).reshape(len(logits), count)
