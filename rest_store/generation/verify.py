"""Verification: one forward pass over the last token and its draft tree, with tree attention (REST, section 3.3).

Each node sees the context, its ancestors and itself, and its position is that of its depth, so the logits at a node are
those of decoding its path token by token, up to rounding. Nothing here is thread-safe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rest_store.datastore.tree import TokenTree
from rest_store.errors import ModelNotSupportedError, describe
from rest_store.generation.attention import TreeAttention
from rest_store.generation.cache import CHUNKED, FULL, SLIDING, Pattern, TreeKVCache


def patterns_of(config: Any, layers: int) -> list[Pattern]:
    """Return what each layer of a model attends to, from its text configuration.

    Raises:
        ModelNotSupportedError: a kind of attention that is not supported for trees.
    """
    window = int(getattr(config, "sliding_window", None) or 0)
    chunk = int(getattr(config, "attention_chunk_size", None) or 0)
    known = {FULL: Pattern(FULL), SLIDING: Pattern(SLIDING, window), CHUNKED: Pattern(CHUNKED, chunk)}
    names = getattr(config, "layer_types", None)
    if names is None:
        names = [SLIDING if window else CHUNKED if chunk else FULL] * layers
    for name in names:
        if name not in known:
            raise ModelNotSupportedError(
                describe("verification", "the attention of a layer", repr(name), f"one of {', '.join(known)}")
            )
    return [known[name] for name in names[:layers]]


class Step:
    """What one forward pass verifies: for each row its last token, then the nodes of its tree, padded to one width.

    Attributes:
        width: tokens of each row.
        tokens: int64[rows, width].
        depths: int64[rows, width], 0 for the last token and for padding.
        ancestors: bool[rows, width, width], True where the token of a row of the matrix sees that of a column.

    Args:
        last: the last token of each row, not yet in the cache; None: nothing is written to the row in this step, and it
            is all padding. It then stands where its last kept token does, because the model may have no position after
            that.
        trees: the draft tree of each row.
        width: tokens of each row, at least 1 + the nodes of the largest tree.
    """

    def __init__(self, last: Sequence[int | None], trees: Sequence[TokenTree], width: int) -> None:
        self.width = width
        shape = (len(trees), self.width)
        self.tokens: npt.NDArray[np.int64] = np.zeros(shape, dtype=np.int64)
        self.depths: npt.NDArray[np.int64] = np.zeros(shape, dtype=np.int64)
        self.ancestors: npt.NDArray[np.bool_] = np.zeros((*shape, self.width), dtype=np.bool_)
        self.ancestors[:] = np.eye(self.width, dtype=np.bool_)
        self.ancestors[:, :, 0] = True
        for row, (token, tree) in enumerate(zip(last, trees, strict=True)):
            if token is None:
                self.depths[row] = -1
                continue
            self.tokens[row] = token  # padding is never read
            if len(tree):
                nodes = slice(1, 1 + len(tree))
                self.tokens[row, nodes] = tree.tokens
                self.depths[row, nodes] = tree.depths
                self.ancestors[row, nodes, nodes] = tree.mask()


class Verifier:
    """Runs steps through a model and its tree cache.

    Args:
        model: a decoder-only model of transformers.
        cache: the keys and values of all tokens but the last of each row.
        seen: bool[rows, tokens], False for padding on the left; None: no padding.
        positions: int64[..., rows, 1], the position of each row's last token (a leading axis where the model has one).
        extras: further arguments of the model's forward pass.

    Attributes:
        captured: whether a graph was captured in the last step, so that its time says nothing about later ones.

    Raises:
        ModelNotSupportedError: the model's attention takes no mask and cannot be switched to one that does.
    """

    captured = False

    def __init__(
        self,
        model: Any,
        cache: TreeKVCache,
        *,
        seen: torch.Tensor | None,
        positions: torch.Tensor,
        extras: Mapping[str, Any] | None = None,
    ) -> None:
        self.model = model
        self.cache = cache
        self.extras = dict(extras or {})
        self.config = model.config.get_text_config(decoder=True)
        self.attention = TreeAttention(model, self.config)
        self.patterns = sorted({group.pattern for group in cache.groups}, key=lambda pattern: pattern.name)
        self._keyed = hasattr(self.config, "layer_types")
        sdpa = self.config._attn_implementation == "sdpa"
        self._may_go_unmasked = sdpa and all(pattern.name != CHUNKED for pattern in self.patterns)
        self._device = cache.groups[0].keys.device
        self._origin = self._origin_of(positions)
        self._seen = seen.to(self._device) if seen is not None else None

    def width_of(self, tokens: int) -> int:
        """Return the width of a step of at most `tokens` tokens for each row."""
        return tokens

    def run(self, step: Step) -> torch.Tensor:
        """Verify `step`.

        Returns:
            Logits, [rows, width, vocabulary]: what follows each node, given the context and the path to it. Keys and
            values of the step are in the cache until `cache.keep` says which stay.
        """
        self.cache.reserve(step.width)
        lengths = torch.tensor(self.cache.lengths, device=self._device)[:, None]
        tokens, depths, ancestors = (
            torch.from_numpy(array).to(self._device) for array in (step.tokens, step.depths, step.ancestors)
        )
        return self._forward(tokens, depths, ancestors, lengths)

    def _forward(
        self, tokens: torch.Tensor, depths: torch.Tensor, ancestors: torch.Tensor, lengths: torch.Tensor
    ) -> torch.Tensor:
        """Return the logits of a step; arguments as in `Step`, and int64[rows, 1], the length of each row."""
        slots = lengths + depths
        all_seen = self._all_seen(tokens.shape[1])
        with nullcontext() if all_seen else self.attention():
            if all_seen:
                masks: dict[str, Any] = dict.fromkeys(pattern.name for pattern in self.patterns)
            else:
                masks = {pattern.name: self._mask(pattern, ancestors, lengths, slots) for pattern in self.patterns}
            output = self.model(
                input_ids=tokens,
                attention_mask=masks if self._keyed else next(iter(masks.values())),
                position_ids=self._origin + slots,
                past_key_values=self.cache,
                use_cache=True,
                return_dict=True,
                **self.extras,
            )
        logits: torch.Tensor = output.logits
        return logits

    def _all_seen(self, width: int) -> bool:
        """Whether a step needs no mask: one token for each row, which sees all slots, and no chunk begins there."""
        return width == 1 and self._may_go_unmasked and self._seen is None and len(set(self.cache.lengths)) == 1

    def _slots_seen(self, pattern: Pattern, width: int) -> torch.Tensor:
        """Return the slots whose keys layers of `pattern` get in a step of `width` tokens, ascending."""
        return torch.arange(self.cache.first_seen(pattern), self.cache.end + width, device=self._device)

    def _mask(
        self, pattern: Pattern, ancestors: torch.Tensor, lengths: torch.Tensor, slots: torch.Tensor
    ) -> torch.Tensor:
        """Return the attention mask, [rows, 1, width, slots seen]; as numbers for eager attention, which adds them."""
        width = slots.shape[1]
        held = self._slots_seen(pattern, width)
        node = held - lengths.max()  # which node of the step is in each slot
        in_step = (node >= 0) & (node < width)
        node = node.clamp(0, width - 1)
        context = (held < lengths) & ~in_step
        if self._seen is not None:
            known = self._seen.shape[1]
            context = context & (self._seen[:, held.clamp(max=known - 1)] | (held >= known))
        mask = torch.where(in_step, ancestors[:, :, node], context[:, None, :])
        if pattern.name != FULL:
            there = torch.where(in_step, slots[:, node], held)[:, None, :]  # places in the sequence
            here = slots[:, :, None]
            if pattern.name == CHUNKED:
                # Chunks begin behind the padding; what is masked within the text counts.
                start = 0 if self._seen is None else (self._seen.cumsum(dim=1) == 0).sum(dim=1)[:, None, None]
                mask = mask & ((there - start) // pattern.window == (here - start) // pattern.window)
            else:
                mask = mask & (there > here - pattern.window)
        if self.config._attn_implementation != "eager":
            return mask[:, None]
        dtype = self.cache.groups[0].keys.dtype
        return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)[:, None]

    def _origin_of(self, positions: torch.Tensor) -> torch.Tensor:
        """Return the position of each row's slot 0; `positions` as on construction."""
        return positions.to(self._device) - torch.tensor(self.cache.lengths, device=self._device)[:, None]
