"""What cannot be generated with drafts is refused by name, before the prompt's forward pass."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import DynamicCache, LogitsProcessor

import rest_store
from rest_store.errors import (
    ArgumentError,
    DatastoreClosedError,
    NativeKernelError,
    NotSupportedError,
    RestStoreError,
    SourceError,
)
from rest_store.generation.cache import Pattern, TreeKVCache
from rest_store.generation.seam import CACHE, CACHE_NAMES
from tests.shared.families import family_model
from tests.shared.strategies import ONE_TO_NINE, open_datastore, refused
from tests.shared.tiny import VOCABULARY, prompts, tiny_model

FIXED = {"max_new_tokens": 24, "do_sample": False}
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2}


def ask(model: Any, **options: Any) -> Any:
    inputs = options.pop("inputs", prompts(1))
    return model.generate(**inputs, custom_generate=rest_store.generate, **{**FIXED, **options})


def refused_early(error: type[RestStoreError], model: Any, *fragments: str, **options: Any) -> None:
    """The generation is refused, and the model was not run."""
    passes = []
    hook = model.register_forward_pre_hook(lambda *_: passes.append(1))
    refused(error, lambda: ask(model, **options), *fragments)
    hook.remove()
    assert not passes


# --- Modes ----------------------------------------------------------------------------------------


def test_modes_are_refused_by_name() -> None:
    model = tiny_model("llama")
    refused_early(NotSupportedError, model, "beam search", "greedy search or sampling", num_beams=3)
    refused_early(NotSupportedError, model, "contrastive search", penalty_alpha=0.6, top_k=4)
    refused_early(NotSupportedError, model, "assisted generation", prompt_lookup_num_tokens=3)
    refused_early(NotSupportedError, model, "guidance_scale", guidance_scale=1.5)
    eager = tiny_model("llama", attention="eager")
    for name in ("output_attentions", "output_hidden_states"):
        refused_early(
            NotSupportedError, eager, name, **{name: True, "return_dict_in_generate": True}
        )


def test_a_streamer_that_nobody_would_call_is_refused() -> None:
    generator = rest_store.Generator(tiny_model("llama"))
    refused(
        NotSupportedError,
        lambda: generator.stream(prompts(1), streamer=object()),
        "Generator.stream",
    )


def test_inputs_beside_text_are_refused() -> None:
    model = tiny_model("gpt2")
    ids = prompts(2)["input_ids"]
    inputs = {"input_ids": ids, "token_type_ids": torch.full_like(ids, 7)}
    refused_early(NotSupportedError, model, "token_type_ids", inputs=inputs)
    embedded = {"inputs_embeds": model.get_input_embeddings()(ids).detach()}
    refused_early(NotSupportedError, model, "inputs_embeds", inputs=embedded)


@pytest.mark.parametrize("nodes", [-1, 1025, "4", 1.5])
def test_numbers_of_draft_tokens_out_of_range_are_refused(nodes: Any) -> None:
    model = tiny_model("llama")
    refused_early(ArgumentError, model, "max_nodes", max_nodes=nodes)
    refused(ArgumentError, lambda: rest_store.Generator(model, max_nodes=nodes), "max_nodes")


def test_text_without_a_tokenizer_is_refused() -> None:
    generator = rest_store.Generator(tiny_model("llama"), None, [rest_store.PromptLookup()])
    refused(ArgumentError, lambda: generator.generate("text"), "tokenizer")
    refused(ArgumentError, lambda: generator.generate([5], references=["text"]), "tokenizer")


PROMPTS: dict[str, tuple[Any, str]] = {
    "texts": (["a", "b"], "a list (too many dimensions 'str')"),
    "rows of unequal length": (
        [[1, 2], [3]],
        "a list (expected sequence of length 2 at dim 1 (got 1))",
    ),
    "a mask of such rows": (
        {"input_ids": [1, 2], "attention_mask": [[1, 2], [3]]},
        "attention_mask is a list (",
    ),
    "nothing": (None, "a NoneType ("),
    "an integer": (5, "torch.int64 of shape [1]"),
    "three dimensions": ([[[1]]], "torch.int64 of shape [1, 1, 1]"),
    "no tokens": ([], "of shape [1, 0]"),
    "fractions": ([0.5], "torch.float32 of shape [1, 1]"),
    "a negative id": ([5, -1], "a token id in input_ids is -1, expected 0..95"),
    "an id beyond the vocabulary": ([[5, 96]], "a token id in input_ids is 96, expected 0..95"),
}


@pytest.mark.parametrize("name", PROMPTS)
def test_prompts_are_refused_by_name(name: str) -> None:
    prompt, fragment = PROMPTS[name]
    generator = rest_store.Generator(tiny_model("llama"))
    for call in (generator.generate, generator.stream):
        refused(ArgumentError, lambda call=call: call(prompt, **FIXED), "Generator", fragment)


@pytest.mark.parametrize(
    "sources", ["np.ds", rest_store.PromptLookup(), [rest_store.PromptLookup], [3]], ids=repr
)
def test_wrong_sources_are_refused(sources: Any) -> None:
    model = tiny_model("llama")
    refused_early(SourceError, model, "generate: ", sources=sources)
    refused(SourceError, lambda: rest_store.Generator(model, None, sources))


def test_closed_datastores_are_refused(tmp_path: Path) -> None:
    store = open_datastore(tmp_path, ONE_TO_NINE)
    store.close()
    model = tiny_model("llama")
    refused_early(DatastoreClosedError, model, "the datastore is closed", sources=[store])


def test_sources_without_the_kernel_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama")
    monkeypatch.setitem(sys.modules, "rest_store._kernel", None)
    monkeypatch.delattr(rest_store, "_kernel")
    refused_early(NativeKernelError, model, sources=[rest_store.PromptLookup()])
    assert ask(model).shape == (1, 38)


# --- Processors and criteria ----------------------------------------------------------------------


class BiasOfRows(LogitsProcessor):
    """Adds something to each row of a batch, and so cannot be asked about a single one."""

    def __init__(self, rows: int) -> None:
        self.bias = torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(1))

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores + self.bias


def test_processors_that_do_not_judge_one_row_are_refused() -> None:
    model = tiny_model("llama")
    options = {"inputs": prompts(3), "logits_processor": [BiasOfRows(3)]}
    refused(NotSupportedError, lambda: ask(model, **options), "BiasOfRows", "[3, 96]", "[1, 96]")
    assert ask(model, logits_processor=[BiasOfRows(1)]).shape == (1, 38)


def test_criteria_that_do_not_judge_one_row_are_refused() -> None:
    def of_three(ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        return torch.tensor([False, True, False])

    options = {"inputs": prompts(3), "stopping_criteria": [of_three]}
    refused(NotSupportedError, lambda: ask(tiny_model("llama"), **options), "its answer", "[3]")


# --- Models ---------------------------------------------------------------------------------------


def t5() -> Any:
    config = transformers.T5Config(
        vocab_size=VOCABULARY,
        d_model=16,
        d_kv=4,
        d_ff=16,
        num_layers=1,
        num_heads=2,
        decoder_start_token_id=0,
    )
    return transformers.T5ForConditionalGeneration(config)


def bert() -> Any:
    config = transformers.BertConfig(**SIZES, num_attention_heads=4, intermediate_size=48)
    return transformers.BertLMHeadModel(config)


REFUSED: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "mamba": (
        lambda: transformers.MambaForCausalLM(transformers.MambaConfig(**SIZES, state_size=4)),
        (
            "MambaForCausalLM: reading several tokens behind its recurrent state",
            "the same as reading them one by one",
        ),
    ),
    "bloom": (
        lambda: transformers.BloomForCausalLM(transformers.BloomConfig(**SIZES, n_head=4)),
        ("BloomForCausalLM", "the position of a token", "ALiBi"),
    ),
    "bert": (bert, ("BertLMHeadModel: the model is an encoder, not a decoder",)),
    "t5": (t5, ("T5ForConditionalGeneration", "encoder-decoder")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_models_are_refused_by_name(name: str) -> None:
    make, fragments = REFUSED[name]
    refused_early(NotSupportedError, make(), *fragments)


def test_loops_that_read_a_cache_which_others_write_are_refused() -> None:
    try:
        model = family_model("dory", recurrent_kv_cache_mode="last_loop")
    except KeyError:
        pytest.skip("not in this release of transformers")
    refused_early(NotSupportedError, model, "the key-value cache is read by loops", "per_loop")
    model.config.recurrent_kv_cache_mode = "per_loop"
    assert ask(model).shape == (1, 38)


def test_the_former_name_of_sources() -> None:
    model = tiny_model("llama")
    expected = ask(model, sources=[rest_store.PromptLookup()])
    with pytest.warns(FutureWarning, match="drafter= is now called sources="):
        output = ask(model, drafter=[rest_store.PromptLookup()])
    assert torch.equal(output, expected)
    refused_early(ArgumentError, model, "pass sources alone", sources=[], drafter=[])


def test_a_decoder_whose_configuration_calls_it_none_is_not_refused() -> None:
    model = tiny_model("gpt_neox")
    assert model.config.is_decoder is False
    assert ask(model).shape == (1, 38)


def test_caches_of_a_models_own_are_refused() -> None:
    config = transformers.MiniMaxConfig(
        **SIZES, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48
    )
    model = transformers.MiniMaxForCausalLM(config)
    refused_early(
        NotSupportedError, model, "MiniMaxForCausalLM: its state is in a cache of its own"
    )


def test_weights_that_are_split_over_processes_are_refused() -> None:
    """transformers, DeepSpeed and torch (here for real) leave marks on such weights."""
    tensor_parallel, zero, sharded = (tiny_model("llama") for _ in range(3))
    tensor_parallel._tp_size = 2
    refused_early(NotSupportedError, tensor_parallel, "the model is split by tensor parallelism")
    zero.lm_head.weight.ds_id = 0
    refused_early(NotSupportedError, zero, "the model is split by DeepSpeed ZeRO-3")
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    try:
        for layer in sharded.model.layers:
            fully_shard(layer, mesh=init_device_mesh("cpu", (1,)))
        refused_early(NotSupportedError, sharded, "the model is split by FSDP")
    finally:
        torch.distributed.destroy_process_group()


def test_what_grows_with_the_length_is_refused_beyond_it() -> None:
    llama = tiny_model("llama")
    llama.config.rope_parameters = {
        "rope_type": "dynamic",
        "factor": 2.0,
        "original_max_position_embeddings": 38,
    }
    assert ask(llama).shape == (1, 38)
    refused_early(NotSupportedError, llama, "dynamic", "at most 38", max_new_tokens=25)
    cache = DynamicCache(config=llama.config)
    ask(llama, **{CACHE: cache})
    inputs = {
        "input_ids": prompts(1)["input_ids"],
        "attention_mask": torch.ones(1, 37 + 14, dtype=torch.long),
    }
    options = {"inputs": inputs, CACHE: cache, "max_new_tokens": 1}
    refused_early(NotSupportedError, llama, "max_length is 52", **options)


def test_attention_of_other_kinds_is_refused() -> None:
    model = tiny_model("qwen2 with windows")
    model.config.layer_types = ["full_attention", "chunked_attention", "full_attention"]
    refused_early(NotSupportedError, model, "'chunked_attention'", **{CACHE: DynamicCache()})


# --- Caches ---------------------------------------------------------------------------------------


def test_caches_are_refused_by_name() -> None:
    cache = DynamicCache()
    cache.update(torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3, 4), 0)

    class Other(type(cache.layers[0])):  # type: ignore[misc]
        pass

    TreeKVCache(cache, [Pattern("full_attention")], 3)
    cache.layers[0] = Other()
    refused(NotSupportedError, lambda: TreeKVCache(cache, [Pattern("full_attention")], 3), "Other")
    refused_early(NotSupportedError, tiny_model("llama"), "Other", **{CACHE: cache})


@pytest.mark.parametrize("name", CACHE_NAMES)
def test_comparisons_with_a_cache_are_refused_under_any_name_that_it_has(name: str) -> None:
    generator = rest_store.Generator(tiny_model("llama"))
    options = {name: DynamicCache(), **FIXED}
    refused(
        NotSupportedError, lambda: generator.generate(prompts(1), compare=True, **options), name
    )


def test_offloaded_caches_and_static_ones_of_the_caller_are_refused() -> None:
    model = tiny_model("llama")
    refused_early(NotSupportedError, model, "offloaded", cache_implementation="offloaded_static")
    cache = transformers.StaticCache(config=model.config, max_cache_len=40)
    refused_early(NotSupportedError, model, "a layer of the cache is StaticLayer", **{CACHE: cache})
