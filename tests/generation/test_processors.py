"""Logits processors judge each row of a batch as plain generation does."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import LogitsProcessor, WatermarkingConfig

import rest_store
from rest_store.errors import NotSupportedError
from tests.shared.strategies import refused
from tests.shared.tiny import (
    Drafted,
    Scripted,
    bushy,
    futures_of,
    prompts,
    text_tokenizer,
    tiny_model,
    write_model,
)

NEW = 12


@pytest.mark.parametrize(
    "options",
    [
        {"encoder_repetition_penalty": 1.7},
        {"encoder_no_repeat_ngram_size": 1},
        {"repetition_penalty": 1.5},
        {"no_repeat_ngram_size": 1},
        {"prefix_allowed_tokens_fn": lambda row, ids: range(3 + 13 * row, 23 + 13 * row)},
        {"min_new_tokens": 6, "eos_token_id": list(range(40, 55))},
        {"bad_words_ids": [[token] for token in range(10, 40)]},
        {"watermarking_config": WatermarkingConfig(bias=1e7)},
    ],
    ids="+".join,
)
def test_several_rows_of_a_prompt_are_judged_as_plain_decoding_judges_them(
    options: dict[str, Any],
) -> None:
    """The model is sure of each token, so random generators of rows do not matter."""
    model = tiny_model("llama")
    model.lm_head.weight.data *= 1e5
    inputs = prompts(2, 40)
    fixed: dict[str, Any] = {
        "max_new_tokens": NEW,
        "do_sample": True,
        "num_return_sequences": 3,
        **options,
    }
    plain = model.generate(**inputs, **fixed)
    without = model.generate(**inputs, **{**fixed, **dict.fromkeys(options)})
    assert not torch.equal(plain, without), "the option has to matter"
    expanded = {name: rows.repeat_interleave(3, dim=0) for name, rows in inputs.items()}
    futures = futures_of(expanded, plain)
    drafter: list[Any] = [Drafted(lambda prompt: Scripted(prompt, futures, bushy))]
    if "prefix_allowed_tokens_fn" in options:  # rows of a prompt differ
        drafter = [rest_store.PromptLookup()]
    for steady in (True, False):
        output = model.generate(
            **inputs,
            **fixed,
            custom_generate=rest_store.generate,
            sources=drafter if steady else None,
            adaptive=False,
            return_dict_in_generate=True,
        )
        assert torch.equal(output.sequences, plain)
        assert (
            (output.statistics.drafts.accepted > 0)
            or not steady
            or "prefix_allowed_tokens_fn" in options
        )


# --- Processors of other packages -----------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A model whose tokens are those of its tokenizer, and that its own end token ends."""
    from transformers import AutoModelForCausalLM

    tokenizer = text_tokenizer()
    directory = write_model(
        tmp_path_factory.mktemp("model"),
        vocab_size=len(tokenizer),
        eos_token_id=tokenizer.eos_token_id,
    )
    return AutoModelForCausalLM.from_pretrained(directory)


PATTERNS = ["(one|two), (three|four)", "[0-9]{4}-[0-9]{2}", "(yes|no|perhaps)!"]


def xgrammar_processor(patterns: list[str]) -> LogitsProcessor:
    """A processor of a batch, of one grammar for all rows or one for each."""
    xgrammar = pytest.importorskip("xgrammar")
    hf = pytest.importorskip("xgrammar.contrib.hf")
    tokenizer = text_tokenizer()
    information = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=len(tokenizer))
    compiler = xgrammar.GrammarCompiler(information)
    processor: LogitsProcessor = hf.LogitsProcessor(
        [compiler.compile_regex(pattern) for pattern in patterns]
    )
    return processor


def outlines_processor(backend: str, model: Any) -> LogitsProcessor:
    outlines = pytest.importorskip("outlines")
    backends = pytest.importorskip("outlines.backends")
    pytest.importorskip(backend)
    of_tokens = outlines.from_transformers(model, text_tokenizer())
    processor: LogitsProcessor = backends.get_regex_logits_processor(
        backend, of_tokens, PATTERNS[0]
    )
    return processor


