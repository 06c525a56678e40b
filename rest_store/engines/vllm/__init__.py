"""Drafts inside vLLM's model runner V2: a plug-in of vLLM,
`rest_store.engines.vllm.plugin.install`.
"""
