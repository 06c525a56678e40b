"""Drafts inside vLLM's model runner V2: the plug-in `rest_store.engines.vllm.plugin.install`."""
