"""Linear layers with prepacked weights: on a CPU a pass over a tree then costs little more than one token.

torch computes a float32 linear layer on a CPU with a BLAS that reads the weights in their usual layout. oneDNN, a part
of torch, also takes them in blocks that fit the processor's registers, which is several times as fast for the few rows
of a step. On some processors the BLAS is faster for one to three rows, so both are timed when weights are packed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from rest_store.errors import ModelNotSupportedError, describe

_ROWS = 16  # of the input that the blocks are chosen for; other numbers work too
_TIMED_ROWS = (1, 2, 3, 4, 6, 8)
_TIMED_WEIGHTS = 1 << 27  # at most; more than caches hold
_REPEATS = 3  # of a timing

_Linear = Callable[..., torch.Tensor]


@contextmanager
def prepacked_weights(model: torch.nn.Module) -> Iterator[int]:
    """Compute the linear layers of `model` from prepacked weights inside a `with` block.

    Inputs of so few rows that the usual layout is faster on this machine are computed from that. A second copy of the
    weights is held meanwhile. Sums are the same up to the order of addition, as between passes of different widths.

    Args:
        model: any module. Its `torch.nn.Linear` layers in float32 on the CPU are prepacked, unless their `forward` was
            replaced. Do not change their weights inside the block.

    Yields:
        The number of prepacked layers.

    Raises:
        ModelNotSupportedError: there is no such layer, or this torch has no oneDNN.
    """
    pack, linear = _operators()
    layers = [module for module in model.modules() if isinstance(module, torch.nn.Linear) and _can_be_packed(module)]
    if not layers:
        expected = "at least one: a torch.nn.Linear with its own forward, in float32, on the CPU"
        raise ModelNotSupportedError(describe(type(model).__name__, "number of linear layers", 0, expected))
    weights = {_place(layer): (layer, pack(layer.weight.detach(), _ROWS)) for layer in layers}  # tied ones once
    few = _rows_of_usual_layout(list(weights.values()), linear)
    try:
        for layer in layers:
            vars(layer)["forward"] = _forward(layer, weights[_place(layer)][1], linear, few)
        yield len(layers)
    finally:
        for layer in layers:
            vars(layer).pop("forward", None)


def _place(layer: torch.nn.Linear) -> tuple[int, torch.Size]:
    return layer.weight.data_ptr(), layer.weight.shape


def _operators() -> tuple[Callable[..., Any], _Linear]:
    """Return the operators that pack a weight and multiply with it; torch's compiler uses them for frozen weights."""
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
    is_plain = type(layer) is torch.nn.Linear and "forward" not in vars(layer)
    return is_plain and layer.weight.device.type == "cpu" and layer.weight.dtype == torch.float32


def _rows_of_usual_layout(packed: list[tuple[torch.nn.Linear, Any]], linear: _Linear) -> int:
    """Return up to how many rows of an input the usual layout is faster; 0: it never is."""
    timed: list[tuple[torch.nn.Linear, Any]] = []
    size = 0
    for layer, weight in packed:
        if timed and size + layer.weight.numel() > _TIMED_WEIGHTS:
            break
        timed.append((layer, weight))
        size += layer.weight.numel()
    few = 0
    for rows in _TIMED_ROWS:
        inputs = {layer.in_features: torch.ones(rows, layer.in_features) for layer, _ in timed}
        usual, prepacked = [], []
        with torch.no_grad():
            for _ in range(_REPEATS):
                began = time.perf_counter()
                for layer, _ in timed:
                    torch.nn.functional.linear(inputs[layer.in_features], layer.weight, layer.bias)
                between = time.perf_counter()
                for layer, weight in timed:
                    linear(inputs[layer.in_features], weight, layer.bias, "none", [], "")
                usual.append(between - began)
                prepacked.append(time.perf_counter() - between)
        if min(usual) >= min(prepacked):
            break
        few = rows
    return few


def _forward(layer: torch.nn.Linear, weight: Any, linear: _Linear, few: int) -> Callable[[torch.Tensor], torch.Tensor]:
    most = few * layer.in_features  # numbers of an input that the usual layout is for

    def forward(rows: torch.Tensor) -> torch.Tensor:
        if rows.numel() <= most or torch.is_grad_enabled() or rows.dtype != torch.float32:
            return torch.nn.functional.linear(rows, layer.weight, layer.bias)
        return linear(rows, weight, layer.bias, "none", [], "")

    return forward
