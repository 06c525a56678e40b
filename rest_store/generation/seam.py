"""The seam to transformers: the name of its cache, and a table of all that we rely on.

5.24 renamed the argument of `generate`, `prepare_inputs_for_generation` and `forward`, the field of
outputs, and the argument of a custom loop.

The table, `DEPENDENCIES`, lists all names of transformers that generation relies on besides those
that it imports. It holds for 5.19 to 5.24.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Mapping
from typing import Any

import transformers
from transformers import GenerationMixin

from rest_store.errors import NotSupportedError, describe
from rest_store.seam import Dependency, differences

_OF_STATES = "cache_params"  # of models without attention, before
# A caller may use any of them, as long as transformers takes old ones, too.
CACHE_NAMES = ("cache", "past_key_values", _OF_STATES)


def _name_of_the_cache() -> str:
    parameters = inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters
    return next(name for name in CACHE_NAMES if name in parameters)


CACHE = _name_of_the_cache()
# Where outputs and arguments hold it. Since 5.24, reading another name logs that it is deprecated.
_CURRENT_NAMES = (CACHE,) if CACHE == "cache" else (CACHE, _OF_STATES)


def name_of_cache(model: Any) -> str | None:
    """Return the name of the cache's argument of `model`; None: it takes none."""
    parameters = inspect.signature(model.forward).parameters
    return next((name for name in (CACHE, _OF_STATES) if name in parameters), None)


def cache_in(values: Mapping[str, Any]) -> Any:
    """Return the cache from the arguments of `generate`, or from a model's output.

    None: there is none.
    """
    return next((values[name] for name in _CURRENT_NAMES if values.get(name) is not None), None)


def name_of_cache_in(options: Mapping[str, Any]) -> str | None:
    """Return the name under which options of `model.generate` hold a cache.

    None: they have none.
    """
    return next((name for name in CACHE_NAMES if options.get(name) is not None), None)


_GENERATE = inspect.unwrap(GenerationMixin.generate).__code__


def streamer_of_the_call() -> Any:
    """Return the `streamer` of the `model.generate` call that runs our custom loop.

    transformers gives it the prompt, but does not pass it on, and its reader would wait for the
    text for ever. So it is read where it is, in that call's frame. None: it has none, or that call
    is not one of transformers.
    """
    frame = sys._getframe(2)
    return frame.f_locals.get("streamer") if frame.f_code is _GENERATE else None


_CACHES = "transformers.cache_utils"
_CONFIG = "transformers.generation.configuration_utils:GenerationConfig"
_MASKS = "transformers.masking_utils"
_MODEL = "transformers.modeling_utils"
_OF_STATE = f"{_CACHES}:LinearAttentionLayer"
_PROCESSORS = "transformers.generation.logits_process"
_STOPS = "transformers.generation.stopping_criteria"

# Functions that recurrent mixers call and that `tree_mixers` replaces, with the parameters that the
# replacements read. Each model has its own copies, so they are checked when a model is used. A
# mixer whose function lacks a parameter has chains.
MIXER_PARAMETERS = {
    "causal_conv1d_fn": {"hidden_states", "weight", "bias", "activation"},
    "torch_chunk_gated_delta_rule": {
        "query",
        "key",
        "value",
        "g",
        "beta",
        "initial_state",
        "use_qk_l2norm_in_kernel",
    },
    "mamba2_chunk_scan": {
        "hidden_states",
        "dt",
        "A",
        "B",
        "C",
        "D",
        "dt_bias",
        "initial_states",
        "dt_softplus",
        "dt_limit",
    },
}

