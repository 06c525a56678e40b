"""Every causal language model that the installed transformers has, tiny: the same text, or refused by name."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

import rest_store
from rest_store.errors import CacheNotSupportedError, ModelNotSupportedError
from tests.shared.families import family_model
from tests.shared.tiny import SCRIPTS, Drafted, Scripted, futures_of, prompts

FIXED = {"max_new_tokens": 40, "do_sample": False, "eos_token_id": None}

# GIT takes the mask of a left-padded text to begin with image tokens, also where there is no image: of several rows,
# plain generation itself writes something else than of each alone.
PADDED_OTHERWISE = {"git"}


def tiny(family: str) -> Any:
    """A model of the family; the test is skipped where there is none so small."""
    try:
        model = family_model(family)
        model.generate(**prompts(1), **FIXED)
    except Exception as error:
        pytest.skip(f"no tiny model that generates: {type(error).__name__}: {error}"[:200])
    return model


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))
def test_the_same_text_or_refused_by_name(family: str) -> None:
    model = tiny(family)
    for rows in (1,) if family in PADDED_OTHERWISE else (1, 3):
        inputs = prompts(rows)
        plain = model.generate(**inputs, **FIXED)
        futures = futures_of(inputs, plain)
        for name, script in SCRIPTS.items():
            try:
                drafted = model.generate(
                    **inputs,
                    **FIXED,
                    custom_generate=rest_store.generate,
                    drafter=[Drafted(functools.partial(Scripted, futures=futures, script=script))],
                    adaptive=False,
                )
            except (ModelNotSupportedError, CacheNotSupportedError):
                return
            assert torch.equal(drafted, plain), f"{rows} rows, {name}"
