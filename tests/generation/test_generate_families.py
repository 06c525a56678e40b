"""Every causal language model that the installed transformers has, tiny: the same text, or refused by name.

Long, so only asked for: REST_STORE_FAMILIES=all, or the names of some, "gpt_neo llama4_text".
"""

from __future__ import annotations

import inspect
import os
from typing import Any

import pytest
import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

import rest_store
from rest_store.errors import CacheNotSupportedError, ModelNotSupportedError
from tests.shared.tiny import SCRIPTS, VOCABULARY, Scripted, futures_of, prompts

WANTED = os.environ.get("REST_STORE_FAMILIES", "")
FAMILIES = sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) if WANTED == "all" else WANTED.split()
FIXED = {"max_new_tokens": 40, "do_sample": False, "eos_token_id": None}

# What configurations call their sizes; each takes those that it knows.
SIZES: dict[str, Any] = {
    **dict.fromkeys(("num_attention_heads", "n_head", "num_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "decoder_layers"), 3),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "embed_dim"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "decoder_ffn_dim", "ffn_hidden_size", "d_ff", "n_inner"), 48),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx"), 256),
    **dict.fromkeys(("sliding_window", "attention_window", "window_size", "attention_chunk_size"), 8),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("n_shared_experts", "n_group", "topk_group", "first_k_dense_replace"), 1),
    **dict.fromkeys(("head_dim", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "query_pre_attn_scalar"), 8),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 16),
    **{"vocab_size": VOCABULARY, "vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 8},
    **{"num_key_value_heads": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "intermediate_size_mlp": 48},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None, "is_decoder": True, "rotary_dim": 4, "d_kv": 8},
    **{"attention_types": [[["global", "local", "global"], 1]], "num_nextn_predict_layers": 0},
}

# GIT takes the mask of a left-padded text to begin with image tokens, also where there is no image: of several rows,
# plain generation itself writes something else than of each alone.
PADDED_OTHERWISE = {"git"}


def tiny(family: str) -> Any:
    """A model of the family, with weights that make logits differ; the test is skipped where there is none so small."""
    kind = CONFIG_MAPPING[family]
    annotated = {name for base in kind.__mro__ for name in getattr(base, "__annotations__", {})}
    known = annotated | set(inspect.signature(kind.__init__).parameters)
    sizes = {name: value for name, value in SIZES.items() if name in known}
    if "kv_lora_rank" in sizes:
        sizes["num_key_value_heads"] = 4
    try:
        config = kind(**sizes)
        if config.get_text_config(decoder=True).hidden_size > 64:
            pytest.skip("its configuration takes no small sizes")
        torch.manual_seed(1)
        name = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[family]
        model = getattr(transformers, name if isinstance(name, str) else name[0])(config).eval()
        for parameter in model.parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=0.3)
        model.generation_config.eos_token_id = None
        model.generate(**prompts(1), **FIXED)
    except Exception as error:
        pytest.skip(f"no tiny model that generates: {type(error).__name__}: {error}"[:200])
    return model


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", FAMILIES)
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
                    drafter=lambda prompt, futures=futures, script=script: Scripted(prompt, futures, script),
                    adaptive=False,
                )
            except (ModelNotSupportedError, CacheNotSupportedError):
                return
            assert torch.equal(drafted, plain), f"{rows} rows, {name}"
