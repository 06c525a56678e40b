"""Verification of trees with a model that has recurrent state, whose mixers can read trees.

While a pass reads a tree, states stay as they are. The parts of the state at each node are kept
beside them. After acceptance, the state at the last accepted node takes their place: nothing is
read again. A pass over one token changes states in place, as in plain generation. Nothing here is
thread-safe.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from rest_store.datastore.tree import TokenTree
from rest_store.generation.deferred import MixerSettings
from rest_store.generation.passes import TreePasses, Verifier
from rest_store.generation.prefill import PrefilledPrompt
from rest_store.generation.recurrent_cache import RecurrentCache
from rest_store.generation.tree_mixers import PassTree, TreeMixers


class StateTreeVerifier(Verifier):
    """Verifies trees.

    Args:
        model: of transformers.
        prompt: as in `TreeVerifier`.
        room: as there.
        mixers: of the model.
    """

    def __init__(self, model: Any, prompt: PrefilledPrompt, room: int, mixers: TreeMixers) -> None:
        self._passes = TreePasses(model, prompt, RecurrentCache, room)
        self.cache = self._passes.cache
        self._mixers = mixers
        self._settings = MixerSettings(model)
        self._tree: PassTree | None = None  # of the latest pass; None: it read one token a row
        # The cache holds the last token, too, or an error ended a pass that changes states.
        self._is_ahead = False

    def run(
        self, last: Sequence[int | None], trees: Sequence[TokenTree], width: int
    ) -> torch.Tensor:
        """Verify the last token and the tree of each row; see `Verifier.run`."""
        self.passes += 1
        cache = self.cache
        cache.ended.update(row for row, token in enumerate(last) if token is None)
        cache.drop()
        if width == 1:
            self._tree = None
            self._is_ahead = True
            cache.set_aside(sorted(cache.ended))
            return self._passes.run(last, trees, width)
        self._tree = PassTree.from_trees(trees, width, cache.longest_window, cache.device)
        with self._settings.set_for(width), self._mixers.reading(self._tree):
            return self._passes.run(last, trees, width)

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        """Keep the tokens at `paths` of the latest step; see `Verifier.keep`."""
        self._is_ahead = False
        if self._tree is None:
            self.cache.keep_first([len(path) for path in paths])
        else:
            self.cache.keep_paths(paths, self._tree)

    def give_back(self, cache: Any) -> None:
        """Fill the cache that was taken over; see `Verifier.give_back`.

        After an error in a step without drafts, `cache` stays empty.
        """
        if not self._is_ahead:
            self.cache.give_back(cache)

    def close(self) -> None:
        """Give the model its own attention back; may be called again."""
        self._passes.close()
