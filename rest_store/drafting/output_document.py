"""An output as a document of a live datastore."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

# Tokens of the prompt in front of the output: as many as a session looks for by default, so that
# the first token of the output follows the longest suffix of the same prompt. No more, since
# prompts are the text of others.
PROMPT_TOKENS = 16
MIN_TOKENS = 4  # shorter outputs save no forward pass that is worth a commit


class OutputDocument(NamedTuple):
    """An output as a document.

    Attributes:
        id: the same for the same tokens, so that a text that is written again is stored once.
        tokens: int32[n], the end of the prompt and the output. They include an end token, so that
            the end of a text is drafted, too.
        group: as of `LiveDatastore.add`. The same tokens in another group, or of another epoch, are
            another document.
        epoch: likewise.
    """

    id: str
    tokens: npt.NDArray[np.int32]
    group: str = ""
    epoch: int = 0

    @classmethod
    def from_output(
        cls, prompt: Sequence[int], output: Sequence[int], group: str = "", epoch: int = 0
    ) -> OutputDocument | None:
        """Return the document of `output`; None if it is too short to be worth one.

        Args:
            prompt: token ids before the output; only the last `PROMPT_TOKENS` are stored.
            output: token ids, without padding.
            group: of the document.
            epoch: of the document.
        """
        if len(output) < MIN_TOKENS:
            return None
        tokens = np.array([*prompt[-PROMPT_TOKENS:], *output], dtype=np.int32)
        labels = f"{group}/{epoch}".encode() if group or epoch else b""
        return cls(
            hashlib.blake2b(tokens.tobytes() + labels, digest_size=16).hexdigest(),
            tokens,
            group,
            epoch,
        )
