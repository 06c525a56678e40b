"""A `Generator` returns text, tokens, the share of each source, and a comparison."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import rest_store
from rest_store.datastore.tokenizer import identity_of
from rest_store.errors import ArgumentError, DataFileError, NotSupportedError, SourceError
from rest_store.generation import comparison
from rest_store.generation.output import accepted_by_source
from tests.shared.strategies import Corpus, refused, write_datastore
from tests.shared.tiny import Drafted, SameTree, prompts, text_tokenizer, tiny_model, write_model

PROMPT = "for i in i in i in i in"
FIXED = {"max_new_tokens": 24, "do_sample": False}
STEADY = {"adaptive": False}  # drafts whatever steps cost


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparisons have one round."""
    monkeypatch.setattr(comparison, "MAX_SECONDS", 0.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from transformers import AutoModelForCausalLM

    directory = write_model(tmp_path_factory.mktemp("model"), vocab_size=len(text_tokenizer()))
    return AutoModelForCausalLM.from_pretrained(directory)


@pytest.fixture(scope="module")
def store(model: Any, tmp_path_factory: pytest.TempPathFactory) -> rest_store.Datastore:
    """A datastore of what the model writes."""
    plain = model.generate(**text_tokenizer()(PROMPT, return_tensors="pt"), **FIXED)
    corpus = Corpus(len(text_tokenizer()), [[plain[0].tolist()]])
    directory = write_datastore(
        tmp_path_factory.mktemp("store"), corpus, identity_of(text_tokenizer())
    )
    return rest_store.Datastore.open(directory)


@pytest.fixture(scope="module")
def generator(model: Any, store: rest_store.Datastore) -> rest_store.Generator:
    sources = [store, rest_store.PromptLookup(), rest_store.RecycledLogits()]
    return rest_store.Generator(model, text_tokenizer(), sources, **STEADY)


def test_an_output_has_text_tokens_and_what_they_took(
    model: Any, store: rest_store.Datastore, generator: rest_store.Generator
) -> None:
    tokenizer = generator.tokenizer
    output = generator.generate(PROMPT, **FIXED)
    plain = model.generate(**tokenizer(PROMPT, return_tensors="pt"), **FIXED)
    assert torch.equal(output.sequences, plain)
    assert output.tokens == [plain[0, -24:].tolist()]
    assert (
        output.texts
        == [output.text]
        == [tokenizer.decode(plain[0, -24:], skip_special_tokens=True)]
    )
    assert output.statistics.forward_passes < 24
    assert output.statistics.mean_tokens == 24 / output.statistics.forward_passes
    assert list(output.sources) == [str(store.path), "prompt lookup", "recycled logits", "model"]
    assert output.sources["model"] == sum(origin == 0 for origin in output.statistics.origins[0])
    assert output.comparison is None
    passes = f"24 tokens in {output.statistics.forward_passes} forward passes, M "
    rest = (
        r"[\d.]+ tokens a pass .*, [\d.]+ tokens a second; \d+ from /.*, \d+ from prompt lookup, "
    )
    assert re.match(passes + rest, str(output))
    assert len(str(output).splitlines()) == 1


def test_rows_of_a_batch_have_a_text_each(model: Any) -> None:
    inputs = {**prompts(3), **FIXED}
    generator = rest_store.Generator(model, text_tokenizer(), [rest_store.PromptLookup()])
    output = generator.generate(
        {name: inputs.pop(name) for name in ("input_ids", "attention_mask")}, **inputs
    )
    assert output.tokens == output.sequences[:, 14:].tolist()
    assert output.texts == [
        generator.tokenizer.decode(row, skip_special_tokens=True) for row in output.tokens
    ]
    refused(
        NotSupportedError, lambda: output.text, "GeneratorOutput: there are the texts of 3 rows"
    )
    plain = rest_store.Generator(model).generate(prompts(1), **FIXED)
    assert plain.texts is None
    refused(ArgumentError, lambda: plain.text, "Generator(model, tokenizer, ...)")
    assert plain.sources == {"model": 24}


# --- Comparison -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{}, {"do_sample": True, "temperature": 0.9}, {"return_dict_in_generate": True}]
)
@pytest.mark.parametrize("rows", [1, 2])
def test_a_comparison_draws_the_same_random_numbers(rows: int, options: dict[str, Any]) -> None:
    model = tiny_model("llama")
    generator = rest_store.Generator(model, None, [rest_store.PromptLookup()])
    arguments = {**FIXED, **options}
    torch.manual_seed(5)
    alone = generator.generate(prompts(rows), **arguments)
    after = torch.get_rng_state()
    torch.manual_seed(5)
    output = generator.generate(prompts(rows), **arguments, compare=True)
    assert torch.equal(torch.get_rng_state(), after), "as if it had not been compared"
    assert torch.equal(output.sequences, alone.sequences)
    assert output.comparison is not None
    assert output.comparison.identical == (rows == 1 or "do_sample" not in options), (
        "a batch draws its own numbers"
    )
    speedup = output.comparison.speedup
    assert speedup.median == output.comparison.seconds / output.comparison.drafted_seconds
    assert speedup.low <= speedup.median <= speedup.high
    line = str(output).splitlines()[1]
    assert re.match(
        r"plain decoding wrote (the same|another) text at [\d.]+ tokens a second, drafts at"
        r" [\d.]+: ",
        line,
    )


