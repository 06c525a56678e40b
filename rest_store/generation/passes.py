"""Forward passes over draft trees, with tree attention (REST, section 3.3).

Each node sees the context, its ancestors and itself, and its position is that of its depth, so the
logits at a node are those of decoding its path token by token, up to rounding. Nothing here is
thread-safe.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from rest_store.datastore.tree import TokenTree
from rest_store.generation.attention import TreeAttention
from rest_store.generation.cache import Slots, TreeKVCache
from rest_store.generation.prefill import PrefilledPrompt
from rest_store.generation.seam import name_of_cache

Kind = TypeVar("Kind", bound=TreeKVCache)

# Of recurrent layers: no token of a pass is padding.
_NO_MASKS = dict.fromkeys(("linear_attention", "conv"))


class Verifier(ABC):
    """Verifies the drafts of a generation with a model, and holds the tokens that it has read.

    Attributes:
        shape: of drafts that it verifies, "tree" or "chain".
        passes: of the model so far.
        cache: the tokens that the model has read and that it reads.
    """

    cache: TreeKVCache
    shape = "tree"
    passes = 0

    @property
    def rereads(self) -> bool:
        """Whether accepted tokens of a draft that was partly wrong are read again."""
        return False

    @property
    def waiting(self) -> int:
        """How many tokens the next pass reads again."""
        return 0

    @abstractmethod
    def run(
        self, last: Sequence[int | None], trees: Sequence[TokenTree], width: int
    ) -> torch.Tensor:
        """Verify the last token and the draft of each row.

        Args:
            last: the last token of each row, not read yet; None: nothing is written to the row in
                this step.
            trees: the draft of each row.
            width: tokens of each row, 1 + the nodes of the largest draft; rows are padded to it.

        Returns:
            Logits, [rows, width, vocabulary], of the token after each node, given the context and
            the path to it.
        """

    @abstractmethod
    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        """Keep the tokens at `paths` of the latest step; called once after each `run`.

        Args:
            paths: for each row ascending positions in the step, 0 being its first token.
        """

    @abstractmethod
    def give_back(self, cache: Any) -> None:
        """Fill the original cache with all tokens but the last of each row."""

    @abstractmethod
    def close(self) -> None:
        """Give the model its own attention back; may be called again."""


class TreePasses(Generic[Kind]):
    """Runs trees through a model and its cache.

    Args:
        model: a decoder-only model of transformers.
        prompt: that the model has read; the content of its cache is taken over.
        kind: of cache.
        room: tokens of the first step, at most.

    Attributes:
        cache: the tokens that the model has read.

    Raises:
        NotSupportedError: the model's attention takes no mask and cannot be switched to one that
            does.
    """

    def __init__(self, model: Any, prompt: PrefilledPrompt, kind: type[Kind], room: int) -> None:
        self._model = model
        self._extras = prompt.extras
        self._parameters = inspect.signature(model.forward).parameters
        self._cache_name = str(name_of_cache(model))
        self._attention = TreeAttention(model, prompt.logits.device)
        try:
            self.cache = cache = kind(prompt.cache, prompt.patterns, prompt.length, room)
        except BaseException:  # such as no memory
            self._attention.restore()
            raise
        # One of each kind of attention.
        self._slots = {group.pattern.name: group for group in cache.groups}
        # Models with recurrent states make the mask of these themselves, unless they are given one
        # of each layer type.
        is_typed = hasattr(model.config.get_text_config(decoder=True), "layer_types")
        self._keyed = is_typed and (len(self._slots) > 1 or not cache.has_states)
        self._device = cache.device
        self._origin = prompt.positions.to(self._device) - prompt.length  # of slot 0
        self._seen = prompt.seen.to(self._device) if prompt.seen is not None else None

    def run(
        self,
        last: Sequence[int | None],
        trees: Sequence[TokenTree],
        width: int,
        *,
        logits: int | None = None,
        settings: Mapping[str, Any] = MappingProxyType({}),
    ) -> torch.Tensor:
        """Run a tree of each row, below a token.

        Args:
            last: a token for each row, not yet in the cache; None: the row is padding.
            trees: that follow it.
            width: tokens of each row, at least 1 + the nodes of the largest tree; rows are padded
                to it.
            logits: of how many tokens at the end logits are wanted; None: of all.
            settings: further arguments of the model.

        Returns:
            Logits, [rows, logits, vocabulary], of the token after each node, given the context and
            the path to it. Keys and values of the step are in the cache until `cache.keep` says
            which stay.
        """
        self.cache.reserve(width)
        packed = torch.from_numpy(_packed(self.cache.lengths, last, trees, width)).to(self._device)
        lengths, tokens, depths, ancestors = torch.split(
            packed.long(), [1, width, width, width * width], dim=1
        )
        slots = lengths + depths
        if self._all_seen(width):
            masks: dict[str, Any] = dict.fromkeys(self._slots)
        else:
            is_ancestor = ancestors.reshape(-1, width, width).bool()
            masks = {
                name: self._mask(group, is_ancestor, lengths, slots)
                for name, group in self._slots.items()
            }
        own: dict[str, Any] = {"position_ids": self._origin + slots, "logits_to_keep": logits or 0}
        own[self._cache_name] = self.cache
        output = self._model(
            input_ids=tokens.contiguous(),
            attention_mask=self._model_masks(masks),
            use_cache=True,
            return_dict=True,
            **{name: value for name, value in own.items() if name in self._parameters},
            **self._extras,
            **settings,
        )
        result: torch.Tensor = output.logits
        return result if logits is None else result[:, -logits:]

    def _model_masks(self, masks: dict[str, Any]) -> Any:
        """Return masks as the model takes them."""
        if not self._keyed:
            return next(iter(masks.values()), None)
        return {**_NO_MASKS, **masks} if self.cache.has_states else masks

    def close(self) -> None:
        """Give the model its own attention back; may be called again."""
        self._attention.restore()

    def _all_seen(self, width: int) -> bool:
        """Return whether a step needs no mask: one token for each row, which sees all slots."""
        one_each = width == 1 and self._seen is None and len(set(self.cache.lengths)) == 1
        return one_each and self._attention.name != "eager"

    def _mask(
        self, group: Slots, ancestors: torch.Tensor, lengths: torch.Tensor, slots: torch.Tensor
    ) -> torch.Tensor:
        """Return the attention mask, [rows, 1, width, slots seen].

        As numbers for eager attention, which adds them.
        """
        held = torch.arange(group.first_seen, group.end + slots.shape[1], device=self._device)
        node = held - group.end  # which node of the step is in each slot
        in_step = node >= 0
        node = node.clamp(min=0)
        context = (held < lengths) & ~in_step
        if self._seen is not None:
            known = self._seen.shape[1]
            context = context & (self._seen[:, held.clamp(max=known - 1)] | (held >= known))
        mask = torch.where(in_step, ancestors[:, :, node], context[:, None, :])
        if group.pattern.window:
            # Positions in the sequence.
            there = torch.where(in_step, slots[:, node], held)[:, None, :]
            mask = mask & (there > slots[:, :, None] - group.pattern.window)
        if self._attention.name != "eager":
            return mask[:, None]
        dtype = self.cache.groups[0].keys.dtype
        return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)[
            :, None
        ]


def _packed(
    lengths: Sequence[int], last: Sequence[int | None], trees: Sequence[TokenTree], width: int
) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Return the inputs of a step for one copy to the device.

    They are int32[rows, 1 + 2 * width + width * width].

    For each row: its length in the cache; its tokens; their depths, 0 for the last token and for
    padding; and for each token, which tokens of the step it sees, 0 or 1. A row that nothing is
    written to is all padding, and stands where its last kept token does, because the model may have
    no position after that.
    """
    rows = len(trees)
    packed = np.zeros((rows, 1 + 2 * width + width * width), dtype=np.int32)
    packed[:, 0] = lengths
    tokens = packed[:, 1 : 1 + width]
    depths = packed[:, 1 + width : 1 + 2 * width]
    ancestors = packed[:, 1 + 2 * width :].reshape(rows, width, width)
    ancestors[:] = np.eye(width, dtype=np.int32)
    ancestors[:, :, 0] = 1
    for row, (token, tree) in enumerate(zip(last, trees, strict=True)):
        if token is None:
            depths[row] = -1
            continue
        tokens[row] = token  # padding is never read
        if len(tree):
            nodes = slice(1, 1 + len(tree))
            tokens[row, nodes] = tree.tokens
            depths[row, nodes] = tree.depths
            ancestors[row, nodes, nodes] = tree.mask()
    return packed
