"""A smaller model as a drafter, with the schedule of assisted generation, or a model's own first layers as one.

Torch is imported here.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import DynamicCache

from rest_store.bench.baselines import tree_of
from rest_store.datastore.tree import TokenTree
from rest_store.errors import LimitError, ModelNotSupportedError, describe
from rest_store.generation.drafting import Session


class AssistantRule:
    """Drafts the chain that a smaller model of the same vocabulary would write (Leviathan et al., arXiv 2211.17192).

    As in `transformers`, the chain grows by two tokens after one that was accepted whole, and shrinks by one otherwise.

    Args:
        model: the smaller model; decoder only.
        prompt: the tokens so far.
        tokens: draft tokens of the first chain.
    """

    def __init__(self, model: Any, prompt: Sequence[int], *, tokens: int = 5) -> None:
        self._model = model
        self._cache = DynamicCache(config=model.config.get_text_config(decoder=True))
        self._cache.activate_past_recording()
        self._context = [int(token) for token in prompt]
        self._held: list[int] = []  # tokens whose keys and values are in the cache
        self._tokens = tokens
        self._chain: list[int] = []

    @classmethod
    def of(cls, model: Any, *, tokens: int = 5) -> Callable[[list[int]], Session]:
        """Return what makes the session of a prompt."""
        return lambda prompt: cls(model, prompt, tokens=tokens)

    @torch.no_grad()
    def draft(self, *, max_nodes: int, costs: npt.NDArray[np.float64] | None) -> TokenTree:
        """Return the smaller model's chain."""
        common = 0
        while common < min(len(self._held), len(self._context) - 1) and self._held[common] == self._context[common]:
            common += 1
        if common < len(self._held):
            self._cache.crop(common - len(self._held))
        self._held = self._held[:common]
        self._chain = []
        new = self._context[common:]
        for _ in range(min(self._tokens, max_nodes)):
            ids = torch.tensor([new], device=self._model.device)
            places = torch.arange(len(self._held), len(self._held) + len(new), device=self._model.device)
            logits = self._model(
                input_ids=ids, position_ids=places[None], past_key_values=self._cache, use_cache=True
            ).logits
            self._held += new
            new = [int(logits[0, -1].argmax())]
            self._chain += new
        return tree_of([self._chain])

    def accept(self, tokens: Sequence[int]) -> None:
        """Take over `tokens`, and learn from how far they followed the chain."""
        if self._chain:
            whole = [int(token) for token in tokens[: len(self._chain)]] == self._chain
            self._tokens = self._tokens + 2 if whole else max(1, self._tokens - 1)
        self._chain = []
        self._context += [int(token) for token in tokens]

    def close(self) -> None:
        """Let go of the cache."""
        self._cache = DynamicCache()
        self._held = []


def early_exit(model: Any, layers: int) -> Any:
    """Return the first layers of a model with its own final norm and head, as a smaller model that shares its weights.

    What `assistant_early_exit` of `transformers` is, as a model of its own. Only models that were trained for it
    (LayerSkip, arXiv 2404.16710) write well from there; of others it shows what an untrained assistant costs.

    Args:
        model: a decoder-only model of `transformers`; not changed.
        layers: how many of its layers, 1 to all but one.

    Raises:
        LimitError: `layers` is out of range.
        ModelNotSupportedError: no list of layers, of the number that the configuration says, is found in the model.
    """
    depth = model.config.get_text_config(decoder=True).num_hidden_layers
    if not 1 <= layers < depth:
        raise LimitError(describe("early exit", "number of layers", layers, f"1..{depth - 1}, of the model's {depth}"))
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    smaller = copy.deepcopy(model, shared)  # what the memo holds is not copied
    config = smaller.config.get_text_config(decoder=True)
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None) is not None:
        config.layer_types = config.layer_types[:layers]
    for parent in smaller.modules():
        for name, child in parent.named_children():
            if isinstance(child, torch.nn.ModuleList) and len(child) == depth:
                setattr(parent, name, child[:layers])
                return smaller
    found = f"no torch.nn.ModuleList of {depth}"
    raise ModelNotSupportedError(describe(type(model).__name__, "its layers", found, "one list of all layers"))
