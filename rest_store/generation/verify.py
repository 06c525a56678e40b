"""Verification of drafts: one forward pass over the last token and its draft (REST, section 3.3).

Models that keep keys and values verify trees, in this module. So do those with recurrent state
whose mixers can read trees, in `state_trees`. Others verify chains, in `deferred`. Both are
imported where they are needed, since early releases of transformers 5 have no such caches. Nothing
here is thread-safe.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from rest_store.datastore.tree import TokenTree
from rest_store.generation.cache import TreeKVCache, has_states, layers_with_states
from rest_store.generation.passes import TreePasses, Verifier
from rest_store.generation.prefill import PrefilledPrompt


class TreeVerifier(Verifier):
    """Verifies trees with a model of attention alone.

    Args:
        model: a decoder-only model of transformers.
        prompt: that the model has read; its keys and values are taken over.
        room: tokens of the first step, at most.

    Raises:
        NotSupportedError: the model's attention takes no mask and cannot be switched to one that
            does.
    """

    def __init__(self, model: Any, prompt: PrefilledPrompt, room: int) -> None:
        self._passes = TreePasses(model, prompt, TreeKVCache, room)
        self.cache = self._passes.cache

    def run(
        self, last: Sequence[int | None], trees: Sequence[TokenTree], width: int
    ) -> torch.Tensor:
        """Verify the last token and the tree of each row; see `Verifier.run`."""
        self.passes += 1
        self.cache.ended.update(row for row, token in enumerate(last) if token is None)
        return self._passes.run(last, trees, width)

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        """Keep the tokens at `paths` of the latest step; see `Verifier.keep`."""
        self.cache.keep(paths)

    def give_back(self, cache: Any) -> None:
        """Fill the cache that was taken over; see `Verifier.give_back`."""
        self.cache.give_back(cache)

    def close(self) -> None:
        """Give the model its own attention back; may be called again."""
        self._passes.close()


def require_verifier(model: Any, cache: Any) -> None:
    """Check before the prompt's pass that drafts can be verified with `model` and `cache`.

    Raises:
        NotSupportedError: its recurrent state goes wrong in passes over several tokens.
    """
    if has_states(cache):
        from rest_store.generation.continuation import require_continuation

        require_continuation(model)


def make_verifier(model: Any, prompt: PrefilledPrompt, room: int) -> Verifier:
    """Return the verifier of drafts behind `prompt`; arguments and errors as of `TreeVerifier`."""
    if not has_states(prompt.cache):
        return TreeVerifier(model, prompt, room)
    from rest_store.generation.continuation import is_known
    from rest_store.generation.deferred import DeferredVerifier
    from rest_store.generation.state_trees import StateTreeVerifier
    from rest_store.generation.tree_mixers import TreeMixers

    layers = layers_with_states(prompt.cache)
    mixers = TreeMixers.from_model(model, layers) if is_known(model) else None
    if mixers is None:
        return DeferredVerifier(model, prompt, room)
    return StateTreeVerifier(model, prompt, room, mixers)
