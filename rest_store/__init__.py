"""Retrieval-based speculative decoding: a datastore of tokens, and drafts from it.

Importing this package loads neither torch nor grpc; each name is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rest_store.calibration import Calibration
    from rest_store.channels import Tls
    from rest_store.client.async_client import AsyncDatastoreClient
    from rest_store.client.client import DatastoreClient
    from rest_store.datastore import Datastore
    from rest_store.errors import RestStoreError
    from rest_store.generation.generate import generate
    from rest_store.generation.generator import Generator
    from rest_store.generation.packing import packed
    from rest_store.session import DraftSession
    from rest_store.sources import PromptLookup, RecycledLogits
    from rest_store.tokenizer import TokenizerIdentity
    from rest_store.tree import SuffixMatch, TokenTree

__version__ = "0.1.0"

__all__ = [
    "AsyncDatastoreClient",
    "Calibration",
    "Datastore",
    "DatastoreClient",
    "DraftSession",
    "Generator",
    "PromptLookup",
    "RecycledLogits",
    "RestStoreError",
    "SuffixMatch",
    "Tls",
    "TokenTree",
    "TokenizerIdentity",
    "__version__",
    "generate",
    "packed",
]

_HOMES = {
    "AsyncDatastoreClient": "rest_store.client.async_client",
    "DatastoreClient": "rest_store.client.client",
    "Tls": "rest_store.channels",
    "Calibration": "rest_store.calibration",
    "Datastore": "rest_store.datastore",
    "DraftSession": "rest_store.session",
    "PromptLookup": "rest_store.sources",
    "RecycledLogits": "rest_store.sources",
    "Generator": "rest_store.generation.generator",
    "RestStoreError": "rest_store.errors",
    "SuffixMatch": "rest_store.tree",
    "TokenTree": "rest_store.tree",
    "TokenizerIdentity": "rest_store.tokenizer",
    "generate": "rest_store.generation.generate",
    "packed": "rest_store.generation.packing",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