def test_an_output_without_gain_says_why(model: Any) -> None:
    def why(drafter: Any, **options: Any) -> str:
        output = rest_store.Generator(model, None, drafter, **options).generate(prompts(1), **FIXED)
        assert output.statistics.no_gain in str(output)
        return output.statistics.no_gain

    assert why(None) == ""
    wrong = why([Drafted(lambda _: SameTree([[3, 3]]))], **STEADY)
    assert re.fullmatch(
        r"no draft was accepted: \d+ draft tokens verified, all of them wrong", wrong
    )
    assert (
        why([Drafted(lambda _: SameTree([]))], **STEADY)
        == "no draft was accepted: 22 drafts without a match that pays"
    )


# --- Sources --------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::rest_store.errors.DraftingWarning")
def test_sources_have_names(model: Any, store: rest_store.Datastore) -> None:
    clients = [
        rest_store.DatastoreClient("127.0.0.1:1", datastore=name, timeout=0.01)
        for name in ("code", None, None)
    ]
    sources = [store, *clients, rest_store.PromptLookup(), rest_store.RecycledLogits()]
    output = rest_store.Generator(model, None, sources, **STEADY).generate(prompts(1), **FIXED)
    places = ["code at 127.0.0.1:1", "127.0.0.1:1", "127.0.0.1:1 (4)"]
    assert list(output.sources) == [
        str(store.path),
        *places,
        "prompt lookup",
        "recycled logits",
        "model",
    ]
    assert {name for name, _ in output.statistics.drafts.omissions} == set(places)


def test_tokens_count_for_each_source_that_drafted_them() -> None:
    assert accepted_by_source([[0, 1, 3], [2]], ["a", "b"]) == {"a": 2, "b": 2, "model": 1}
    assert accepted_by_source([[0, 1, 12]], ["a"]) == {"a": 1, "model": 1, "drafted": 1}


# --- Calibration ----------------------------------------------------------------------------------


def test_a_calibration_is_that_of_all_sessions(
    model: Any, store: rest_store.Datastore, tmp_path: Path
) -> None:
    own = rest_store.Calibration.default()
    inputs = text_tokenizer()(PROMPT, return_tensors="pt")
    for _ in range(2):
        before = own.weights
        rest_store.Generator(model, None, [store], calibration=own, **STEADY).generate(
            inputs, **FIXED
        )
        assert own.weights != before, "it goes on learning"
    before = own.weights
    options = {"custom_generate": rest_store.generate, "sources": [store], **STEADY}
    model.generate(**inputs, **FIXED, **options, calibration=own)
    assert own.weights != before


def test_what_is_no_calibration_is_refused() -> None:
    model = tiny_model("llama")
    options = {
        "custom_generate": rest_store.generate,
        "sources": [rest_store.PromptLookup()],
        "calibration": "a.path",
    }
    for call in (
        lambda: rest_store.Generator(model, calibration="a.path"),
        lambda: model.generate(**prompts(1), **options, **FIXED),
    ):
        refused(DataFileError, call, "generate: calibration is a str, expected a Calibration")


# --- Text of pieces -------------------------------------------------------------------------------


def test_pieces_have_the_text_that_they_add(generator: rest_store.Generator) -> None:
    whole = generator.generate(PROMPT, **FIXED)
    pieces = list(generator.stream(PROMPT, **FIXED))
    assert "".join(piece.text for piece in pieces) == whole.text
    assert [len(piece.words[0]) for piece in pieces if piece.words] == [
        len(piece.tokens[0]) for piece in pieces
    ]
    assert len(pieces) == whole.statistics.forward_passes
    without = next(rest_store.Generator(generator.model).stream(prompts(1), **FIXED))
    refused(ArgumentError, lambda: without.text, "use Generator(model, tokenizer")


# --- References -----------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 3])
def test_references_draft_and_change_nothing(model: Any, rows: int) -> None:
    generator = rest_store.Generator(model, text_tokenizer(), [rest_store.PromptLookup()], **STEADY)
    inputs = prompts(rows)
    plain = generator.generate(inputs, **FIXED)
    again = generator.generate(inputs, references=plain.tokens, **FIXED, compare=True)
    assert torch.equal(again.sequences, plain.sequences)
    assert again.comparison is not None
    assert again.comparison.identical
    assert again.statistics.forward_passes < plain.statistics.forward_passes / 2
    options = {
        "custom_generate": rest_store.generate,
        "sources": [rest_store.PromptLookup()],
        **STEADY,
    }
    output = model.generate(
        **inputs, **FIXED, **options, references=plain.tokens, return_dict_in_generate=True
    )
    assert output.statistics.forward_passes == again.statistics.forward_passes


def test_a_reference_may_be_text(model: Any) -> None:
    generator = rest_store.Generator(model, text_tokenizer(), [rest_store.PromptLookup()], **STEADY)
    text = "print(i, 'naive', 2024)"
    ids = generator.tokenizer(text, add_special_tokens=False)["input_ids"]
    seen = [
        [
            piece.trees[0].tokens.tolist()
            for piece in generator.stream(PROMPT, references=[reference], **FIXED)
        ]
        for reference in (text, ids)
    ]
    assert seen[0] == seen[1]


@pytest.mark.parametrize("references", ["text", [["a"]], [[-1]], 3], ids=repr)
def test_what_is_no_reference_is_refused(model: Any, references: Any) -> None:
    generator = rest_store.Generator(model, None, [rest_store.PromptLookup()])
    for call in (
        lambda: generator.stream(PROMPT, references=references, **FIXED),
        lambda: model.generate(
            **prompts(1), custom_generate=rest_store.generate, references=references, **FIXED
        ),
    ):
        with pytest.raises((rest_store.RestStoreError, ArgumentError)):
            call()
    without = rest_store.Generator(model, None, [rest_store.RecycledLogits()])
    refused(
        SourceError,
        lambda: without.generate(prompts(1), references=[[5]], **FIXED),
        "without a PromptLookup",
    )
