"""Drafts inside SGLang: a speculative algorithm of its registry,
`REST_STORE`, which verifies trees (SGLang 0.5.23).
"""