PROCESSORS: dict[str, Callable[[Any], LogitsProcessor]] = {
    "xgrammar": lambda model: xgrammar_processor(PATTERNS[:1]),
    "xgrammar, a grammar for each row": lambda model: xgrammar_processor(PATTERNS),
    "outlines with xgrammar": lambda model: outlines_processor("xgrammar", model),
    "outlines with outlines_core": lambda model: outlines_processor("outlines_core", model),
    "outlines with llguidance": lambda model: outlines_processor("llguidance", model),
}


# Of torch, for which other packages use it.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", PROCESSORS)
def test_grammars_of_other_packages_hold_in_batches(name: str, model: Any) -> None:
    inputs = prompts(3)
    fixed = {"max_new_tokens": 40, "do_sample": False}
    processor = PROCESSORS[name](model)
    plain = model.generate(**inputs, **fixed, logits_processor=[PROCESSORS[name](model)])
    tokenizer = text_tokenizer()
    patterns = PATTERNS if "each row" in name else PATTERNS[:1] * 3
    for row, pattern in zip(plain[:, 14:], patterns, strict=True):
        assert re.fullmatch(pattern, tokenizer.decode(row, skip_special_tokens=True))
    drafter = [rest_store.PromptLookup(), rest_store.RecycledLogits()]
    references = [row[14:].tolist() for row in plain]
    options = {
        "custom_generate": rest_store.generate,
        "sources": drafter,
        "adaptive": False,
        "references": references,
    }
    for _ in range(2):  # it is not used up, since each row has a copy
        output = model.generate(
            **inputs, **fixed, **options, logits_processor=[processor], return_dict_in_generate=True
        )
        assert torch.equal(output.sequences, plain)
        assert output.statistics.drafts.accepted > 0


def test_grammars_for_another_number_of_rows_are_refused(model: Any) -> None:
    processor = xgrammar_processor(PATTERNS[:2])
    options = {
        "logits_processor": [processor],
        "custom_generate": rest_store.generate,
        "max_new_tokens": 4,
    }
    refused(
        NotSupportedError,
        lambda: model.generate(**prompts(3), **options),
        "LogitsProcessor: number of compiled_grammars is 2, expected 1, or 3: one for each row",
    )


def test_a_processor_that_was_used_before_goes_on_in_copies() -> None:
    """One of outlines is such a processor, which is set up once for each generation."""
    used = xgrammar_processor(PATTERNS[:1])
    scores = torch.zeros(2, len(text_tokenizer()))
    ids = torch.tensor([[5], [5]])
    used(ids, scores.clone())
    from rest_store.generation.processors import for_row

    first, second = (for_row(used, row, 2) for row in range(2))
    opening = int(text_tokenizer()("o", add_special_tokens=False)["input_ids"][0])
    expected = first(torch.tensor([[5, opening]]), scores[:1].clone())
    assert torch.equal(second(torch.tensor([[5, opening]]), scores[:1].clone()), expected)
    assert torch.equal(
        used(torch.tensor([[5, opening]] * 2), scores.clone()), expected.expand(2, -1)
    )


class WithModule(LogitsProcessor):
    """Holds a module of Python, as processors that load a package late do, and counts its calls."""

    def __init__(self) -> None:
        self.json = json
        self.calls = [0]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.calls[0] += 1
        scores[:, : 3 + self.calls[0]] = -100.0
        return scores


def test_a_processor_may_hold_a_module() -> None:
    model = tiny_model("llama")
    inputs = prompts(3)
    fixed = {"max_new_tokens": NEW, "do_sample": False}
    plain = model.generate(**inputs, **fixed, logits_processor=[WithModule()])
    processor = WithModule()
    options = {
        "custom_generate": rest_store.generate,
        "sources": [rest_store.PromptLookup()],
        "adaptive": False,
    }
    assert torch.equal(
        model.generate(**inputs, **fixed, **options, logits_processor=[processor]), plain
    )
    assert processor.calls == [0], "each row has calls of its own"
