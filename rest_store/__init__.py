"""Retrieval-based speculative decoding: a datastore of tokens, and drafts from it.

Importing this package loads neither torch nor grpc; each name is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rest_store.custom_generate import generate
    from rest_store.datastore import Datastore
    from rest_store.errors import RestStoreError
    from rest_store.generator import Generator
    from rest_store.tokenizer import TokenizerIdentity
    from rest_store.tree import SuffixMatch, TokenTree

__version__ = "0.1.0"

__all__ = [
    "Datastore",
    "Generator",
    "RestStoreError",
    "SuffixMatch",
    "TokenTree",
    "TokenizerIdentity",
    "__version__",
    "generate",
]

_HOMES = {
    "Datastore": "rest_store.datastore",
    "Generator": "rest_store.generator",
    "RestStoreError": "rest_store.errors",
    "SuffixMatch": "rest_store.tree",
    "TokenTree": "rest_store.tree",
    "TokenizerIdentity": "rest_store.tokenizer",
    "generate": "rest_store.custom_generate",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
