"""The text that a caller expects in an answer, and how much of it was drafted rightly."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from rest_store.datastore.tree import TokenTree

_BEFORE = 2  # tokens that a token of the prediction must follow there, too


class Prediction:
    """The predicted texts of a request, and the fate of the draft tokens that come from them.

    A draft token comes from the prediction if prompt lookup, which searches the prediction, has
    proposed it, and it stands in the prediction after the same two tokens.

    Args:
        texts: int32[n] each.
        lookup: origin of prompt lookup among the engine's sources, as a bitmask.

    Attributes:
        accepted_tokens: such draft tokens that the model also produced.
        rejected_tokens: such draft tokens that it did not produce.
    """

    def __init__(self, texts: Sequence[npt.NDArray[np.int32]], lookup: int) -> None:
        self.accepted_tokens = 0
        self.rejected_tokens = 0
        self._lookup = lookup
        self._sequences: set[tuple[int, ...]] = set()
        for text in texts:
            tokens = text.tolist()
            shifted = [tokens[place:] for place in range(_BEFORE + 1)]
            self._sequences.update(zip(*shifted, strict=False))

    def count(
        self,
        before: Sequence[int],
        tree: TokenTree,
        origins: Sequence[int],
        accepted: Collection[int],
    ) -> None:
        """Count the verified draft tokens of a step.

        Args:
            before: the last two tokens of the text before the step, or fewer if it is shorter.
            tree: the draft.
            origins: of each node, among the engine's sources.
            accepted: indices of the accepted nodes.
        """
        tokens = np.asarray(tree.tokens).tolist()
        ends: list[list[int]] = []  # the last tokens of the path to each node
        for index, parent in enumerate(np.asarray(tree.parents).tolist()):
            path = [*(before if parent < 0 else ends[parent]), tokens[index]]
            ends.append(path[-_BEFORE:])
            if origins[index] & self._lookup and tuple(path) in self._sequences:
                if index in accepted:
                    self.accepted_tokens += 1
                else:
                    self.rejected_tokens += 1
