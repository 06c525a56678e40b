"""`Generator`: streaming, prompts, and text with origins."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import transformers

import rest_store
from rest_store.errors import NoTokenizerError
from rest_store.generation.model import load_model
from tests.shared.strategies import refused
from tests.shared.tiny import (
    Drafted,
    Scripted,
    bushy,
    futures_of,
    prompts,
    right,
    tiny_model,
    write_model,
)

FIXED = {"max_new_tokens": 24, "do_sample": False}


class Collected:
    """A streamer that keeps what it is given."""

    def __init__(self) -> None:
        self.given: list[list[int]] = []
        self.ended = 0

    def put(self, value: torch.Tensor) -> None:
        self.given.append(value.flatten().tolist())

    def end(self) -> None:
        self.ended += 1


def scripted(model: Any, inputs: Any, script: Any = right, **options: Any) -> tuple[torch.Tensor, Any]:
    plain = model.generate(**inputs, **{**FIXED, **options})
    futures = futures_of(inputs, plain)
    return plain, [Drafted(lambda prompt: Scripted(prompt, futures, script))]


def test_a_streamer_gets_what_plain_decoding_gives_it() -> None:
    model = tiny_model("llama")
    inputs = prompts(1)
    expected = Collected()
    model.generate(**inputs, **FIXED, streamer=expected)
    _, drafter = scripted(model, inputs)
    streamer = Collected()
    options = {"custom_generate": rest_store.generate, "drafter": drafter, "stream_to": streamer}
    model.generate(**inputs, **FIXED, **options)
    assert streamer.given == expected.given
    assert streamer.ended == expected.ended == 1


@pytest.mark.parametrize("rows", [1, 3])
def test_pieces_are_what_is_written(rows: int) -> None:
    model = tiny_model("llama")
    inputs = prompts(rows)
    plain, drafter = scripted(model, inputs, bushy)
    generator = rest_store.Generator(model, None, drafter, adaptive=False)
    pieces = generator.stream(inputs, **FIXED)
    written: list[list[int]] = [[] for _ in range(rows)]
    origins: list[list[int]] = [[] for _ in range(rows)]
    for passes, piece in enumerate(pieces, start=1):
        for row in range(rows):
            written[row] += piece.tokens[row]
            origins[row] += piece.origins[row]
            nodes = piece.accepted[row]
            assert piece.trees[row].tokens[nodes].tolist() == piece.tokens[row][: len(nodes)]
        assert 0 < piece.forward_seconds <= piece.seconds
        assert pieces.statistics.forward_passes == passes
        assert torch.is_grad_enabled(), "the caller's own mode, between passes"
    assert written == plain[:, 14:].tolist()
    assert origins == pieces.statistics.origins
    assert sum(origin > 0 for row in origins for origin in row) == pieces.statistics.drafts.accepted > 0
    assert torch.equal(pieces.result(), plain)
    streamed = [token for piece in generator.stream(inputs, **FIXED) for token in piece.tokens[0]]
    assert streamed == written[0]


@pytest.fixture(scope="module")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


def test_text_in_and_stop_strings(model_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    criterion = Mock(side_effect=transformers.StopStringCriteria)
    monkeypatch.setattr("rest_store.generation.generator.StopStringCriteria", criterion)
    model, words = load_model(str(model_directory))
    generator = rest_store.Generator(model, words, [rest_store.PromptLookup()])
    prompt = "for i in range(10):"
    whole = model.generate(**words(prompt, return_tensors="pt"), **FIXED)
    assert torch.equal(generator.generate(prompt, **FIXED).sequences, whole)
    ids = words(prompt)["input_ids"]
    assert torch.equal(generator.generate(ids, **FIXED).sequences, whole)
    for given in ({"input_ids": ids, "attention_mask": [1] * len(ids)}, {"input_ids": [ids], "attention_mask": None}):
        assert torch.equal(generator.generate(given, **FIXED).sequences, whole)
    stop = next(text for token in whole[0, -18:-6] if (text := words.decode(token)).isascii() and text.strip())
    plain = model.generate(**words(prompt, return_tensors="pt"), **FIXED, stop_strings=[stop], tokenizer=words)
    assert plain.shape[1] < whole.shape[1]
    output = generator.generate(prompt, **FIXED, stop_strings=[stop], compare=True)
    assert criterion.call_count == 1, "it takes as long as some steps, which no way is to be charged for"
    assert torch.equal(output.sequences, plain)
    assert output.comparison is not None
    assert output.comparison.identical
    without = rest_store.Generator(model, None, [rest_store.PromptLookup()])
    output = without.generate(ids, **FIXED, stop_strings=[stop], tokenizer=words, compare=True)
    assert torch.equal(output.sequences, plain)
    assert output.comparison is not None
    assert output.comparison.identical
    refused(NoTokenizerError, lambda: without.generate(ids, **FIXED, stop_strings=[stop]), "stop strings")
    options = {"custom_generate": rest_store.generate, "drafter": [rest_store.PromptLookup()]}
    criteria = [transformers.StopStringCriteria(words, [stop])]  # what the error of `rest_store.generate` says to pass
    inputs = words(prompt, return_tensors="pt")
    assert torch.equal(model.generate(**inputs, **FIXED, **options, stopping_criteria=criteria), plain)


# --- Without drafts ---------------------------------------------------------------------------------------------------


def test_no_drafter_is_plain_decoding() -> None:
    model = tiny_model("llama")
    plain = model.generate(**prompts(2), **FIXED)
    for drafter in (None, []):
        output = model.generate(
            **prompts(2), **FIXED, custom_generate=rest_store.generate, drafter=drafter, return_dict_in_generate=True
        )
        assert torch.equal(output.sequences, plain)
        assert output.statistics.forward_passes == FIXED["max_new_tokens"]
        assert output.statistics.drafts.asked == 0
