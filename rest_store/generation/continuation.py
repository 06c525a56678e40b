"""Whether a model with recurrent state reads several tokens behind a filled cache as it reads them one by one.

Not all do, and those that do not raise no error: mixers of Mamba, for one, begin with an empty state. Of the families
of transformers it is known. Any other model is tried once.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from transformers import DynamicCache

from rest_store.datastore.tree import TokenTree
from rest_store.errors import ModelNotSupportedError, describe
from rest_store.generation.deferred import DeferredVerifier
from rest_store.generation.draft_sessions import EMPTY
from rest_store.generation.prefill import prefill
from rest_store.generation.seam import name_of_cache
from rest_store.generation.support import vocabulary_size

# By model_type. What is here was tried with tiny models of random weights (tests/generation/test_continuation.py).
EXACT = {
    "bailing_hybrid",
    "bamba",
    "falcon_h1",
    "granitemoehybrid",
    "kimi_linear",
    "lara_mini",
    "lfm2",
    "lfm2_moe",
    "lfm3",
    "mamba2",
    "nemotron_h",
    "olmo_hybrid",
    "qwen3_5_moe_text",
    "qwen3_5_text",
    "qwen3_next",
    "zamba2",
}
INEXACT = {"falcon_mamba", "jamba", "mamba", "zamba"}

_PROMPT, _TOKENS = 5, 6  # tokens of the trial, read at first and then in both ways
# The greatest difference of logits that is rounding, relative to their spread. Of a state that is lost it is about 1.
_ROUNDING = {torch.float64: 1e-3, torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.2}

_differences: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()


def require_continuation(model: Any) -> None:
    """Check that passes over several tokens behind a filled cache do what single steps do.

    A model of no known family is tried once: about ten passes over a few tokens.

    Raises:
        ModelNotSupportedError: they do something else.
    """
    name, family = type(model).__name__, model.config.get_text_config(decoder=True).model_type
    of_transformers = type(model).__module__.startswith("transformers.models.")
    expected = "the same as reading them one by one"
    if of_transformers and family in EXACT:
        return
    if of_transformers and family in INEXACT:
        what = "reading several tokens behind its recurrent state"
        raise ModelNotSupportedError(describe(name, what, "not as exact: they are read from an empty state", expected))
    if model not in _differences:
        _differences[model] = difference(model)
    found, most = _differences[model], _ROUNDING.get(model.dtype, 0.2)
    if not found <= most:  # nor not a number
        what = "reading several tokens behind its recurrent state"
        found_text = f"something else (logits differ by {found:.2g} of their spread, by rounding at most {most:.2g})"
        raise ModelNotSupportedError(describe(name, what, found_text, expected))


def difference(model: Any) -> float:
    """Return how far logits of passes over several tokens are from those of single steps, relative to their spread.

    The several tokens are a draft that is partly wrong; what was right of it and more, in the next pass; and one
    after these.
    """
    size = vocabulary_size(model)
    tokens = [(7 + 31 * number) % size for number in range(_PROMPT + _TOKENS)]
    ahead, wrong = tokens[_PROMPT:], [(token + 1) % size for token in tokens[-2:]]
    with torch.no_grad():
        one_by_one = _logits(model, tokens[:_PROMPT], [([token], 0) for token in ahead])
        at_once = _logits(
            model, tokens[:_PROMPT], [([*ahead[:2], *wrong], 2), (ahead[2:5], 0), ([ahead[5], *wrong], 2)]
        )
    spread = (one_by_one - one_by_one.mean(dim=-1, keepdim=True)).square().mean().sqrt()
    return float((at_once - one_by_one).square().mean().sqrt() / spread)


def _logits(model: Any, prompt: list[int], steps: list[tuple[list[int], int]]) -> torch.Tensor:
    """Return the logits after tokens that are kept, float64[tokens, vocabulary].

    Args:
        model: of transformers.
        prompt: read first.
        steps: of each the last token and the draft, and how many draft tokens at its end are dropped.
    """
    ids = torch.tensor([prompt], device=model.device)
    positions = torch.arange(len(prompt), device=model.device)[None]
    cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    read = prefill(model, ids, None, {str(name_of_cache(model)): cache, "position_ids": positions})
    verifier = DeferredVerifier(model, read, 1 + max(len(tokens) for tokens, _ in steps))
    try:
        kept = []
        for tokens, dropped in steps:
            size = len(tokens) - 1
            draft = TokenTree(tokens[1:], range(-1, size - 1), [1] * size) if size else EMPTY
            logits = verifier.run([tokens[0]], [draft], 1 + size)
            verifier.keep([range(1 + size - dropped)])
            kept.append(logits[0, : 1 + size - dropped].double().cpu())
        return torch.cat(kept)
    finally:
        verifier.close()
