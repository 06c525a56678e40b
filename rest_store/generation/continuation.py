"""A trial of models with recurrent state: several tokens must equal single steps.

Not all do, and those that do not raise no error: mixers of Mamba, for one, begin with an empty
state. Of the families of transformers it is known. Any other model is tried once.
"""

from __future__ import annotations

import weakref
from collections.abc import Set
from typing import Any, TypeAlias

import torch
from transformers import DynamicCache

from rest_store.datastore.tree import TokenTree
from rest_store.errors import NotSupportedError, describe
from rest_store.generation.deferred import DeferredVerifier
from rest_store.generation.draft_sessions import EMPTY
from rest_store.generation.prefill import prefill
from rest_store.generation.seam import name_of_cache
from rest_store.generation.support import vocabulary_size

# By model_type. All of them were tried with tiny models of random weights
# (tests/generation/test_continuation.py).
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

_PROMPT = 5  # tokens that the trial reads at first
_TOKENS = 6  # and then in both ways
# The greatest difference of logits that is rounding, relative to their spread. Of a state that is
# lost it is about 1.
_ROUNDING = {torch.float64: 1e-3, torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.2}

# Of a row: the last token and its draft, and how many draft tokens at the end are dropped; None:
# nothing is read.
_Step: TypeAlias = tuple[list[int], int] | None

_differences: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()


def require_continuation(model: Any) -> None:
    """Check that passes over several tokens behind a filled cache equal single steps.

    A model of no known family is tried once: about ten passes over a few tokens.

    Raises:
        NotSupportedError: they do something else, or raise an error.
    """
    if is_known(model):
        return
    if is_known(model, INEXACT):
        raise _refusal(model, "not as exact: they are read from an empty state")
    if model not in _differences:
        try:
            _differences[model] = difference(model)
        except Exception as error:
            raise _refusal(model, f"not possible ({type(error).__name__}: {error})") from error
    actual = _differences[model]
    most = _ROUNDING.get(model.dtype, 0.2)
    if not actual <= most:  # nor not a number
        rounding = f"logits differ by {actual:.2g} of their spread, by rounding at most {most:.2g}"
        raise _refusal(model, f"something else ({rounding})")


def is_known(model: Any, families: Set[str] = EXACT) -> bool:
    """Return whether a model is of one of these families of transformers."""
    family = model.config.get_text_config(decoder=True).model_type
    return type(model).__module__.startswith("transformers.models.") and family in families


def _refusal(model: Any, actual: str) -> NotSupportedError:
    what = "reading several tokens behind its recurrent state"
    return NotSupportedError(
        describe(type(model).__name__, what, actual, "the same as reading them one by one")
    )


def difference(model: Any) -> float:
    """Return the distance of logits of longer passes from single steps, by their spread.

    Two rows read the same tokens. The drafts of one are partly wrong, so that the other one is
    ahead of it.
    """
    size = vocabulary_size(model)
    tokens = [(7 + 31 * number) % size for number in range(_PROMPT + _TOKENS)]
    prompt = tokens[:_PROMPT]
    ahead = tokens[_PROMPT:]
    wrong = [(token + 1) % size for token in ahead[2:4]]
    with torch.no_grad():
        [one_by_one] = _logits(model, [prompt], [[([token], 0)] for token in ahead])
        first: list[_Step] = [([*ahead[:2], *wrong], 2), (ahead[2:5], 0), ([ahead[5], *wrong], 2)]
        second: list[_Step] = [(ahead[:4], 0), (ahead[4:], 0), None]
        at_once = _logits(
            model, [prompt] * 2, [[*both] for both in zip(first, second, strict=True)]
        )
    spread = (one_by_one - one_by_one.mean(dim=-1, keepdim=True)).square().mean().sqrt()
    errors = [(logits - one_by_one).square().mean().sqrt() for logits in at_once]
    return float(torch.stack(errors).max() / spread)


def _logits(model: Any, prompts: list[list[int]], steps: list[list[_Step]]) -> list[torch.Tensor]:
    """Return the logits after tokens that are kept, float64[tokens, vocabulary] of each row.

    Args:
        model: of transformers.
        prompts: read first, of one length.
        steps: of each and for each row.
    """
    ids = torch.tensor(prompts, device=model.device)
    positions = torch.arange(ids.shape[1], device=model.device).expand(ids.shape)
    cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    read = prefill(model, ids, None, {str(name_of_cache(model)): cache, "position_ids": positions})
    verifier = DeferredVerifier(model, read, 1 + _TOKENS)
    row_logits: list[list[torch.Tensor]] = [[] for _ in prompts]
    try:
        for row_steps in steps:
            last = [None if step is None else step[0][0] for step in row_steps]
            drafts = [[] if step is None else step[0][1:] for step in row_steps]
            trees = [
                TokenTree(draft, range(-1, len(draft) - 1), [1] * len(draft)) if draft else EMPTY
                for draft in drafts
            ]
            logits = verifier.run(last, trees, 1 + max(map(len, drafts)))
            ends = [0 if step is None else len(step[0]) - step[1] for step in row_steps]
            verifier.keep([range(end) for end in ends])
            for row, end in enumerate(ends):
                row_logits[row].append(logits[row, :end].double().cpu())
        return [torch.cat(logits) for logits in row_logits]
    finally:
        verifier.close()
