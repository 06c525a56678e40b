"""Verification with fixed shapes: each step has one of a few widths, on a CUDA device one captured graph each.

Masks and positions are made on the device, as part of the graph. Capturing takes seconds, and a graph is bound to the
memory it was captured with, so the last few verifiers of each model are kept with their caches for later generations.
Nothing here is thread-safe.
"""

from __future__ import annotations

import warnings
import weakref
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch

from rest_store.generation.attention import TreeAttention
from rest_store.generation.cache import Pattern, TreeKVCache
from rest_store.generation.prefill import Prompt
from rest_store.generation.verify import Step, Verifier

_MAX_VERIFIERS = 2  # of a model, each with memory for its keys and values
_PLAIN = frozenset({bool, int, float, str})
_SLOTS_STEP = 256  # slots of a cache are a multiple of this, so that prompts of other lengths can use it


class FixedVerifier(Verifier):
    """Runs steps of fixed widths through a model and a tree cache of fixed size.

    Args:
        cache: a tree cache made with `fixed`.
        widths: the widths of steps.
        capture: capture a CUDA graph for each width; None: if the model is on a CUDA device. If capturing fails, steps
            run without graphs, after a warning.

    Attributes:
        key: what the graphs depend on.

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
        self.model, self.attention = model, TreeAttention(model)
        self._origin.copy_(self._origin_of(positions))
        self._see(seen)

    def close(self) -> None:
        """Give the model back, and keep this for a later generation if there are graphs."""
        super().close()
        model, self.model = self.model, None
        if model is not None and self._graphs:
            kept = _verifiers.setdefault(model, OrderedDict())
            kept[self.key] = self
            while len(kept) > _MAX_VERIFIERS:
                kept.popitem(last=False)
        del self.attention  # which refers to the model

    def width_of(self, tokens: int) -> int:
        """Return the smallest of the widths that fits."""
        return next(width for width in self._widths if width >= tokens)

    def run(self, step: Step) -> torch.Tensor:
        """Verify `step`, of one of the widths; the logits are valid until the next step of that width."""
        self.cache.reserve(step.width)
        step.lengths[:] = self.cache.lengths
        on_host = torch.from_numpy(step.packed)
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
            return self._forward(inputs, step.width)
        graph, logits = self._graphs[step.width]
        graph.replay()
        return logits

    def _see(self, seen: torch.Tensor | None) -> None:
        self._seen.fill_(True)
        if seen is not None:
            self._seen[:, : seen.shape[1]] = seen

    def _forward(self, packed: torch.Tensor, width: int) -> torch.Tensor:
        self.cache.columns = packed[:, 0].max() + torch.arange(width, device=self._device)
        return super()._forward(packed, width)

    def _slots_seen(self, pattern: Pattern, width: int) -> torch.Tensor:
        return torch.arange(self.cache.allocated, device=self._device)

    def _capture_graph(self, inputs: torch.Tensor, width: int) -> tuple[Any, torch.Tensor]:
        """Capture a step of `width`, after two on a side stream that initialize libraries on first use."""
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


_verifiers: weakref.WeakKeyDictionary[Any, OrderedDict[Hashable, FixedVerifier]] = weakref.WeakKeyDictionary()


def fixed_verifier(model: Any, prompt: Prompt, widths: Sequence[int], slots: int) -> FixedVerifier:
    """Return a verifier for what follows `prompt`: a closed one that fits, or a new one.

    Args:
        model: the target model.
        prompt: what was run through it.
        widths: the widths of steps.
        slots: of the cache at least.
    """
    slots = -(-slots // _SLOTS_STEP) * _SLOTS_STEP
    key = _key(model, prompt, widths, slots)
    verifier = _verifiers.get(model, OrderedDict()).pop(key, None)
    if verifier is None:
        cache = TreeKVCache(prompt.cache, prompt.patterns, prompt.length, slots)
        verifier = FixedVerifier(
            model, cache, widths, seen=prompt.seen, positions=prompt.positions, extras=prompt.extras
        )
        verifier.key = key
        return verifier
    verifier.cache.refill(prompt.cache, prompt.length)
    verifier.attach(model, seen=prompt.seen, positions=prompt.positions)
    return verifier


def _key(model: Any, prompt: Prompt, widths: Sequence[int], slots: int) -> Hashable:
    """Return everything that a graph depends on: shapes, options, addresses of the model's weights, and its modules."""
    weights = tuple(tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers()))
    modules = tuple(map(_settings, model.modules()))
    attention = model.config.get_text_config(decoder=True)._attn_implementation
    shapes = (prompt.logits.shape[0], prompt.logits.dtype, tuple(prompt.positions.shape), slots, tuple(sorted(widths)))
    return (*shapes, *prompt.patterns, attention, repr(sorted(prompt.extras.items())), hash(weights), hash(modules))


def _settings(module: Any) -> Hashable:
    """Return what the forward pass of `module` may read besides tensors, such as the adapter in use."""
    settings: list[object] = [id(module), id(vars(module).get("forward"))]
    for value in vars(module).values():
        parts = value.values() if type(value) is dict else value if type(value) in (list, tuple) else [value]
        settings.append(tuple(part for part in parts if type(part) in _PLAIN))
    return tuple(settings)
