"""Verification: one forward pass over the last token and its draft tree, with tree attention (REST, section 3.3).

Each node sees the context, its ancestors and itself, and stands at the position of its depth, so the logits at a node
are those that decoding its path token by token gives, to rounding. Torch is imported here; nothing is thread-safe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rest_store.datastore.tree import TokenTree
from rest_store.errors import ModelNotSupportedError, describe
from rest_store.generation.attention import attention_for_trees
from rest_store.generation.cache import CHUNKED, FULL, SLIDING, Pattern, TreeCache


def patterns_of(config: Any, layers: int) -> list[Pattern]:
    """Return what each of a model's layers may look back at, from its text configuration.

    Raises:
        ModelNotSupportedError: a kind of attention that trees cannot be verified with.
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
        depths: int64[rows, width], 0 for the last token.
        ancestors: bool[rows, width, width], who sees whom.

    Args:
        last: the last token of each row, not yet in the cache.
        trees: the draft tree of each row.
        width: tokens of each row, at least 1 + the nodes of the largest tree.
    """

    def __init__(self, last: Sequence[int], trees: Sequence[TokenTree], width: int) -> None:
        self.width = width
        shape = (len(trees), self.width)
        self.tokens: npt.NDArray[np.int64] = np.zeros(shape, dtype=np.int64)
        self.depths: npt.NDArray[np.int64] = np.ones(shape, dtype=np.int64)
        self.ancestors: npt.NDArray[np.bool_] = np.zeros((*shape, self.width), dtype=np.bool_)
        self.ancestors[:] = np.eye(self.width, dtype=np.bool_)
        self.ancestors[:, :, 0] = True
        self.depths[:, 0] = 0
        for row, (token, tree) in enumerate(zip(last, trees, strict=True)):
            self.tokens[row] = token  # what pads a row is never read
            nodes = slice(1, 1 + len(tree))
            self.tokens[row, nodes] = tree.tokens
            self.depths[row, nodes] = tree.depths
            self.ancestors[row, nodes, nodes] = tree.mask()


class Verifier:
    """Runs steps through a model and its tree cache.

    Args:
        model: a decoder-only model of `transformers`.
        cache: the keys and values of all tokens but the last of each row.
        seen: bool[rows, tokens], False for padding on the left; None: no padding.
        positions: int64[..., rows, 1], the position of each row's last token (a leading axis where the model has one).
        extras: further arguments of the model's forward pass.

    Attributes:
        captured: whether a graph of the last step was captured first, so that its time says nothing about the next.

    Raises:
        ModelNotSupportedError: the model's attention takes no mask and cannot be switched to one that does.
    """

    captured = False

    def __init__(
        self,
        model: Any,
        cache: TreeCache,
        *,
        seen: torch.Tensor | None,
        positions: torch.Tensor,
        extras: Mapping[str, Any] | None = None,
    ) -> None:
        self.model = model
        self.cache = cache
        self.extras = dict(extras or {})
        self.config = model.config.get_text_config(decoder=True)
        self.attention = attention_for_trees(model, self.config)
        self.patterns = sorted({group.pattern for group in cache.groups}, key=lambda pattern: pattern.name)
        self._keyed = hasattr(self.config, "layer_types")
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
        lengths = torch.tensor(self.cache.lengths, device=self._device)
        depths = torch.from_numpy(step.depths).to(self._device)
        slots = lengths[:, None] + depths
        with self.attention():
            masks = self._masks(step, lengths, slots)
            return self._through_model(torch.from_numpy(step.tokens).to(self._device), masks, slots)

    def _through_model(self, tokens: torch.Tensor, masks: Any, slots: torch.Tensor) -> torch.Tensor:
        """Return the logits of tokens that see what `masks` say, in these slots after the prompt's first."""
        output = self.model(
            input_ids=tokens,
            attention_mask=masks,
            position_ids=self._origin + slots,
            past_key_values=self.cache,
            use_cache=True,
            return_dict=True,
            **self.extras,
        )
        logits: torch.Tensor = output.logits
        return logits

    def _masks(self, step: Step, lengths: torch.Tensor, slots: torch.Tensor) -> Any:
        """Return the mask, or one for each kind of layer; None where all that is held is seen."""
        rows_alike = len(set(self.cache.lengths)) == 1
        if step.width == 1 and rows_alike and self._seen is None and self._plain_attention():
            masks: dict[str, Any] = dict.fromkeys(pattern.name for pattern in self.patterns)
        else:
            ancestors = torch.from_numpy(step.ancestors).to(self._device)
            masks = {pattern.name: self._mask(pattern, ancestors, lengths, slots) for pattern in self.patterns}
        return masks if self._keyed else next(iter(masks.values()))

    def _plain_attention(self) -> bool:
        """Whether a step of one token needs no mask: the implementation takes none, and no chunk begins in between."""
        return bool(self.config._attn_implementation == "sdpa") and all(p.name != CHUNKED for p in self.patterns)

    def _mask(
        self, pattern: Pattern, ancestors: torch.Tensor, lengths: torch.Tensor, slots: torch.Tensor
    ) -> torch.Tensor:
        """Return who sees whom, [rows, 1, width, slots seen], as `_taken` says."""
        first, end = self.cache.first_seen(pattern), self.cache.end
        held = torch.arange(first, end, device=self._device)
        context = held < lengths[:, None]
        if self._seen is not None:
            known = min(end, self._seen.shape[1])
            context[:, : max(0, known - first)] &= self._seen[:, first:known]
        seen = context[:, None, :].expand(-1, slots.shape[1], -1)
        if pattern.name != FULL:
            old, new = held[None, None, :], slots[:, None, :]
            own = slots[:, :, None]
            if pattern.name == SLIDING:
                seen = seen & (old > own - pattern.window)
                ancestors = ancestors & (new > own - pattern.window)
            else:
                start = self._left_padding()
                chunk = (own - start) // pattern.window
                seen = seen & ((old - start) // pattern.window == chunk)
                ancestors = ancestors & ((new - start) // pattern.window == chunk)
        mask = torch.cat([seen, ancestors], dim=2)[:, None]
        return self._taken(mask)

    def _taken(self, mask: torch.Tensor) -> torch.Tensor:
        """Return a mask of what is seen as the attention takes it: eager attention adds it to its scores."""
        if self.config._attn_implementation != "eager":
            return mask
        dtype = self.cache.groups[0].keys.dtype
        hidden = torch.finfo(dtype).min
        return torch.zeros(mask.shape, dtype=dtype, device=self._device).masked_fill_(~mask, hidden)

    def _origin_of(self, positions: torch.Tensor) -> torch.Tensor:
        """Return the position of each row's slot 0; `positions` as on construction."""
        return positions.to(self._device) - torch.tensor(self.cache.lengths, device=self._device)[:, None]

    def _left_padding(self) -> torch.Tensor | int:
        return (~self._seen).sum(dim=1)[:, None, None] if self._seen is not None else 0
