"""Retrieval-based speculative decoding: a datastore of tokens, and drafts from it.

Importing this package loads neither torch nor grpc; each name is imported when it is first used.
Where its extra is not installed, a name raises an error that names the extra (`MissingExtraError`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from rest_store.version import __version__

if TYPE_CHECKING:
    from build_index import build
    from rest_store.datastore.datastore import Datastore
    from rest_store.datastore.tokenizer import TokenizerIdentity
    from rest_store.datastore.tree import SuffixMatch, TokenTree
    from rest_store.drafting.batch import accept_all, draft_all
    from rest_store.drafting.calibration import Calibration
    from rest_store.drafting.grammar import Grammar
    from rest_store.drafting.session import DraftSession
    from rest_store.drafting.sources import PromptLookup, RecycledLogits
    from rest_store.errors import RestStoreError
    from rest_store.generation.generate import generate
    from rest_store.generation.generator import Generator
    from rest_store.generation.grammar_mask import GrammarMask
    from rest_store.generation.output import GeneratorOutput
    from rest_store.generation.prepacking import prepacked_weights
    from rest_store.live.live_datastore import LiveDatastore
    from rest_store.service.channel import Tls
    from rest_store.service.client.async_client import AsyncDatastoreClient
    from rest_store.service.client.client import DatastoreClient

__all__ = [
    "AsyncDatastoreClient",
    "Calibration",
    "Datastore",
    "DatastoreClient",
    "DraftSession",
    "Generator",
    "GeneratorOutput",
    "Grammar",
    "GrammarMask",
    "LiveDatastore",
    "PromptLookup",
    "RecycledLogits",
    "RestStoreError",
    "SuffixMatch",
    "Tls",
    "TokenTree",
    "TokenizerIdentity",
    "__version__",
    "accept_all",
    "build",
    "draft_all",
    "generate",
    "prepacked_weights",
]

# The module of each name. The imports above tell type checkers the same; a test compares the two.
_HOMES = {
    "accept_all": "rest_store.drafting.batch",
    "AsyncDatastoreClient": "rest_store.service.client.async_client",
    "build": "build_index",
    "Calibration": "rest_store.drafting.calibration",
    "Datastore": "rest_store.datastore.datastore",
    "DatastoreClient": "rest_store.service.client.client",
    "draft_all": "rest_store.drafting.batch",
    "DraftSession": "rest_store.drafting.session",
    "generate": "rest_store.generation.generate",
    "Generator": "rest_store.generation.generator",
    "GeneratorOutput": "rest_store.generation.output",
    "Grammar": "rest_store.drafting.grammar",
    "GrammarMask": "rest_store.generation.grammar_mask",
    "LiveDatastore": "rest_store.live.live_datastore",
    "prepacked_weights": "rest_store.generation.prepacking",
    "PromptLookup": "rest_store.drafting.sources",
    "RecycledLogits": "rest_store.drafting.sources",
    "RestStoreError": "rest_store.errors",
    "SuffixMatch": "rest_store.datastore.tree",
    "Tls": "rest_store.service.channel",
    "TokenizerIdentity": "rest_store.datastore.tokenizer",
    "TokenTree": "rest_store.datastore.tree",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rest_store.extras import named_extras

    with named_extras(f"{__name__}.{name}"):
        module = importlib.import_module(_HOMES[name])
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
