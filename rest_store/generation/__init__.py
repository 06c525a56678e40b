"""Verification and generation with models of transformers; needs torch.

Of other packages only public names are used, but for those that have no public counterpart: the
attention in use is read from `config._attn_implementation`, FSDP is known by
`_is_fsdp_managed_module`, and `rest_store.generation.prepacking` uses operators of oneDNN.
"""
