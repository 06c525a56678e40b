"""Generation writes the tokens of transformers' `generate`, whatever the drafter says."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
import transformers

from rest_store.generation import attention
from rest_store.generation import cache as cache_module
from rest_store.generation.attention import TreeAttention
from rest_store.generation.seam import CACHE
from tests.shared.tiny import ARCHITECTURES, SCRIPTS, bushy, drafted, prompts, right, tiny_model

NEW = 40
CORE = ("llama", "mistral with a sliding window")
SOME = [
    name if name in CORE else pytest.param(name, marks=pytest.mark.slow) for name in ARCHITECTURES
]
FIXED = {"max_new_tokens": NEW, "do_sample": False}


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("architecture", SOME)
def test_greedy_search(architecture: str, rows: int) -> None:
    model = tiny_model(architecture)
    inputs = prompts(rows)
    plain = model.generate(**inputs, **FIXED)
    assert len(set(plain[:, -NEW:].flatten().tolist())) > 4, (
        "a model that writes one token only proves nothing"
    )
    for name, script in SCRIPTS.items():
        output = drafted(model, inputs, plain, script, **FIXED)
        assert torch.equal(output.sequences, plain), name
        counts = output.statistics.drafts
        assert not counts.errors
        passes = output.statistics.forward_passes
        if name == "right":  # five drafted tokens and one more with each pass after the prompt's
            assert passes == 1 + -(-(NEW - 1) // 6)
            assert counts.accepted == counts.nodes == rows * (NEW - passes)
        elif name == "wrong":
            assert (passes, counts.accepted) == (NEW, 0)
            assert counts.nodes > 0
        else:
            assert 1 + (NEW - 1) // 6 < passes < NEW
            assert 0 < counts.accepted < counts.nodes


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("architecture", CORE)
def test_both_attentions_and_caches(architecture: str, cache: str, attention: str) -> None:
    model = tiny_model(architecture, attention=attention)
    inputs = prompts(3)
    options = {**FIXED, "cache_implementation": cache}
    plain = model.generate(**inputs, **options)
    assert torch.equal(drafted(model, inputs, plain, bushy, **options).sequences, plain)
    assert model.config._attn_implementation == attention


@pytest.mark.parametrize("architecture", CORE)
def test_prompts_that_are_masked_within(architecture: str) -> None:
    model = tiny_model(architecture)
    inputs = prompts(3)
    for row, place in enumerate((3, 7, 13)):
        inputs["attention_mask"][row, place] = 0
    plain = model.generate(**inputs, **FIXED)
    assert torch.equal(drafted(model, inputs, plain, bushy, **FIXED).sequences, plain)


def test_text_of_a_model_for_images() -> None:
    """The layers of cross attention hold nothing without an image."""
    text = {**ARCHITECTURES["llama"][1], "cross_attention_layers": [1]}
    vision = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_global_layers": 1,
    }
    vision |= {"attention_heads": 4, "image_size": 28, "patch_size": 14, "vision_output_dim": 64}
    vision |= {"intermediate_layers_indices": [0]}
    torch.manual_seed(0)
    config = transformers.MllamaConfig(text_config=text, vision_config=vision)
    model = transformers.MllamaForConditionalGeneration(config).eval()
    model.generation_config.eos_token_id = None
    inputs = prompts(3)
    plain = model.generate(**inputs, **FIXED)
    for script in (right, bushy):
        output = drafted(model, inputs, plain, script, **FIXED)
        assert torch.equal(output.sequences, plain)
        assert output.statistics.drafts.accepted > NEW


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_without_copies(dtype: torch.dtype) -> None:
    """The result is bit by bit that of sdpa with copies of shared keys and values."""
    layer = tiny_model("llama", dtype=dtype).model.layers[0].self_attn
    torch.manual_seed(0)
    query = torch.randn(3, 4, 9, 8, dtype=dtype)
    key, value = torch.randn(2, 3, 2, 50, 8, dtype=dtype).unbind()
    mask = torch.rand(3, 1, 9, 50) < 0.7
    mask[..., 0] = True
    for seen in (mask, None):
        expected = attention.sdpa_attention_forward(
            layer, query, key, value, seen, dropout=0.0, scaling=0.3
        )[0]
        grouped = attention.grouped_attention(
            layer, query, key, value, seen, dropout=0.0, scaling=0.3
        )[0]
        assert torch.equal(grouped, expected)


def test_a_model_has_its_own_attention_before_and_after() -> None:
    """This holds where generations overlap, and where its attention takes no masks of trees."""
    model = tiny_model("llama")
    first = TreeAttention(model, model.device)
    second = TreeAttention(model, model.device)
    assert model.config._attn_implementation == first.name == second.name == attention.NAME
    first.restore()
    second.restore()
    assert model.config._attn_implementation == "sdpa"
    model.config._attn_implementation = "flex_attention"
    switched = TreeAttention(model, model.device)
    assert model.config._attn_implementation == attention.NAME
    switched.restore()
    assert model.config._attn_implementation == "flex_attention"


# The script ends where texts part.
@pytest.mark.filterwarnings("ignore::rest_store.errors.DraftingWarning")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_reduced_precision(dtype: torch.dtype, attention: str) -> None:
    """Logits are those of decoding token by token up to rounding.

    Texts part only where rounding decides between two tokens.
    """
    model = tiny_model("llama", attention=attention, dtype=dtype)
    inputs = prompts(4)
    options = {**FIXED, "output_logits": True}
    plain = model.generate(**inputs, **options, return_dict_in_generate=True)
    output = drafted(model, inputs, plain.sequences, bushy, **options)
    assert output.statistics.drafts.accepted > NEW
    rounding = 8 * torch.finfo(dtype).eps * torch.stack(plain.logits).abs().max()
    compared = 0
    for row in range(4):
        for own, theirs in zip(output.logits, plain.logits, strict=True):
            assert (own[row] - theirs[row]).abs().max() < rounding
            compared += 1
            if own[row].argmax() != theirs[row].argmax():
                first, second = theirs[row].topk(2).values
                assert first - second < 2 * rounding
                break
    assert compared > 2 * NEW, "texts part late, if at all"


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(
    "options",
    [
        {"repetition_penalty": 1.7},
        {"no_repeat_ngram_size": 2},
        {"bad_words_ids": [[token] for token in range(10, 40)] + [[50, 51]]},
        {"min_new_tokens": 12, "eos_token_id": list(range(20, 60))},
        {"encoder_repetition_penalty": 1.5, "encoder_no_repeat_ngram_size": 2},
        {"prefix_allowed_tokens_fn": lambda row, ids: range(3 + 20 * row, 23 + 20 * row)},
        {"exponential_decay_length_penalty": (5, 1.3), "eos_token_id": 2},
        {"suppress_tokens": [8, 9, 10], "forced_eos_token_id": 3},
        {"watermarking_config": transformers.WatermarkingConfig(bias=3.0)},
        {
            "watermarking_config": transformers.SynthIDTextWatermarkingConfig(
                keys=[3, 5, 7], ngram_len=3
            )
        },
    ],
    ids=lambda options: "+".join(options),
)
def test_processors_see_the_true_beginning(options: dict[str, Any], rows: int) -> None:
    model = tiny_model("llama")
    inputs = prompts(rows)
    plain = model.generate(**inputs, **FIXED, **options)
    assert not torch.equal(plain, model.generate(**inputs, **FIXED)), "the option has to matter"
    for script in (right, bushy):
        assert torch.equal(
            drafted(model, inputs, plain, script, **FIXED, **options).sequences, plain
        )


@pytest.mark.parametrize("rows", [1, 4])
def test_a_row_ends_with_its_own_token(rows: int) -> None:
    model = tiny_model("llama")
    inputs = prompts(rows)
    unbounded = model.generate(**inputs, **FIXED)
    for place in (0, 3, 17):
        ends = [int(unbounded[0, 14 + place])]
        plain = model.generate(**inputs, **FIXED, eos_token_id=ends)
        for script in (right, bushy):
            output = drafted(model, inputs, plain, script, **FIXED, eos_token_id=ends)
            assert torch.equal(output.sequences, plain)
            lengths = [len(origins) for origins in output.statistics.origins]
            assert lengths[0] <= place + 1
            assert max(lengths) == plain.shape[1] - 14
            assert sum(lengths) == output.statistics.tokens


def test_scores_and_logits_are_those_of_each_token() -> None:
    model = tiny_model("qwen3")
    options = {**FIXED, "output_scores": True, "output_logits": True, "repetition_penalty": 1.3}
    for rows in (1, 3):
        inputs = prompts(rows)
        plain = model.generate(**inputs, **options, return_dict_in_generate=True)
        output = drafted(model, inputs, plain.sequences, bushy, **options)
        assert torch.equal(output.sequences, plain.sequences)
        for name in ("scores", "logits"):
            for own, theirs in zip(getattr(output, name), getattr(plain, name), strict=True):
                torch.testing.assert_close(own, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("architecture", [*CORE, pytest.param("gemma2", marks=pytest.mark.slow)])
def test_the_cache_is_left_as_decoding_one_by_one_leaves_it(architecture: str, rows: int) -> None:
    model = tiny_model(architecture)
    inputs = prompts(rows)
    plain = model.generate(**inputs, **FIXED, return_dict_in_generate=True)
    theirs = [(layer.keys.clone(), layer.values.clone()) for layer in getattr(plain, CACHE).layers]
    length = int(getattr(plain, CACHE).get_seq_length())
    output = drafted(model, inputs, plain.sequences, bushy, **FIXED)
    assert int(getattr(output, CACHE).get_seq_length()) == length == 14 + NEW - 1
    for layer, (keys, values) in zip(getattr(output, CACHE).layers, theirs, strict=True):
        torch.testing.assert_close(layer.keys, keys, atol=1e-4, rtol=1e-3)
        torch.testing.assert_close(layer.values, values, atol=1e-4, rtol=1e-3)


def test_a_cache_that_knows_no_windows_keeps_all_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain decoding drops nothing from a `DynamicCache()` without a configuration."""
    monkeypatch.setattr(cache_module, "_GROWTH", 8)
    model = tiny_model("mistral with a sliding window")
    inputs = prompts(2)
    plain_cache = transformers.DynamicCache()
    cache = transformers.DynamicCache()
    plain = model.generate(**inputs, **FIXED, **{CACHE: plain_cache})
    output = drafted(model, inputs, plain, bushy, **FIXED, **{CACHE: cache})
    assert torch.equal(output.sequences, plain)
    for layer, theirs in zip(cache.layers, plain_cache.layers, strict=True):
        torch.testing.assert_close(layer.keys, theirs.keys, atol=1e-4, rtol=1e-3)
        torch.testing.assert_close(layer.values, theirs.values, atol=1e-4, rtol=1e-3)


def test_transformers_says_of_nothing_that_it_is_deprecated(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """transformers logs some deprecations once in a process, without a warning."""
    model = tiny_model("llama")
    inputs = prompts(2)
    plain = model.generate(**inputs, **FIXED)
    logger = logging.getLogger("transformers")
    logger.warning_once.cache_clear()  # type: ignore[attr-defined]
    logger.addHandler(caplog.handler)
    try:
        for cache in (None, transformers.DynamicCache(config=model.config)):
            drafted(model, inputs, plain, bushy, **FIXED, **{CACHE: cache})
    finally:
        logger.removeHandler(caplog.handler)
    assert "deprecated" not in caplog.text
