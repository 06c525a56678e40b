"""transformers is as the table of generation says.

A release that is not is named, and none gets far with one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import transformers
from transformers import DynamicCache
from transformers.modeling_outputs import CausalLMOutput

import rest_store
from rest_store.errors import NotSupportedError
from rest_store.generation.seam import DEPENDENCIES, cache_in, require_transformers
from rest_store.seam import differences
from tests.shared.strategies import refused
from tests.shared.tiny import prompts, tiny_model


@pytest.fixture
def anew() -> Iterator[None]:
    """The check is made again, and once more by later tests."""
    require_transformers.cache_clear()
    yield
    require_transformers.cache_clear()


def test_transformers_has_what_the_table_lists() -> None:
    assert differences(DEPENDENCIES) == []


def test_another_release_is_named_before_the_model_runs(
    anew: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def update(self: Any, new_keys: Any, new_values: Any, *args: Any, **kwargs: Any) -> Any:
        """As a release that renames the parameters would have it."""

    monkeypatch.setattr("transformers.cache_utils.CacheLayerMixin.update", update)
    model = tiny_model("llama")
    refused(
        NotSupportedError,
        lambda: model.generate(**prompts(1), max_new_tokens=2, custom_generate=rest_store.generate),
        f"transformers is {transformers.__version__}, in which"
        " transformers.cache_utils:CacheLayerMixin.update takes",
        "new_keys, new_values",
        "expected self, key_states, value_states",
    )


def test_an_output_is_asked_for_its_cache_by_no_deprecated_name(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    transformers.logging.get_logger("transformers.utils.generic").warning_once.cache_clear()
    assert cache_in(CausalLMOutput()) is None
    assert caplog.messages == []


def test_what_is_taken_over_is_in_the_table() -> None:
    """Caches of transformers have no attributes but those of the table and of this list."""
    listed = {part.place.rpartition(".")[2] for part in DEPENDENCIES}
    cache = DynamicCache(config=tiny_model("mistral with a sliding window").config)
    unused = {"device", "record_past", "_sliding_window_tensor"}
    assert set(vars(cache.layers[0])) - unused <= listed
