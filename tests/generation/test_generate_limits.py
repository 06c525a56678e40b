"""The last positions of a model and the last slots of a cache: drafts and padding go no further than plain decoding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from transformers import DynamicCache, StaticCache

import rest_store
from rest_store.errors import CacheFullError, ModeNotSupportedError
from rest_store.generation import rows
from rest_store.generation.drafts import EMPTY
from rest_store.generation.sampling import Stops
from rest_store.generation.support import position_count
from tests.shared.strategies import refused
from tests.shared.tiny import VOCABULARY, Scripted, bushy, futures_of, prompts, right, tiny_model

POSITIONS = 32
_SIZES = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
_GPT = {**_SIZES, "n_positions": POSITIONS, "n_embd": 32, "n_layer": 2, "n_head": 4}
_BERT = {**_SIZES, "max_position_embeddings": POSITIONS, "hidden_size": 32, "num_hidden_layers": 2,
         "num_attention_heads": 4, "intermediate_size": 48}  # fmt: skip

TABLES: dict[str, tuple[str, str, dict[str, Any]]] = {  # architectures that look positions up
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", _GPT),
    "gpt_bigcode": ("GPTBigCodeConfig", "GPTBigCodeForCausalLM", _GPT),
    "gptj": ("GPTJConfig", "GPTJForCausalLM", {**_GPT, "rotary_dim": 4}),
    "opt": ("OPTConfig", "OPTForCausalLM", {**_BERT, "ffn_dim": 48, "word_embed_proj_dim": 32}),
    "biogpt": ("BioGptConfig", "BioGptForCausalLM", _BERT),
    "bert": ("BertConfig", "BertLMHeadModel", {**_BERT, "is_decoder": True}),
    "llama": ("LlamaConfig", "LlamaForCausalLM", _BERT),  # for comparison: computes them
}  # fmt: skip


def model_with_positions(name: str) -> Any:
    config_name, kind, arguments = TABLES[name]
    config = getattr(transformers, config_name)(**arguments)
    torch.manual_seed(1)
    model = getattr(transformers, kind)(config).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    model.generation_config.eos_token_id = None
    return model


class Positions:
    """Notes the positions that a model is given."""

    def __init__(self, model: Any) -> None:
        self.greatest = self.least = 0
        self.hook = model.register_forward_pre_hook(self._note, with_kwargs=True)

    def _note(self, model: Any, arguments: Any, options: dict[str, Any]) -> None:
        self.greatest = max(self.greatest, int(options["position_ids"].max()))
        self.least = min(self.least, int(options["position_ids"].min()))


def drafted(
    model: Any, inputs: dict[str, Any], plain: torch.Tensor, scripts: list[Callable[..., Any]], **options: Any
) -> Any:
    """The output with a script for each row."""
    futures = futures_of(inputs, plain)
    by_prompt = dict(zip(futures, scripts, strict=True))
    return model.generate(
        **inputs,
        custom_generate=rest_store.generate,
        drafter=lambda prompt: Scripted(prompt, futures, by_prompt[tuple(prompt)]),
        adaptive=False,
        return_dict_in_generate=True,
        **options,
    )


def silent(future: list[int], random: Any, max_nodes: int) -> Any:
    return EMPTY


# --- Positions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("widths", [(), (1, 4, 17)])
@pytest.mark.parametrize("name", TABLES)
def test_a_row_at_the_last_position_waits_for_the_others(name: str, widths: tuple[int, ...]) -> None:
    model = model_with_positions(name)
    inputs = prompts(3)
    for cache, sampled in (("dynamic", False), ("static", True)):
        options: dict[str, Any] = {"max_length": POSITIONS, "do_sample": sampled, "cache_implementation": cache}
        torch.manual_seed(5)
        plain = model.generate(**inputs, **options)
        seen = Positions(model)
        torch.manual_seed(5)
        output = drafted(model, inputs, plain, [right, silent, bushy], widths=widths, **options)
        seen.hook.remove()
        assert torch.equal(output.sequences, plain)
        assert output.statistics.drafts.accepted > 10
        assert 0 <= seen.least <= seen.greatest < POSITIONS


@pytest.mark.parametrize("pads", [True, False])
@pytest.mark.parametrize("widths", [(), (1, 4, 17)])
@pytest.mark.parametrize("name", TABLES)
def test_an_end_before_the_last_position_is_reached_with_drafts_too(
    name: str, widths: tuple[int, ...], pads: bool
) -> None:
    """Where more is asked for than there are positions, drafts reach beyond the end that the text has.

    A row that has ended is padded, or waits at its end and is continued when the other one has ended, too.
    """
    model = model_with_positions(name)
    inputs = prompts(2, padded=False)

    def end(script: Any, length: int, **options: Any) -> Any:
        class Ends(transformers.StoppingCriteria):
            """Ends the first row at `length` tokens, the other one three earlier; with `pads` as end tokens do."""

            if pads:
                eos_token_id = torch.tensor([0])

            def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
                first = inputs["input_ids"][0]
                ends = [length if bool((row[:14] == first).all()) else length - 3 for row in input_ids]
                return torch.tensor([input_ids.shape[1] >= end for end in ends])

        options = {"max_new_tokens": 60, "do_sample": False, "stopping_criteria": [Ends()], **options}
        if script is None:
            return model.generate(**inputs, **options)
        return drafted(model, inputs, plain, script, widths=widths, **options)

    for length in (POSITIONS - 1, POSITIONS, POSITIONS + 1):
        plain = end(None, length)
        assert plain.shape[1] == length
        for scripts in ([right, right], [right, silent], [silent, right]):
            output = end(scripts, length)
            assert torch.equal(output.sequences, plain)
            assert output.statistics.drafts.accepted > 5


@pytest.mark.parametrize("first", [0, 3])
def test_positions_of_the_callers_own(first: int) -> None:
    """Given once for all rows; texts end where these positions do."""
    model = model_with_positions("gpt2")
    inputs = prompts(2, padded=False)
    options = {"position_ids": torch.arange(first, first + 14)[None], "do_sample": False}
    for new_tokens in (POSITIONS - 14 - first, POSITIONS - 14 - first + 1):
        plain = model.generate(**inputs, **options, max_new_tokens=new_tokens)
        output = drafted(model, inputs, plain, [right, bushy], **options, max_new_tokens=new_tokens)
        assert torch.equal(output.sequences, plain)
        assert output.statistics.drafts.accepted > 5


def test_texts_beyond_the_last_position_fail_as_plain_ones_do() -> None:
    model = model_with_positions("gpt2")
    inputs = prompts(1)
    for ask in (model.generate, lambda **options: model.generate(custom_generate=rest_store.generate, **options)):
        with pytest.raises(IndexError):
            ask(**inputs, max_new_tokens=40, do_sample=False)


def test_computed_positions_have_no_end() -> None:
    assert position_count(model_with_positions("llama")) == float("inf")
    assert position_count(model_with_positions("gpt2")) == POSITIONS


# --- Slots of the caller's static cache -------------------------------------------------------------------------------


@pytest.mark.parametrize("widths", [(), (1, 4, 17)])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("architecture", ["llama", "gemma2"])
def test_a_static_cache_holds_as_much_as_in_plain_decoding(
    architecture: str, rows: int, widths: tuple[int, ...]
) -> None:
    model = tiny_model(architecture)
    inputs = prompts(rows)
    text = model.generate(**inputs, max_new_tokens=30, do_sample=False)

    def ask(new_tokens: int, **options: Any) -> Any:
        cache = StaticCache(config=model.config, max_cache_len=20)
        fixed = {"max_new_tokens": new_tokens, "do_sample": False, "past_key_values": cache}
        if not options:
            return model.generate(**inputs, **fixed), cache
        scripts = [right, silent, bushy][:rows]
        return drafted(model, inputs, text, scripts, **fixed, **options).sequences, cache

    plain, cache = ask(7)
    output, own = ask(7, widths=widths)
    assert torch.equal(output, plain)
    assert int(own.get_seq_length()) == int(cache.get_seq_length()) == 20
    with pytest.raises(IndexError):
        ask(8)
    refused(CacheFullError, lambda: ask(8, widths=widths), "max_cache_len", "is 20", "at least 21")


def test_what_was_written_before_a_static_cache_was_full_is_read_and_kept() -> None:
    model = tiny_model("llama")
    inputs = prompts(1)
    plain = model.generate(**inputs, max_new_tokens=30, do_sample=False)
    cache = StaticCache(config=model.config, max_cache_len=20)
    generator = rest_store.Generator(model, None, [rest_store.PromptLookup()])
    pieces = generator.begin(inputs, max_new_tokens=30, do_sample=False, past_key_values=cache)
    written: list[int] = []

    def read() -> None:
        for piece in pieces:
            written.extend(piece.tokens[0])

    with pytest.raises(CacheFullError):
        read()
    assert written == plain[0, 14:21].tolist()
    assert int(cache.get_seq_length()) == 20


def test_a_prompt_that_a_static_cache_cannot_hold_is_refused() -> None:
    model = tiny_model("llama")
    cache = StaticCache(config=model.config, max_cache_len=13)
    options = {"past_key_values": cache, "max_new_tokens": 5, "custom_generate": rest_store.generate}
    refused(CacheFullError, lambda: model.generate(**prompts(1), **options), "max_cache_len", "is 13", "at least 14")
    assert not cache.layers[0].is_initialized, "the model did not run"


def test_a_static_window_is_as_narrow_as_its_memory() -> None:
    model = tiny_model("mistral with a sliding window")
    inputs = prompts(1)
    texts = {}
    for size in (6, 60):
        caches = [StaticCache(config=model.config, max_cache_len=size) for _ in range(2)]
        fixed = {"max_new_tokens": 30, "do_sample": False}
        texts[size] = model.generate(**inputs, **fixed, past_key_values=caches[0])
        output = drafted(model, inputs, texts[size], [bushy], **fixed, past_key_values=caches[1])
        assert torch.equal(output.sequences, texts[size])
    assert not torch.equal(texts[6], texts[60])


# --- No cache ---------------------------------------------------------------------------------------------------------


def test_without_a_cache_none_is_returned() -> None:
    model = tiny_model("llama")
    fixed = {"max_new_tokens": 5, "do_sample": False, "return_dict_in_generate": True}
    plain = model.generate(**prompts(2), **fixed, use_cache=False)
    output = model.generate(**prompts(2), **fixed, use_cache=False, custom_generate=rest_store.generate)
    assert output.past_key_values is plain.past_key_values is None
    assert torch.equal(output.sequences, plain.sequences)


def test_a_cache_that_is_not_to_be_used_is_refused() -> None:
    """Plain decoding runs the whole text again in each step, and appends all of it to the cache."""
    model = tiny_model("llama")
    cache = DynamicCache(config=model.config)
    options = {
        "max_new_tokens": 5,
        "use_cache": False,
        "past_key_values": cache,
        "custom_generate": rest_store.generate,
    }
    refused(ModeNotSupportedError, lambda: model.generate(**prompts(1), **options), "use_cache", "past_key_values")


@pytest.mark.parametrize("limit", ["max_length", "max_new_tokens"])
def test_a_limit_may_be_as_large_as_that_of_a_tokenizer_without_one(limit: str) -> None:
    """The `model_max_length` of such tokenizers."""
    model, prompt = tiny_model("llama"), prompts(1, 6, seed=5)
    options = {limit: int(1e30), "do_sample": False, "stopping_criteria": [Longer(20)]}
    plain = model.generate(**prompt, **options)
    drafted = model.generate(
        **prompt, **options, custom_generate=rest_store.generate, drafter=[rest_store.PromptLookup()]
    )
    assert drafted.tolist() == plain.tolist()


class Longer(transformers.StoppingCriteria):
    """Ends a text of so many tokens."""

    def __init__(self, most: int) -> None:
        self.most = most

    def __call__(self, input_ids: torch.Tensor, scores: Any, **options: Any) -> torch.Tensor:
        return torch.full((len(input_ids),), input_ids.shape[1] >= self.most)


def test_rows_grow_beyond_the_memory_that_they_begin_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "_ROOM", 1)
    row = rows.Rows(torch.tensor([[1, 2]]), Stops([]))[0]
    for count in (1, 3, 40):
        row.tokens += range(count)
        assert row.ids().tolist() == [row.tokens]
