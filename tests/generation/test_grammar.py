"""Generation under a grammar: drafts change no text, and forced text takes few passes."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import rest_store
from rest_store.generation.grammar_mask import GrammarMask
from tests.shared.models import byte_level_bpe

SCHEMAS = [
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 8},
            "color": {"enum": ["red", "green", "blue"]},
            "is_open": {"type": "boolean"},
            "number_of_pieces": {"type": "integer"},
        },
        "required": ["name", "color", "is_open", "number_of_pieces"],
        "additionalProperties": False,
    },
    {
        "type": "array",
        "items": {"enum": ["alpha", "alphabet", 7, None]},
        "minItems": 2,
        "maxItems": 5,
    },
    {"const": {"greeting": "hello"}},
]
LIBRARIES = ["llguidance", "xgrammar"]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=byte_level_bpe(), eos_token="<|endoftext|>")


@pytest.fixture(scope="module")
def model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """A model of random weights, whose vocabulary is wider than the tokenizer's."""
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    config = LlamaConfig(
        vocab_size=len(tokenizer) + 40, **sizes, initializer_range=0.3, pad_token_id=0
    )
    config.eos_token_id = tokenizer.eos_token_id
    return LlamaForCausalLM(config).eval()


def compiled(library: str, schema: Any, tokenizer: PreTrainedTokenizerFast) -> rest_store.Grammar:
    pytest.importorskip(library)
    if library == "llguidance":
        return rest_store.Grammar.from_json_schema(schema, tokenizer)
    import xgrammar

    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=len(tokenizer))
    return rest_store.Grammar(
        xgrammar.GrammarCompiler(info).compile_json_schema(json.dumps(schema))
    )


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("schema", range(len(SCHEMAS)))
@pytest.mark.parametrize("library", LIBRARIES)
def test_texts_are_those_without_drafts(
    library: str,
    schema: int,
    sampled: bool,
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    grammar = compiled(library, SCHEMAS[schema], tokenizer)
    inputs = tokenizer("def add(first", return_tensors="pt")
    options = {**inputs, "max_new_tokens": 120, "do_sample": sampled}
    torch.manual_seed(5)
    plain = model.generate(**options, logits_processor=[GrammarMask(grammar)])
    sources = [rest_store.PromptLookup(), rest_store.RecycledLogits(), grammar]
    passes = []
    hook = model.register_forward_pre_hook(lambda *_: passes.append(1))
    for _ in range(2):  # the second time from earlier choices
        passes.clear()
        torch.manual_seed(5)
        output = model.generate(
            **options,
            logits_processor=[GrammarMask(grammar)],
            custom_generate=rest_store.generate,
            sources=sources,
            adaptive=False,
        )
        assert torch.equal(output, plain)
    hook.remove()
    written = plain.shape[1] - inputs["input_ids"].shape[1]
    assert len(passes) < (0.5 if schema != 1 else 1.0) * written


@pytest.mark.parametrize("library", LIBRARIES)
def test_batches_take_a_mask_for_each_row(
    library: str, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    grammar = compiled(library, SCHEMAS[0], tokenizer)
    rows = [tokenizer(text)["input_ids"][:3] for text in ("def add(first", "for i in range(3):")]
    inputs = {"input_ids": torch.tensor(rows), "attention_mask": torch.ones(2, 3, dtype=torch.long)}
    sources = [rest_store.PromptLookup(), grammar]
    output = model.generate(
        **inputs,
        max_new_tokens=60,
        do_sample=False,
        logits_processor=[GrammarMask(grammar)],
        custom_generate=rest_store.generate,
        sources=sources,
    )
    for row, ids in enumerate(inputs["input_ids"]):
        alone = model.generate(
            ids[None], max_new_tokens=60, do_sample=False, logits_processor=[GrammarMask(grammar)]
        )
        written = output[row, : alone.shape[1]]
        assert torch.equal(written, alone[0])


def test_a_copied_mask_begins_anew(tokenizer: PreTrainedTokenizerFast) -> None:
    pytest.importorskip("llguidance")
    mask = GrammarMask(compiled("llguidance", SCHEMAS[2], tokenizer))
    scores = torch.zeros(1, len(tokenizer))
    first = mask(torch.tensor([[5]]), scores)
    mask(torch.tensor([[5, int(first[0].argmax())]]), scores)
    assert torch.equal(copy.deepcopy(mask)(torch.tensor([[5, 6, 7]]), scores), first)


def test_an_unsatisfiable_schema_is_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    pytest.importorskip("llguidance")
    with pytest.raises(rest_store.RestStoreError, match="llguidance"):
        rest_store.Grammar.from_json_schema({"type": "nothing"}, tokenizer)
