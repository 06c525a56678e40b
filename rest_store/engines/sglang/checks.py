"""Checks before SGLang loads its model, so that a mistake is an error after seconds."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from rest_store.datastore.locations import is_remote
from rest_store.datastore.tokenizer import TokenizerIdentity, identity_of
from rest_store.engines.engine_settings import EngineSettings
from rest_store.live.directory import is_live
from rest_store.live.open_store import open_store

_log = logging.getLogger(__name__)


def require_datastores(settings: EngineSettings, arguments: Any) -> None:
    """Refuse datastores on this machine that are absent, or have another tokenizer than the model.

    Datastores elsewhere, and the model's vocabulary, are checked once the model is loaded.

    Args:
        settings: name the datastores.
        arguments: SGLang's, with the name of the tokenizer.

    Raises:
        RestStoreError: of the subclass for the cause.
    """
    here = [location for location in settings.locations.values() if not is_remote(location)]
    remember = settings.remember
    is_there = remember is not None and not is_remote(remember) and is_live(Path(remember))
    if not here and not is_there:
        return
    identity = _identity(arguments)
    for location in here:
        open_store(location, tokenizer=identity).close()
    if is_there and remember not in here:
        from rest_store.live.live_datastore import LiveDatastore  # loads the sorter

        LiveDatastore.open(str(remember), tokenizer=identity, read_only=True).close()


def _identity(arguments: Any) -> TokenizerIdentity | None:
    """Return the identity of the tokenizer that SGLang will load.

    None: it loads none, or not in this way.
    """
    if arguments.skip_tokenizer_init:
        return None
    try:
        from sglang.srt.utils.hf_transformers.tokenizer import get_tokenizer

        tokenizer = get_tokenizer(
            arguments.tokenizer_path or arguments.model_path,
            tokenizer_mode=arguments.tokenizer_mode,
            trust_remote_code=arguments.trust_remote_code,
            revision=arguments.revision,
            tokenizer_backend=arguments.tokenizer_backend,
        )
        return identity_of(tokenizer, str(arguments.model_path))
    except Exception as error:
        _log.debug("rest-store: tokenizers are compared later: %s", error)
        return None
