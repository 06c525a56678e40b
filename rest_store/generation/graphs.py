"""Verification with fixed shapes: every step one of a few widths, on an accelerator one captured graph each.

All that a step needs (tokens, depths, ancestors, lengths) goes to the device in one copy; masks and positions are made
there, as part of the graph. Torch is imported here; nothing is thread-safe.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Mapping, Sequence
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
        widths: the widths of steps.
        seen: as of `Verifier`.
        positions: as of `Verifier`.
        extras: as of `Verifier`.
        capture: capture a CUDA graph for each width; None: if the model is on a CUDA device. Where one cannot be
            captured, steps run as they are, after a warning.

    Attributes:
        key: what the recordings depend on, for who keeps them.

    Raises:
        ModelNotSupportedError: as of `Verifier`.
    """

    key: Hashable = None
    _seen: torch.Tensor

    def __init__(
        self,
        model: Any,
        cache: TreeCache,
        widths: Sequence[int],
        *,
        seen: torch.Tensor | None,
        positions: torch.Tensor,
        extras: Mapping[str, Any] | None = None,
        capture: bool | None = None,
    ) -> None:
        super().__init__(model, cache, seen=None, positions=positions, extras=extras)
        self._widths = sorted(widths)
        self._capture = self._device.type == "cuda" if capture is None else capture
        self._inputs: dict[int, torch.Tensor] = {}
        self._graphs: dict[int, tuple[Any, torch.Tensor]] = {}
        self._seen = torch.ones((len(cache.lengths), cache.allocated), dtype=torch.bool, device=self._device)
        self._see(seen)

    def attach(self, model: Any, *, seen: torch.Tensor | None, positions: torch.Tensor) -> None:
        """Verify for another prompt, which `cache.refill` has taken over; arguments as on construction."""
        self.model = model
        self._origin.copy_(self._origin_of(positions))
        self._see(seen)

    def detach(self) -> None:
        """Let go of the model, but not of what was captured."""
        self.model = None

    @property
    def has_graphs(self) -> bool:
        """Whether there is something worth keeping."""
        return bool(self._graphs)

    def width_of(self, tokens: int) -> int:
        """Return the next of the widths."""
        return next(width for width in self._widths if width >= tokens)

    def run(self, step: Step) -> torch.Tensor:
        """Verify `step`, of one of the widths; logits valid until the next step of that width."""
        self.cache.reserve(step.width)
        packed = torch.from_numpy(self._packed(step))
        inputs = self._inputs.get(step.width)
        if inputs is None:
            inputs = self._inputs[step.width] = torch.empty_like(packed, device=self._device)
        inputs.copy_(packed, non_blocking=True)
        self.captured = self._capture and step.width not in self._graphs
        if self.captured:
            try:
                self._graphs[step.width] = self._capture_graph(inputs, step.width)
            except RuntimeError as error:
                self._capture = False
                found = f"{type(self.model).__name__}: no graph of a step can be captured ({error})"
                warnings.warn(f"{found}; steps run without", RuntimeWarning, stacklevel=2)
        if not self._capture:
            return self._forward(inputs, step.width)
        graph, logits = self._graphs[step.width]
        graph.replay()
        return logits

    def _see(self, seen: torch.Tensor | None) -> None:
        self._seen.fill_(True)
        if seen is not None:
            self._seen[:, : seen.shape[1]] = seen

    def _packed(self, step: Step) -> npt.NDArray[np.int64]:
        """Return tokens, depths, the length of each row and ancestors as one array, int64[rows, ...]."""
        rows = step.tokens.shape[0]
        lengths = np.array(self.cache.lengths, dtype=np.int64)[:, None]
        return np.concatenate([step.tokens, step.depths, lengths, step.ancestors.reshape(rows, -1)], axis=1)

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
            mask = masks if self._keyed else next(iter(masks.values()))
            return self._through_model(tokens.contiguous(), mask, slots)

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
        context = (held < lengths) & ~in_step & self._seen
        stands = torch.where(in_step, slots[:, node], held)[:, None, :]  # the place in the sequence of what is there
        mask = torch.where(in_step, sees[:, :, node], context[:, None, :])
        own = slots[:, :, None]
        if pattern.name == CHUNKED:
            start = self._left_padding()
            mask = mask & ((stands - start) // pattern.window == (own - start) // pattern.window)
        elif pattern.name != FULL:
            mask = mask & (stands > own - pattern.window)
        return self._taken(mask[:, None])

    def _capture_graph(self, inputs: torch.Tensor, width: int) -> tuple[Any, torch.Tensor]:
        """Capture a step of `width`, after two on a side stream that settle what libraries set up on first use."""
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
