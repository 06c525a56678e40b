"""Verification and generation with models of transformers; needs torch.

transformers and torch have no public name for these, which are used here:

- `model._prefill`: the prompt's pass as `generate` runs it, with filled caches, embeddings and chunks;
  `generation_config._mask_length`: how many tokens it takes for those in a filled cache and the new ones.
- `config._attn_implementation`, `model._can_set_attn_implementation`, `model._supports_sdpa`: the attention in use, and
  which can replace it; `model.set_attn_implementation` visits all modules, which is too slow for every step.
- `model._is_stateful`, `model._supports_default_dynamic_cache`: models to refuse.
- `cache._is_user_defined`: whether the caller keeps the cache.
- `PrefixConstrainedLogitsProcessor._prefix_allowed_tokens_fn`: rows are judged one by one.
- the frame of a running `model.generate`, through `inspect`: it does not pass on its own `streamer` and
  `assistant_model`.
- `torch._fused_sdp_choice`, `torch.ops.mkldnn._reorder_linear_weight` and `_linear_pointwise`: kernels of the CPU.
"""
