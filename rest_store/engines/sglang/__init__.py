"""Drafts inside SGLang 0.5.23: the speculative algorithm `REST_STORE`, which verifies trees."""
