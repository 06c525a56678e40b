"""Retrieval-based speculative decoding: a datastore of tokens, and drafts from it.

Importing this package loads neither torch nor grpc; each name is imported when it is first used. Where its extra is not
installed, a name is not listed, and to use it is an error that names the extra (`MissingExtraError`).
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from build_index import build
    from rest_store.datastore.datastore import Datastore
    from rest_store.datastore.tokenizer import TokenizerIdentity
    from rest_store.datastore.tree import SuffixMatch, TokenTree
    from rest_store.drafting.batch import accept_all, draft_all
    from rest_store.drafting.calibration import Calibration
    from rest_store.drafting.session import DraftSession
    from rest_store.drafting.sources import PromptLookup, RecycledLogits
    from rest_store.errors import RestStoreError
    from rest_store.generation.generate import generate
    from rest_store.generation.generator import Generator
    from rest_store.generation.generator_output import GeneratorOutput
    from rest_store.generation.prepacking import prepacked_weights
    from rest_store.live.live_datastore import LiveDatastore
    from rest_store.service.channel import Tls
    from rest_store.service.client.async_client import AsyncDatastoreClient
    from rest_store.service.client.client import DatastoreClient

__version__ = "0.1.0"

__all__ = [
    "AsyncDatastoreClient",
    "Calibration",
    "Datastore",
    "DatastoreClient",
    "DraftSession",
    "Generator",
    "GeneratorOutput",
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

_NAMES = __all__
if not TYPE_CHECKING:
    del __all__  # `__getattr__` has it: a name that cannot be had would end `from rest_store import *`

_HOMES = {
    "AsyncDatastoreClient": "rest_store.service.client.async_client",
    "DatastoreClient": "rest_store.service.client.client",
    "Tls": "rest_store.service.channel",
    "Calibration": "rest_store.drafting.calibration",
    "Datastore": "rest_store.datastore.datastore",
    "DraftSession": "rest_store.drafting.session",
    "build": "build_index",
    "accept_all": "rest_store.drafting.batch",
    "draft_all": "rest_store.drafting.batch",
    "PromptLookup": "rest_store.drafting.sources",
    "RecycledLogits": "rest_store.drafting.sources",
    "Generator": "rest_store.generation.generator",
    "GeneratorOutput": "rest_store.generation.generator_output",
    "LiveDatastore": "rest_store.live.live_datastore",
    "RestStoreError": "rest_store.errors",
    "SuffixMatch": "rest_store.datastore.tree",
    "TokenTree": "rest_store.datastore.tree",
    "TokenizerIdentity": "rest_store.datastore.tokenizer",
    "generate": "rest_store.generation.generate",
    "prepacked_weights": "rest_store.generation.prepacking",
}


def __getattr__(name: str) -> object:
    if name == "__all__":
        return __dir__()
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rest_store import extras

    missing = extras.missing_package(_HOMES[name])
    if missing is not None:
        from rest_store.errors import MissingExtraAttributeError, MissingExtraImportError

        # No exception is both, and `hasattr` and `from ... import` ask alike; importlib does so from a function.
        imported = sys._getframe(1).f_code.co_name == "_handle_fromlist"
        kind = MissingExtraImportError if imported else MissingExtraAttributeError
        raise kind(extras.missing_text(f"{__name__}.{name}", *missing))
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names that can be had here."""
    from rest_store.extras import missing_package

    return sorted(name for name in _NAMES if name not in _HOMES or missing_package(_HOMES[name]) is None)
