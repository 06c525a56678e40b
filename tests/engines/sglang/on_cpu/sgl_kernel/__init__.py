"""Kernels of SGLang's speculation in torch, since the compiled ones need AVX-512."""

from __future__ import annotations

import ctypes
from typing import Any

import torch


def assign_extend_cache_locs_cpu(
    requests: torch.Tensor,
    slots: torch.Tensor,
    start: torch.Tensor,
    end: torch.Tensor,
    out: torch.Tensor,
    _: int,
) -> None:
    """Write the cache's slots for the tokens `start` to `end` of each request in turn."""
    ranges = zip(requests.tolist(), start.tolist(), end.tolist(), strict=True)
    indices = torch.cat([slots[request, first:last] for request, first, last in ranges])
    out[: indices.numel()] = indices.to(out.dtype)


def assign_req_to_token_pool_cpu(
    requests: torch.Tensor,
    slots: torch.Tensor,
    start: torch.Tensor,
    end: torch.Tensor,
    new: torch.Tensor,
    _: int,
) -> None:
    """Assign the slots `new` to the tokens `start` to `end` of each request in turn."""
    at = 0
    for request, first, last in zip(requests.tolist(), start.tolist(), end.tolist(), strict=True):
        slots[request, first:last] = new[at : at + last - first].to(slots.dtype)
        at += last - first


def fill_accept_out_cache_loc_cpu(
    accepted: torch.Tensor, slots: torch.Tensor, out: torch.Tensor
) -> None:
    """Write the slots of the accepted nodes; -1 is none."""
    nodes = accepted.flatten()
    nodes = nodes[nodes >= 0].long()
    out[: nodes.numel()] = slots[nodes]


def copy_all_layer_kv_cache_cpu(
    pointers: torch.Tensor, strides: torch.Tensor, targets: torch.Tensor, sources: torch.Tensor
) -> None:
    """Copy slots of each layer's cache; all are read before any is written."""
    for base, stride in zip(pointers.tolist(), strides.tolist(), strict=True):
        held = [ctypes.string_at(base + source * stride, stride) for source in sources.tolist()]
        for target, content in zip(targets.tolist(), held, strict=True):
            ctypes.memmove(base + target * stride, content, stride)


def verify_tree_greedy_cpu(
    *,
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
) -> None:
    """Follow the tokens that the model would write, through first children and siblings."""
    for row in range(len(candidates)):
        path = [0]
        while len(path) <= accept_index.shape[1]:
            wanted = int(target_predict[row, path[-1]])
            predicts[retrive_index[row, path[-1]]] = wanted
            child = int(retrive_next_token[row, path[-1]])
            while child != -1 and int(candidates[row, child]) != wanted:
                child = int(retrive_next_sibling[row, child])
            if child == -1 or len(path) == accept_index.shape[1]:
                break
            path.append(child)
        accept_index[row, : len(path)] = retrive_index[row, path].to(accept_index.dtype)
        accept_token_num[row] = len(path) - 1


def __getattr__(name: str) -> Any:
    """Return a kernel that nothing here calls: SGLang imports many of them."""
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*_: object, **__: object) -> None:
        raise RuntimeError(f"sgl_kernel.{name} is not among the kernels of the tests")

    return absent
