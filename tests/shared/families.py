"""A tiny model of any family of causal language models that transformers has."""

from __future__ import annotations

import inspect
from typing import Any

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tests.shared.tiny import VOCABULARY

# What configurations call their sizes; each takes those that it knows.
SIZES: dict[str, Any] = {
    **dict.fromkeys(("num_attention_heads", "n_head", "num_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(
        ("num_hidden_layers", "n_layer", "num_layers", "decoder_layers", "encoder_layers"), 3
    ),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "embed_dim"), 32),
    **dict.fromkeys(
        ("intermediate_size", "ffn_dim", "decoder_ffn_dim", "ffn_hidden_size", "d_ff", "n_inner"),
        48,
    ),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx"), 256),
    **dict.fromkeys(
        ("sliding_window", "attention_window", "window_size", "attention_chunk_size"), 8
    ),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("n_shared_experts", "n_group", "topk_group", "first_k_dense_replace"), 1),
    **dict.fromkeys(
        ("head_dim", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "query_pre_attn_scalar"),
        8,
    ),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 16),
    **{
        "vocab_size": VOCABULARY,
        "vocab_size_per_layer_input": VOCABULARY,
        "hidden_size_per_layer_input": 8,
    },
    **{
        "num_key_value_heads": 2,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "intermediate_size_mlp": 48,
    },
    **{
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": None,
        "is_decoder": True,
        "rotary_dim": 4,
        "d_kv": 8,
    },
    **{"attention_types": [[["global", "local", "global"], 1]], "num_nextn_predict_layers": 0},
}

# What the families with recurrent state need beside: layers of both kinds, and heads that divide
# their sizes.
_DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
_MAMBA = {
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_d_state": 8,
    "mamba_expand": 2,
    "mamba_chunk_size": 16,
}
_LINEAR_FIRST = {"layer_types": ["linear_attention", "full_attention", "linear_attention"]}
_INKLING = {
    "swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "swa_head_dim": 8,
    "unpadded_vocab_size": VOCABULARY, "n_layers_per_attn_res_block": 2, "rel_extent": 16,
}  # fmt: skip
_CONV_FIRST = {"layer_types": ["conv", "full_attention", "conv"]}
OF_FAMILY: dict[str, dict[str, Any]] = {
    "qwen3_next": {**_DELTA, **_LINEAR_FIRST},
    "qwen3_5_text": {**_DELTA, **_LINEAR_FIRST},
    "qwen3_5_moe_text": {**_DELTA, **_LINEAR_FIRST},
    "qwen4_exp_text": {
        **_DELTA,
        **_LINEAR_FIRST,
        "hc_lowrank": 8,
        "ngram_vocab_size_base": 200,
        "heads_per_ngram": 2,
        "split_ngram_parts": 1,
        "shared_expert_intermediate_size": 24,
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
        "indexer_budget": 16,
        "indexer_compress_ratio": 4,
    },
    "olmo_hybrid": {**_DELTA, **_LINEAR_FIRST},
    "bailing_hybrid": _LINEAR_FIRST,
    "kimi_linear": {
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "linear_head_dim": 8,
        "linear_num_heads": 4,
        "model_max_length": 256,
    },
    "lfm2": _CONV_FIRST,
    "lfm2_moe": {**_CONV_FIRST, "num_dense_layers": 1},
    "granitemoehybrid": {**_MAMBA, **_LINEAR_FIRST, "shared_intermediate_size": 32},
    "bamba": {**_MAMBA, "attn_layer_indices": [1]},
    "falcon_h1": {**_MAMBA, "mamba_d_ssm": 64},
    "nemotron_h": {
        "layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention"],
        "num_hidden_layers": 4,
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "ssm_state_size": 8,
        "n_groups": 2,
        "chunk_size": 16,
    },
    "zamba2": {
        "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"],
        "num_hidden_layers": 4,
        "n_mamba_heads": 4,
        "mamba_ngroups": 2,
        "mamba_d_state": 8,
        "chunk_size": 16,
        "adapter_rank": 8,
        "num_key_value_heads": 4,
        "tie_word_embeddings": False,
    },
    "mamba2": {"num_heads": 4, "head_dim": 16, "state_size": 8, "n_groups": 2, "chunk_size": 16},
    "zamba": {
        "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"],
        "num_hidden_layers": 4,
        "mamba_d_state": 8,
        "num_key_value_heads": 4,
    },
    "inkling2_text": _INKLING,
    "inkling2_loop_text": _INKLING,
    "cohere_compass_text": {
        "rope_parameters": {
            "full_attention": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [2, 1, 1],
            },
        },
    },
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "kv_n_heads": 2, "clip_qkv": 8.0}},
    "dory": {"n_input_layers": 1, "n_output_layers": 1},
    "ernie4_5_moe": {"moe_k": 2},
    "moshi": {"audio_vocab_size": 32},
    "gemma3n_text": {
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "intermediate_size": [48] * 4,
        "activation_sparsity_pattern": [0.0] * 4,
        "laurel_rank": 4,
        "altup_num_inputs": 2,
    },
    "reformer": {"axial_pos_embds": False},
    "xlm": {"emb_dim": 32, "n_heads": 4, "n_layers": 3},
    "xmod": {"default_language": "en_XX"},
    "zaya": {"num_experts_per_tok": 1},
    "jamba": {
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "mamba_d_state": 8,
        "mamba_dt_rank": 4,
    },
}


def family_model(family: str, **changed: Any) -> Any:
    """Return a model with weights that make logits differ, and no end token.

    Args:
        family: its `model_type`.
        changed: other sizes than usual, by the names of `SIZES`.

    Raises:
        ValueError: the family's configuration takes no small sizes.
        Exception: whatever the family raises because of these sizes.
    """
    config = CONFIG_MAPPING[family](**_sizes(CONFIG_MAPPING[family], family, changed))
    of_text = config.get_text_config(decoder=True)
    if of_text.hidden_size > 64:
        raise ValueError("its configuration takes no small sizes")
    torch.manual_seed(1)
    name = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[family]
    kind = getattr(transformers, name if isinstance(name, str) else name[0])
    is_part = type(of_text) is not type(
        config
    )  # that of a decoder alone has other names for its sizes
    model = kind(of_text if is_part and kind.config_class is type(of_text) else config).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    model.generation_config.eos_token_id = None
    return model


def _sizes(kind: Any, family: str, changed: dict[str, Any]) -> dict[str, Any]:
    """Return what a configuration takes of the sizes, and its parts, such as that of the text."""
    annotated = {name for base in kind.__mro__ for name in getattr(base, "__annotations__", {})}
    known = annotated | set(inspect.signature(kind.__init__).parameters)
    sizes = {name: value for name, value in SIZES.items() if name in known}
    sizes |= {
        name: value for name, value in OF_FAMILY.get(family, {}).items() if name not in changed
    }
    sizes |= {name: value for name, value in changed.items() if name in known}
    if "kv_lora_rank" in sizes:  # its heads are not shared
        sizes["num_key_value_heads"] = 4
    parts = {
        name: part for name, part in kind.sub_configs.items() if part is not transformers.AutoConfig
    }
    return {name: _sizes(part, part.model_type, changed) for name, part in parts.items()} | sizes
