"""Verification with fixed shapes: every step one of a few widths, on an accelerator one recorded graph each.

All that a step needs (tokens, depths, ancestors, lengths) goes to the device in one copy; masks and positions are made
there, as part of the graph. Torch is imported here; nothing is thread-safe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rest_store.generation.cache import CHUNKED, FULL, Pattern, TreeCache
from rest_store.generation.verify import Step, Verifier


class FixedVerifier(Verifier):
    """Runs steps of fixed widths through a model and a tree cache of fixed size.

    Args:
        model: a decoder-only model of `transformers`.
        cache: a tree cache made with `fixed`.
        widths: the widths, ascending; a step is padded to the next of them.
        seen: as of `Verifier`.
        positions: as of `Verifier`.
        extras: as of `Verifier`.
        record: record a CUDA graph for each width; None: if the model is on a CUDA device.

    Raises:
        ModelNotSupportedError: as of `Verifier`.
    """

    def __init__(
        self,
        model: Any,
        cache: TreeCache,
        widths: Sequence[int],
        *,
        seen: torch.Tensor | None,
        positions: torch.Tensor,
        extras: Mapping[str, Any] | None = None,
        record: bool | None = None,
    ) -> None:
        super().__init__(model, cache, seen=seen, positions=positions, extras=extras)
        self._widths = sorted(widths)
        self._record = self._device.type == "cuda" if record is None else record
        self._inputs: dict[int, torch.Tensor] = {}
        self._graphs: dict[int, tuple[Any, torch.Tensor]] = {}
        if self._seen is not None:
            hidden = cache.allocated - self._seen.shape[1]
            self._seen = torch.nn.functional.pad(self._seen, (0, hidden), value=True)

    def run(self, step: Step) -> torch.Tensor:
        """Verify `step`; logits of its own width, valid until the next step of that width."""
        width = next(width for width in self._widths if width >= step.width)
        self.cache.reserve(width)
        packed = torch.from_numpy(self._packed(step, width))
        inputs = self._inputs.get(width)
        if inputs is None:
            inputs = self._inputs[width] = torch.empty_like(packed, device=self._device)
        inputs.copy_(packed, non_blocking=True)
        if not self._record:
            return self._forward(inputs, width)[:, : step.width]
        if width not in self._graphs:
            self._graphs[width] = self._recorded(inputs, width)
        graph, logits = self._graphs[width]
        graph.replay()
        return logits[:, : step.width]

    def _packed(self, step: Step, width: int) -> npt.NDArray[np.int64]:
        """Return tokens, depths, ancestors and the length of each row as one array, int64[rows, ...]."""
        rows, missing = step.tokens.shape[0], width - step.width
        ancestors = np.zeros((rows, width, width), dtype=np.int64)
        ancestors[:] = np.eye(width, dtype=np.int64)
        ancestors[:, :, 0] = 1
        ancestors[:, : step.width, : step.width] = step.ancestors
        tokens = np.pad(step.tokens, ((0, 0), (0, missing)), mode="edge")
        depths = np.pad(step.depths, ((0, 0), (0, missing)), constant_values=1)
        lengths = np.array(self.cache.lengths, dtype=np.int64)[:, None]
        return np.concatenate([tokens, depths, lengths, ancestors.reshape(rows, -1)], axis=1)

    def _forward(self, inputs: torch.Tensor, width: int) -> torch.Tensor:
        """Run the model on packed inputs; operations on the device only."""
        tokens, depths, lengths, ancestors = torch.split(inputs, [width, width, 1, width * width], dim=1)
        slots = lengths + depths
        end = lengths.max()
        self.cache.columns = end + torch.arange(width, device=self._device)
        sees = ancestors.reshape(-1, width, width).bool()
        with self.attention():
            masks = {
                pattern.name: self._fixed_mask(pattern, sees, lengths, slots, end, width) for pattern in self.patterns
            }
            output = self.model(
                input_ids=tokens.contiguous(),
                attention_mask=masks if self._keyed else next(iter(masks.values())),
                position_ids=self._origin + slots,
                past_key_values=self.cache,
                use_cache=True,
                return_dict=True,
                **self.extras,
            )
        logits: torch.Tensor = output.logits
        return logits

    def _fixed_mask(
        self,
        pattern: Pattern,
        sees: torch.Tensor,
        lengths: torch.Tensor,
        slots: torch.Tensor,
        end: torch.Tensor,
        width: int,
    ) -> torch.Tensor:
        """Return who sees whom over all slots of the cache, [rows, 1, width, slots]."""
        held = torch.arange(self.cache.allocated, device=self._device)
        node = held - end  # which node of the step lies in each slot
        in_step = (node >= 0) & (node < width)
        node = node.clamp(0, width - 1)
        context = (held < lengths) & ~in_step
        if self._seen is not None:
            context = context & self._seen
        stands = torch.where(in_step, slots[:, node], held)[:, None, :]  # the place in the sequence of what is there
        mask = torch.where(in_step, sees[:, :, node], context[:, None, :])
        own = slots[:, :, None]
        if pattern.name == CHUNKED:
            start = self._left_padding()
            mask = mask & ((stands - start) // pattern.window == (own - start) // pattern.window)
        elif pattern.name != FULL:
            mask = mask & (stands > own - pattern.window)
        mask = mask[:, None]
        if self.config._attn_implementation == "eager":
            dtype = self.cache.groups[0].keys.dtype
            return torch.where(mask, torch.zeros((), dtype=dtype, device=self._device), torch.finfo(dtype).min)
        return mask

    def _recorded(self, inputs: torch.Tensor, width: int) -> tuple[Any, torch.Tensor]:
        """Record a step of `width`, after two on a side stream that settle what libraries set up on first use."""
        side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(side):
            for _ in range(2):
                self._forward(inputs, width)
        torch.cuda.current_stream(self._device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = self._forward(inputs, width)
        return graph, logits
