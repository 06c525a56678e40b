"""`Generator` masks, drafts and remembers under a grammar, without a caller's processor."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import rest_store
from rest_store.cli import main
from rest_store.drafting.grammar_matchers import GrammarDefinition
from rest_store.errors import ArgumentError, DraftingWarning, NotSupportedError, SourceError
from rest_store.generation import comparison
from rest_store.generation.generator import Generator
from rest_store.generation.grammar_mask import GrammarMask
from tests.shared.grammars import END, TOKENS, TextsMatcher, grammar_of
from tests.shared.models import byte_level_bpe
from tests.shared.strategies import refused

pytest.importorskip("llguidance")

COMPACT = {"whitespace_flexible": False}  # models of random weights would write blanks for ever
PERSON = {
    "x-guidance": COMPACT,
    "type": "object",
    "properties": {
        "first_name": {"type": "string", "maxLength": 8},
        "color": {"enum": ["red", "green", "blue"]},
        "is_married": {"type": "boolean"},
    },
    "required": ["first_name", "color", "is_married"],
    "additionalProperties": False,
}
COLORS = {
    "x-guidance": COMPACT,
    "type": "array",
    "items": {"enum": ["red", "green"]},
    "minItems": 1,
    "maxItems": 3,
}
PROMPT = "def add(first"


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=byte_level_bpe(), eos_token="<|endoftext|>")


@pytest.fixture(scope="module")
def model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """A model of random weights, with a vocabulary wider than the tokenizer's and no end token."""
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
    config.eos_token_id = None
    model = LlamaForCausalLM(config).eval()
    model.generation_config.eos_token_id = None
    return model


