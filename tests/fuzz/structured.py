"""Generations under random schemas with random small models, against plain ones with the mask.

What must hold: the same tokens, greedy or sampled from the same seed, with whatever sources, in one
row or several; and where a schema is none, or a grammar fails, an error of ours in one line.
"""

from __future__ import annotations

import functools
import json
import random
import warnings
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import rest_store
from rest_store.errors import ArgumentError, NotSupportedError
from rest_store.generation.grammar_mask import GrammarMask
from tests.fuzz import campaign
from tests.shared.models import byte_level_bpe

_KINDS = ("string", "integer", "number", "boolean", "enum", "const", "object", "array", "any of")
_WORDS = ("name", "color", "is_open", "red", "green", "", "é", '"', "a longer name of a field")
_IMPOSSIBLE: tuple[Any, ...] = (
    False,
    {"type": "nothing"},
    {"type": "string", "minLength": 5, "maxLength": 2},
    {"enum": []},
    {"allOf": [{"type": "string"}, {"type": "integer"}]},
    {"$ref": "#/absent"},
    {"type": "string", "pattern": "("},
    '{"type": ',
    "[" * 5000,
    7,
)
_REGEXES = ("[ab]{2,9}", "(yes|no)( maybe){0,3}", "x*", "<[^<>]{1,8}>", "(a|aa|aaa){3}", "(?i)ab+")


@functools.cache
def tokenizer() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=byte_level_bpe(), eos_token="<|endoftext|>")


@functools.cache
def model_of(seed: int) -> LlamaForCausalLM:
    """A model of random weights in 64-bit numbers.

    Its vocabulary is as wide as the tokenizer's, or wider, by no whole word of a mask.
    """
    torch.manual_seed(seed)
    wider = (0, 1, 40)[seed % 3]
    config = LlamaConfig(
        vocab_size=len(tokenizer()) + wider,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        initializer_range=(0.02, 0.3, 1.0)[seed % 5 % 3],
        max_position_embeddings=512,
        pad_token_id=0,
    )
    config.eos_token_id = tokenizer().eos_token_id
    return LlamaForCausalLM(config).double().eval()


def some_schema(chance: random.Random, depth: int = 0) -> dict[str, Any]:
    """Return a random schema that something satisfies."""
    kind = chance.choice(_KINDS[: None if depth < 3 else 6])
    if kind == "string":
        least = chance.randrange(3)
        return {"type": kind, "minLength": least, "maxLength": least + chance.randrange(12)}
    if kind in ("integer", "number"):
        least = chance.randrange(-200, 200)
        return {"type": kind, "minimum": least, "maximum": least + chance.randrange(1000)}
    if kind == "boolean":
        return {"type": kind}
    if kind == "enum":
        values = [*chance.sample(_WORDS, chance.randrange(1, 5)), 7, None][: chance.randrange(1, 6)]
        return {"enum": values}
    if kind == "const":
        return {"const": {chance.choice(_WORDS): chance.choice([1, [], "red", {"name": None}])}}
    if kind == "object":
        names = chance.sample(_WORDS, chance.randrange(1, 5))
        return {
            "type": kind,
            "properties": {name: some_schema(chance, depth + 1) for name in names},
            "required": names[: chance.randrange(len(names) + 1)],
            "additionalProperties": False,
        }
    if kind == "array":
        least = chance.randrange(3)
        items = some_schema(chance, depth + 1)
        return {"type": kind, "items": items, "minItems": least, "maxItems": least + 2}
    return {"anyOf": [some_schema(chance, depth + 1) for _ in range(chance.randrange(1, 4))]}


def large_schema(chance: random.Random) -> dict[str, Any]:
    """Return a schema of about 100 KB."""
    if chance.random() < 0.5:
        return {"enum": [f"value number {number} of many" for number in range(3500)]}
    names = [f"property_number_{number}" for number in range(700)]
    fields = {name: {"type": "string", "maxLength": 50, "description": "a" * 40} for name in names}
    return {"type": "object", "properties": fields, "required": names}


def some_form(chance: random.Random) -> tuple[str, Any]:
    """Return an argument of `Generator.generate`, and its value."""
    kind = chance.random()
    if kind < 0.1:
        return "regex", chance.choice(_REGEXES)
    schema = large_schema(chance) if kind < 0.13 else some_schema(chance)
    if chance.random() < 0.7:  # or a model of random weights writes blanks for long
        schema["x-guidance"] = {"whitespace_flexible": False}
    return "json_schema", json.dumps(schema) if chance.random() < 0.3 else schema


class Fuzzer(campaign.Fuzzer):
    """Generates in both ways, and compares."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        super().__init__(directory, stack)
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        verbosity = transformers.utils.logging.get_verbosity()
        stack.callback(transformers.utils.logging.set_verbosity, verbosity)
        transformers.utils.logging.set_verbosity_error()

    def run(self, chance: random.Random) -> Counter[str]:
        """Run one case."""
        model = model_of(chance.randrange(12))
        if chance.random() < 0.08:
            return self._refused(chance, model)
        name, value = some_form(chance)
        rows = chance.choice([1, 1, 1, 2, 3])
        sampled = chance.random() < 0.4
        options: dict[str, Any] = {"max_new_tokens": chance.randrange(1, 90), "do_sample": sampled}
        if sampled:
            options |= {
                "temperature": chance.choice([0.7, 1.0, 1.5]),
                "top_k": chance.choice([0, 5]),
            }
        if chance.random() < 0.2:
            options["repetition_penalty"] = 1.2
        sources = [rest_store.PromptLookup(), rest_store.RecycledLogits()]
        sources = chance.sample(sources, chance.randrange(3))
        drafting = {"adaptive": chance.random() < 0.3, "max_nodes": chance.choice([1, 4, 16, 48])}
        self.case = f"{name} {str(value)[:2000]}\n{rows} rows, {options}, {sources}, {drafting}"
        end = tokenizer().eos_token_id
        prompt = [[chance.randrange(end + 1, 300) for _ in range(5)] for _ in range(rows)]
        generator = rest_store.Generator(model, tokenizer(), sources, **drafting)
        grammar = generator.grammar(**{name: value})
        assert grammar is not None
        seed = chance.randrange(2**32)
        # A sampled batch draws its own numbers, the same whatever is drafted.
        own = {"custom_generate": rest_store.generate} if sampled and rows > 1 else {}
        torch.manual_seed(seed)
        plain = model.generate(
            torch.tensor(prompt), logits_processor=[GrammarMask(grammar)], **options, **own
        )
        outcome = ""
        for _ in range(2):  # the second time with the choices of the first
            torch.manual_seed(seed)
            output = generator.generate(prompt, **{name: value}, **options)
            assert torch.equal(output.sequences, plain), (
                f"{output.sequences.tolist()} for {plain.tolist()}"
            )
            drafts = output.statistics.drafts
            assert not drafts.errors, drafts.errors
            assert not drafts.omissions, drafts.omissions
            outcome = "equal, with draft tokens accepted" if drafts.accepted else "equal"
        return Counter([outcome])

    def _refused(self, chance: random.Random, model: Any) -> Counter[str]:
        """Have a schema refused that is none, or that nothing satisfies."""
        schema = chance.choice(_IMPOSSIBLE)
        self.case = f"refused: {str(schema)[:200]}"
        generator = rest_store.Generator(model, tokenizer())
        with pytest.raises((ArgumentError, NotSupportedError)) as refused:
            generator.generate([[5, 6]], json_schema=schema)
        assert "\n" not in str(refused.value), "lines of an error"
        return Counter([type(refused.value).__name__])