DEPENDENCIES = (
    # Callers of the loop, functions that it calls, and their results.
    Dependency(
        "transformers:GenerationMixin.generate",
        ("self", "inputs"),
        others=("custom_generate", "streamer"),
    ),
    Dependency(
        "transformers:GenerationMixin.prepare_inputs_for_generation",
        ("self", "input_ids"),
        others=("attention_mask", "is_first_iteration", CACHE),
    ),
    *(
        Dependency(f"transformers.generation.utils:GenerateDecoderOnlyOutput.{name}")
        for name in ("sequences", "scores", "logits", CACHE)
    ),
    # Layers of the cache: their content is taken over and given back, and meanwhile others take
    # their place.
    Dependency(f"{_CACHES}:Cache", ("layers",)),
    Dependency(f"{_CACHES}:Cache.layers"),
    Dependency(f"{_CACHES}:Cache.offloading"),
    Dependency(f"{_CACHES}:Cache.get_seq_length", ("self", "layer_idx"), is_whole=True),
    Dependency(f"{_CACHES}:Cache.has_previous_state", ("self",)),
    Dependency(f"{_CACHES}:DynamicCache", (), others=("config",)),
    *(
        Dependency(f"{_CACHES}:CacheLayerMixin.{name}")
        for name in ("is_initialized", "keys", "values")
    ),
    Dependency(f"{_CACHES}:CacheLayerMixin.update", ("self", "key_states", "value_states")),
    Dependency(
        f"{_CACHES}:CacheLayerMixin.lazy_initialization",
        ("self", "key_states", "value_states"),
        is_whole=True,
    ),
    Dependency(
        f"{_CACHES}:CacheLayerMixin.get_mask_sizes", ("self", "query_length"), is_whole=True
    ),
    Dependency(f"{_CACHES}:CacheLayerMixin.get_seq_length", ("self",), is_whole=True),
    Dependency(f"{_CACHES}:CacheLayerMixin.get_max_length", ("self",), is_whole=True),
    *(
        Dependency(f"{_CACHES}:DynamicSlidingWindowLayer.{name}")
        for name in ("cumulative_length", "sliding_window")
    ),
    *(
        Dependency(f"{_OF_STATE}.{name}")
        for name in (
            "conv_kernel_size",
            "conv_states",
            "has_previous_state",
            "is_conv_states_initialized",
            "is_recurrent_states_initialized",
            "number_of_states",
            "recurrent_states",
        )
    ),
    Dependency(_OF_STATE, (), others=("number_of_states",)),
    Dependency(
        f"{_OF_STATE}.lazy_initialization",
        ("self",),
        others=("conv_states", "recurrent_states", "state_idx", "conv_kernel_size"),
    ),
    Dependency(
        f"{_OF_STATE}.update_conv_state",
        ("self", "conv_states", "state_idx"),
        others=("conv_kernel_size",),
    ),
    Dependency(f"{_OF_STATE}.update_recurrent_state", ("self", "recurrent_states", "state_idx")),
    # Attention, whose function is replaced by one that takes the mask of a tree.
    Dependency("transformers:AttentionInterface.register", ("key", "value"), is_whole=True),
    Dependency("transformers:AttentionMaskInterface.register", ("key", "value"), is_whole=True),
    Dependency(
        "transformers.integrations.sdpa_attention:sdpa_attention_forward",
        ("module", "query", "key", "value", "attention_mask", "dropout", "scaling"),
    ),
    Dependency(f"{_MODEL}:ALL_ATTENTION_FUNCTIONS"),
    Dependency(f"{_MASKS}:ALL_MASK_ATTENTION_FUNCTIONS"),
    Dependency(f"{_MASKS}:eager_mask"),
    Dependency(f"{_MASKS}:flash_attention_mask"),
    Dependency(f"{_MASKS}:flex_attention_mask"),
    Dependency(f"{_MASKS}:sdpa_mask"),
    Dependency("transformers.integrations.flash_attention:flash_attention_forward"),
    Dependency("transformers.integrations.flex_attention:flex_attention_forward"),
    # A model and its configuration.
    Dependency(
        f"{_MODEL}:PreTrainedModel.set_attn_implementation", ("self", "attn_implementation")
    ),
    Dependency(f"{_MODEL}:PreTrainedModel.get_input_embeddings", ("self",)),
    Dependency(f"{_MODEL}:PreTrainedModel.device"),
    Dependency("transformers:GenerationMixin._supports_default_dynamic_cache", (), is_whole=True),
    Dependency("transformers:PreTrainedConfig.get_text_config", ("self", "decoder")),
    *(
        Dependency(f"transformers:PreTrainedConfig.{name}")
        for name in ("_attn_implementation", "is_encoder_decoder", "sub_configs")
    ),
    # The inputs that `generate` prepares.
    Dependency(f"{_CONFIG}.get_generation_mode", ("self",)),
    *(
        Dependency(f"{_CONFIG}.{name}")
        for name in (
            "cache_implementation",
            "do_sample",
            "eos_token_id",
            "output_attentions",
            "output_hidden_states",
            "output_logits",
            "output_scores",
            "pad_token_id",
            "prefill_chunk_size",
            "return_dict_in_generate",
            "stop_strings",
            "use_cache",
        )
    ),
    Dependency("transformers.generation.configuration_utils:GenerationMode.GREEDY_SEARCH"),
    Dependency("transformers.generation.configuration_utils:GenerationMode.SAMPLE"),
    Dependency(f"{_STOPS}:EosTokenCriteria.eos_token_id"),
    Dependency(f"{_STOPS}:MaxLengthCriteria.max_length"),
    Dependency(f"{_STOPS}:StopStringCriteria", ("tokenizer", "stop_strings")),
    # Processors that hold something for each row of a batch.
    Dependency(f"{_PROCESSORS}:EncoderNoRepeatNGramLogitsProcessor.generated_ngrams"),
    Dependency(f"{_PROCESSORS}:EncoderRepetitionPenaltyLogitsProcessor.encoder_input_ids"),
    Dependency(f"{_PROCESSORS}:RepetitionPenaltyLogitsProcessor.prompt_ignore_length"),
    Dependency(f"{_PROCESSORS}:UnbatchedClassifierFreeGuidanceLogitsProcessor.guidance_scale"),
)


@functools.cache
def require_transformers() -> None:
    """Check once that the installed transformers agrees with the table.

    The tests check attributes that are only read, since looking for them takes seconds.

    Raises:
        NotSupportedError: it is not.
    """
    problems = differences(part for part in DEPENDENCIES if part.parameters is not None)
    if problems:
        release = f"{transformers.__version__}, in which {'; '.join(problems)}"
        raise NotSupportedError(
            describe("generate", "transformers", release, "a release that this rest-store knows")
        )