@pytest.fixture
def generator(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> Generator:
    sources = [rest_store.PromptLookup(), rest_store.RecycledLogits()]
    return Generator(model, tokenizer, sources, adaptive=False)


def plainly(
    model: Any, tokenizer: Any, grammar: rest_store.Grammar, prompt: Any, **options: Any
) -> torch.Tensor:
    """What `generate` of transformers writes with the mask alone."""
    end = tokenizer.eos_token_id
    mask = GrammarMask(grammar)
    text: torch.Tensor = model.generate(
        **prompt, **options, eos_token_id=end, logits_processor=[mask]
    )
    return text


@pytest.mark.parametrize(
    "options", [{}, {"do_sample": True, "temperature": 0.8}], ids=["greedy", "sampled"]
)
def test_a_schema_alone_masks_and_drafts(
    generator: Generator,
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    options: dict[str, Any],
) -> None:
    grammar = rest_store.Grammar.from_json_schema(PERSON, tokenizer)
    options = {"max_new_tokens": 120, **options}
    inputs = tokenizer(PROMPT, return_tensors="pt", return_token_type_ids=False)
    torch.manual_seed(3)
    plain = plainly(model, tokenizer, grammar, inputs, **options)
    outputs = []
    for _ in range(2):  # the second time with the choices of the first
        torch.manual_seed(3)
        outputs.append(generator.generate(PROMPT, json_schema=PERSON, **options))
        assert torch.equal(outputs[-1].sequences, plain)
    first, output = outputs
    assert set(json.loads(output.text or "")) == set(PERSON["required"])
    assert first.sources["json"] > 0
    assert first.statistics.mean_tokens > 2
    assert output.statistics.mean_tokens > 4
    pieces = []
    torch.manual_seed(3)
    with generator.stream(PROMPT, json_schema=json.dumps(PERSON), **options) as stream:
        pieces = [token for piece in stream for token in piece.tokens[0]]
    assert pieces == output.tokens[0]


def test_a_schema_needs_no_source(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    generator = Generator(model, tokenizer, adaptive=False)
    output = generator.generate(PROMPT, json_schema=PERSON, max_new_tokens=120)
    assert json.loads(output.text or "")["color"] in ("red", "green", "blue")
    assert output.statistics.mean_tokens > 2


def test_regular_expressions_and_grammars(generator: Generator) -> None:
    text = generator.generate(
        PROMPT, regex=r"(yes|no), because [a-z]{3,9}\.", max_new_tokens=60
    ).text
    assert re.fullmatch(r"(yes|no), because [a-z]{3,9}\.", text or "")
    lark = 'start: "<" NAME ">"\nNAME: /[a-z]{2,5}/'
    assert re.fullmatch(
        "<[a-z]{2,5}>", generator.generate(PROMPT, grammar=lark, max_new_tokens=60).text or ""
    )


def test_each_row_of_a_batch_has_its_own_grammar(
    generator: Generator, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    rows = [tokenizer(text)["input_ids"][:3] for text in (PROMPT, "for i in range(3):")]
    output = generator.generate(rows, json_schema=[PERSON, COLORS], max_new_tokens=100)
    assert output.texts is not None
    assert set(json.loads(output.texts[0])) == set(PERSON["required"])
    assert set(json.loads(output.texts[1])) <= {"red", "green"}
    for row, schema, tokens in zip(rows, [PERSON, COLORS], output.tokens, strict=True):
        grammar = rest_store.Grammar.from_json_schema(schema, tokenizer)
        alone = plainly(
            model, tokenizer, grammar, {"input_ids": torch.tensor([row])}, max_new_tokens=100
        )
        assert tokens == alone[0, 3:].tolist()
    with pytest.raises(
        NotSupportedError, match="number of grammars is 3, expected 1, or one for each of 2 rows"
    ):
        generator.generate(rows, json_schema=[PERSON, COLORS, COLORS], max_new_tokens=9)


def test_a_plain_batch_may_have_one_mask_for_all_rows(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    """The comparison of a batch generates plainly, and pads rows that have ended."""
    grammars = [
        rest_store.Grammar.from_json_schema(schema, tokenizer) for schema in (PERSON, COLORS)
    ]
    rows = torch.tensor(
        [tokenizer(text)["input_ids"][:3] for text in (PROMPT, "for i in range(3):")]
    )
    options = {"max_new_tokens": 100, "eos_token_id": tokenizer.eos_token_id}
    both = model.generate(rows, **options, logits_processor=[GrammarMask(grammars)])
    for number, grammar in enumerate(grammars):
        alone = model.generate(
            rows[number : number + 1], **options, logits_processor=[GrammarMask(grammar)]
        )
        assert torch.equal(both[number, : alone.shape[1]], alone[0])


def test_a_comparison_leaves_no_trace(
    generator: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "MAX_SECONDS", 0.0)
    grammar = generator.grammar(json_schema=COLORS)
    assert grammar is not None
    before = dict(grammar._choices)
    text = generator.generate(PROMPT, json_schema=COLORS, max_new_tokens=1, compare=True)
    assert text.comparison is not None
    assert text.comparison.identical
    other = rest_store.Grammar.copy(grammar)
    other.learn(b"place", 3)
    assert grammar._choices.keys() - before.keys() <= {b"", *grammar._choices} - {b"place"}


@pytest.fixture
def memory(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> Iterator[rest_store.LiveDatastore]:
    with rest_store.LiveDatastore.open(tmp_path / "live", tokenizer=tokenizer) as live:
        yield live


def test_outputs_are_remembered_by_their_schema(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, memory: rest_store.LiveDatastore
) -> None:
    generator = Generator(
        model, tokenizer, [memory, rest_store.PromptLookup()], remember=memory, adaptive=False
    )
    output = generator.generate(PROMPT, json_schema=PERSON, max_new_tokens=100)
    generator.generate(PROMPT, json_schema=COLORS, max_new_tokens=100)
    generator.generate(PROMPT, json_schema=COLORS, group="mine", max_new_tokens=100)
    assert generator.flush(20)
    grammar = rest_store.Grammar.from_json_schema(json.dumps(PERSON, indent=2), tokenizer)
    [document] = memory.documents(group=grammar.group)
    assert document.tokens.tolist()[-len(output.tokens[0]) :] == output.tokens[0]
    assert len(list(memory.documents(group="mine"))) == 1
    fresh = Generator(
        model, tokenizer, [rest_store.PromptLookup()], remember=memory, adaptive=False
    )
    again = fresh.generate(PROMPT, json_schema=PERSON, max_new_tokens=100)
    assert again.tokens == output.tokens
    assert again.statistics.forward_passes < output.statistics.forward_passes


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({"json_schema": {"type": "nothing"}}, "refused by llguidance (Invalid type: nothing)"),
        ({"json_schema": False}, "refused by llguidance (Unsatisfiable schema: schema is false)"),
        ({"json_schema": '{"type": '}, "the JSON schema is no JSON"),
        ({"json_schema": {"enum": {1, 2}}}, "the JSON schema is no JSON"),
        ({"json_schema": []}, "json_schema is an empty list"),
        ({"regex": "("}, "refused by llguidance"),
        ({"regex": 5}, "regex is a int"),
        ({"grammar": "start: nothing"}, "refused by llguidance"),
        ({"grammar": 5}, "compiled is a int"),
        ({"grammar": "start: A\nA: /[^\\s\\S]/"}, "no text follows it"),
        (
            {"json_schema": {}, "regex": "a"},
            "the output's form is json_schema and regex, expected one of them",
        ),
    ],
)
def test_what_is_no_form_is_refused_in_one_line(
    generator: Generator, form: dict[str, Any], words: str
) -> None:
    refused(ArgumentError, lambda: generator.generate(PROMPT, **form), words)
    refused(ArgumentError, lambda: generator.stream(PROMPT, **form), words)


def test_a_form_needs_a_tokenizer_and_an_end(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    refused(
        ArgumentError,
        lambda: Generator(model).generate([5], regex="a", eos_token_id=0),
        "tokenizer is None",
    )
    refused(ArgumentError, lambda: Generator(model).generate([5], regex="a"), "end token is absent")


class DeadEnd(TextsMatcher):
    """After an `n` nothing may follow."""

    def fork(self) -> DeadEnd:
        return DeadEnd(self.texts, self.written, ended=self.ended)

    def mask(self) -> Any:
        mask = super().mask()
        return np.zeros_like(mask) if self.written.endswith(b"n") else mask


class Failing(DeadEnd):
    """After an `n` it raises."""

    def fork(self) -> Failing:
        return Failing(self.texts, self.written, ended=self.ended)

    def mask(self) -> Any:
        if self.written.endswith(b"n"):
            raise ValueError("too complex")
        return super().mask()


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (
            DeadEnd,
            (
                "GrammarMask: the grammar is allowing no token, expected one that the text can go"
                " on in"
            ),
        ),
        (
            Failing,
            (
                "GrammarMask: the grammar is failing (ValueError: too complex), expected one that"
                " can be followed"
            ),
        ),
    ],
)
def test_a_grammar_that_ends_in_the_middle_of_the_text_says_so(
    model: LlamaForCausalLM, kind: type[TextsMatcher], words: str
) -> None:
    generator = Generator(model, None, [rest_store.PromptLookup()], adaptive=False)
    grammar = rest_store.Grammar(GrammarDefinition(lambda: kind([b"canned", b"cannot"]), TOKENS))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DraftingWarning)  # drafts without the grammar
        refused(
            NotSupportedError,
            lambda: generator.generate(
                [5, 6], grammar=grammar, eos_token_id=END, max_new_tokens=20
            ),
            words,
        )


def test_a_mask_whose_end_is_not_that_of_the_row_says_so(model: LlamaForCausalLM) -> None:
    grammar = grammar_of("ab")
    generator = Generator(model, None, [rest_store.PromptLookup()], adaptive=False)
    with pytest.raises(NotSupportedError, match="the grammar is at its end before the row"):
        generator.generate([5], grammar=grammar, eos_token_id=7, max_new_tokens=9)


def test_two_grammars_are_refused(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    grammar = rest_store.Grammar.from_json_schema(COLORS, tokenizer)
    with pytest.raises(SourceError, match="a second Grammar"):
        Generator(model, tokenizer, [grammar]).generate(PROMPT, json_schema=COLORS)


def test_other_processors_come_after_the_mask(
    generator: Generator, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    """The mask is then computed for each token, too."""
    grammar = rest_store.Grammar.from_json_schema(PERSON, tokenizer)
    inputs = tokenizer(PROMPT, return_tensors="pt", return_token_type_ids=False)
    options = {"max_new_tokens": 100, "repetition_penalty": 1.3, "return_dict_in_generate": True}
    plain = plainly(model, tokenizer, grammar, inputs, **options, output_scores=True)
    output = generator.generate(PROMPT, json_schema=PERSON, **options, output_logits=True)
    assert torch.equal(output.sequences, plain.sequences)


def test_the_command_takes_a_schema(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    place = tmp_path / "model"
    model.save_pretrained(place)
    tokenizer.save_pretrained(place)
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps(PERSON))
    words = [
        "generate",
        "--model",
        str(place),
        "--prompt",
        PROMPT,
        "--max-new-tokens",
        "100",
        "--json",
    ]
    done = CliRunner().invoke(main, [*words, "--json-schema", str(schema)])
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert set(json.loads(facts["text"])) == set(PERSON["required"])
    assert facts["sources"]["json"] > 0
    done = CliRunner().invoke(main, [*words, "--regex", "[ab]{3}"])
    assert re.fullmatch("[ab]{3}", json.loads(done.stdout)["text"])
    schema.write_text('{"type": "nothing"}')
    done = CliRunner().invoke(main, [*words, "--json-schema", str(schema)])
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1].endswith("refused by llguidance (Invalid type: nothing)")
    for wrong in (
        ["--json-schema", str(place / "config.txt")],
        ["--regex", "a", "--json-schema", str(schema)],
    ):
        assert CliRunner().invoke(main, [*words, *wrong]).exit_code == 2
