"""Linear layers from weights packed for the processor: a pass over a tree that costs little more than one token.

torch hands a float32 linear layer on a CPU to a BLAS that reads the weights as they lie. oneDNN, a part of torch, also
takes them in blocks that fit the processor's registers: for the few rows of a step, several times as fast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from rest_store.errors import ModelNotSupportedError, describe

_ROWS = 16  # of the input that the blocks are chosen for; others are computed as well


@contextmanager
def prepacked_weights(model: torch.nn.Module) -> Iterator[int]:
    """Compute the linear layers of `model` from packed weights, inside a `with` block; plain decoding gains as well.

    A second copy of these weights is held meanwhile. The sums are the same up to the order in which they are added, as
    they are between passes of different widths.

    Args:
        model: any module; its `torch.nn.Linear` layers in float32 on the CPU are packed, but for those whose `forward`
            was replaced. Do not change their weights inside the block.

    Yields:
        The number of layers that are packed.

    Raises:
        ModelNotSupportedError: there is no such layer, or this torch has no oneDNN.
    """
    pack, linear = _operators()
    layers = [module for module in model.modules() if isinstance(module, torch.nn.Linear) and _can_be_packed(module)]
    if not layers:
        found = "none that is a torch.nn.Linear with its own forward, in float32, on the CPU"
        raise ModelNotSupportedError(describe(type(model).__name__, "linear layers", found, "at least one"))
    weights: dict[tuple[int, torch.Size], Any] = {}  # by what they are, not whose: tied weights are packed once
    try:
        for layer in layers:
            weight = layer.weight.detach()
            place = (weight.data_ptr(), weight.shape)
            if place not in weights:
                weights[place] = pack(weight, _ROWS)
            vars(layer)["forward"] = _forward(layer, weights[place], linear)
        yield len(layers)
    finally:
        for layer in layers:
            vars(layer).pop("forward", None)


def _operators() -> tuple[Callable[..., Any], Callable[..., torch.Tensor]]:
    """Return what packs a weight and what multiplies with it; torch's own compiler uses them for frozen weights."""
    operators = torch.ops.mkldnn
    try:
        if torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
            return operators._reorder_linear_weight, operators._linear_pointwise
    except AttributeError:
        pass
    raise ModelNotSupportedError(
        describe("prepacked_weights", f"torch {torch.__version__}", "without oneDNN", "one that has it")
    )


def _can_be_packed(layer: torch.nn.Linear) -> bool:
    own = type(layer) is torch.nn.Linear and "forward" not in vars(layer)
    return own and layer.weight.device.type == "cpu" and layer.weight.dtype == torch.float32


def _forward(
    layer: torch.nn.Linear, weight: Any, linear: Callable[..., torch.Tensor]
) -> Callable[[torch.Tensor], torch.Tensor]:
    def forward(rows: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled() or rows.dtype != torch.float32 or not rows.numel():
            return torch.nn.functional.linear(rows, layer.weight, layer.bias)
        return linear(rows, weight, layer.bias, "none", [], "")

    return forward
