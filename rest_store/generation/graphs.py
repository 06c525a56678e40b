"""Verification with fixed shapes: each step has one of a few widths, on a CUDA device one captured graph each.

All inputs of a step go to the device in one copy; masks and positions are made there, as part of the graph. Nothing
here is thread-safe.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from rest_store.generation.cache import Pattern, TreeKVCache
from rest_store.generation.verify import Step, Verifier


class FixedVerifier(Verifier):
    """Runs steps of fixed widths through a model and a tree cache of fixed size.

    Args:
        cache: a tree cache made with `fixed`.
        widths: the widths of steps.
        capture: capture a CUDA graph for each width; None: if the model is on a CUDA device. If capturing fails, steps
            run without graphs, after a warning.

    Attributes:
        key: what the graphs depend on, for the graph pool.

    All other arguments, and errors, are those of `Verifier`.
    """

    key: Hashable = None
    _seen: torch.Tensor

    def __init__(
        self,
        model: Any,
        cache: TreeKVCache,
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
        """Drop the reference to the model, and keep the graphs."""
        self.model = None

    @property
    def has_graphs(self) -> bool:
        """Whether a graph was captured."""
        return bool(self._graphs)

    def width_of(self, tokens: int) -> int:
        """Return the smallest of the widths that fits."""
        return next(width for width in self._widths if width >= tokens)

    def run(self, step: Step) -> torch.Tensor:
        """Verify `step`, of one of the widths; the logits are valid until the next step of that width."""
        self.cache.reserve(step.width)
        rows = step.tokens.shape[0]
        lengths = np.array(self.cache.lengths, dtype=np.int64)[:, None]
        arrays = [step.tokens, step.depths, step.ancestors.reshape(rows, -1), lengths]
        on_host = torch.from_numpy(np.concatenate(arrays, axis=1, dtype=np.int64))
        inputs = self._inputs.get(step.width)
        if inputs is None:
            inputs = self._inputs[step.width] = torch.empty_like(on_host, device=self._device)
        inputs.copy_(on_host, non_blocking=True)
        self.captured = self._capture and step.width not in self._graphs
        if self.captured:
            try:
                self._graphs[step.width] = self._capture_graph(inputs, step.width)
            except RuntimeError as error:
                self._capture = False
                reason = f"{type(self.model).__name__}: no graph of a step can be captured ({error})"
                warnings.warn(f"{reason}; steps run without graphs", RuntimeWarning, stacklevel=2)
        if not self._capture:
            return self._run(inputs, step.width)
        graph, logits = self._graphs[step.width]
        graph.replay()
        return logits

    def _see(self, seen: torch.Tensor | None) -> None:
        self._seen.fill_(True)
        if seen is not None:
            self._seen[:, : seen.shape[1]] = seen

    def _run(self, inputs: torch.Tensor, width: int) -> torch.Tensor:
        """Run the model on the inputs of a step; operations on the device only."""
        tokens, depths, ancestors, lengths = torch.split(inputs, [width, width, width * width, 1], dim=1)
        self.cache.columns = lengths.max() + torch.arange(width, device=self._device)
        return self._forward(tokens.contiguous(), depths, ancestors.reshape(-1, width, width).bool(), lengths)

    def _slots_seen(self, pattern: Pattern, width: int) -> torch.Tensor:
        return torch.arange(self.cache.allocated, device=self._device)

    def _capture_graph(self, inputs: torch.Tensor, width: int) -> tuple[Any, torch.Tensor]:
        """Capture a step of `width`, after two on a side stream that initialize libraries on first use."""
        side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(side):
            for _ in range(2):
                self._run(inputs, width)
        torch.cuda.current_stream(self._device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = self._run(inputs, width)
        return graph, logits
