"""An SGLang plug-in for tests that adds the mask of trees to its attention in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_ATTENTION = (
    "sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend.forward_extend"
)


def install() -> None:
    """Register the hook; SGLang calls this in each of its processes."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(_ATTENTION, _forward_extend, HookType.AROUND)


def _forward_extend(
    plain: Callable[..., torch.Tensor],
    backend: Any,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    layer: Any,
    batch: Any,
    *rest: Any,
    **named: Any,
) -> torch.Tensor:
    """Attend over the text and, of the nodes of a tree, to what the mask has in each node's row."""
    if not batch.forward_mode.is_target_verify():
        return plain(backend, q, k, v, layer, batch, *rest, **named)
    from sglang.srt.mem_cache.memory_pool import KVWriteLoc

    nodes = batch.spec_info.draft_token_num
    rows = batch.batch_size
    pool = backend.token_to_kv_pool
    written = KVWriteLoc(batch.out_cache_loc, backend.swa_out_cache_loc)
    pool.set_kv_buffer(layer, written, k, v)
    keys = pool.get_key_buffer(layer.layer_id)
    values = pool.get_value_buffer(layer.layer_id)
    queries = q.view(rows, nodes, layer.tp_q_head_num, layer.qk_head_dim).transpose(1, 2)
    trees = batch.spec_info.custom_mask.view(rows, nodes, nodes).bool()
    attended = torch.empty(rows, nodes, layer.tp_q_head_num, layer.v_head_dim, dtype=q.dtype)
    for row in range(rows):
        length = int(batch.seq_lens[row])
        slots = backend.req_to_token_pool.req_to_token[
            batch.req_pool_indices[row], : length + nodes
        ].long()
        attended[row] = torch.nn.functional.scaled_dot_product_attention(
            queries[row],
            keys[slots].transpose(0, 1),
            values[slots].transpose(0, 1),
            attn_mask=torch.cat([torch.ones(nodes, length, dtype=torch.bool), trees[row]], dim=1),
            scale=layer.scaling,
            enable_gqa=layer.tp_q_head_num != layer.tp_k_head_num,
        ).transpose(0, 1)
    return attended.view(q.shape[0], -1)
