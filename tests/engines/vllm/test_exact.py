"""With drafts, vLLM writes what it writes without: whatever is drafted, and whatever happens to a row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines.vllm.engine import (
    IN_VLLM,
    LENGTH,
    SCARCE,
    Request,
    answers,
    counted,
    engine,
)

pytestmark = IN_VLLM
GREEDY = {"temperature": 0.0, "max_tokens": 40}
SETTINGS: dict[str, dict[str, Any]] = {
    "log probabilities": {"logprobs": 2},
    "of the prompt": {"prompt_logprobs": 1},
    "repetition": {"repetition_penalty": 1.2},
    "presence and frequency": {"presence_penalty": 0.5, "frequency_penalty": 0.5},
    "at least": {"min_tokens": 30, "stop_token_ids": list(range(0, 250, 2))},
    "stop at tokens": {"stop_token_ids": list(range(0, 350, 23))},
    "stop at text": {"stop": ["e", "a"]},
    "past the end": {"ignore_eos": True},
    "some words": {"bad_words": ["return", "for", "the"]},
}


@pytest.fixture(scope="module")
def drafted(model: Path, datastore: Path) -> Iterator[Any]:
    """An engine with drafts that are looked up a step ahead, short of memory."""
    with engine(model, {"datastores": [str(datastore)], "lag": True}, blocks=SCARCE) as llm:
        yield llm


def test_texts_are_those_of_plain_vllm(drafted: Any, requests: list[Request], texts: list[list[int]]) -> None:
    """Prompts are read in chunks, rows are preempted, move, and end at the longest length."""
    assert answers(drafted, requests) == texts
    assert len(requests[-1].prompt) + len(texts[-1]) == LENGTH
    assert counted(drafted, "num_preemptions") > 0
    assert counted(drafted, "spec_decode_num_accepted_tokens") > 20
    assert counted(drafted, "spec_decode_num_accepted_tokens") < counted(drafted, "spec_decode_num_draft_tokens")


def test_texts_with_other_settings(drafted: Any, plain: Any, requests: list[Request]) -> None:
    asked = [
        Request(request.prompt, {**GREEDY, **settings})
        for request, settings in zip(requests, SETTINGS.values(), strict=False)
    ]
    expected = answers(plain, asked)
    assert dict(zip(SETTINGS, answers(drafted, asked), strict=True)) == dict(zip(SETTINGS, expected, strict=True))
    assert len({tuple(text) for text in expected}) == len(SETTINGS)


def test_structured_output(drafted: Any, plain: Any, requests: list[Request]) -> None:
    from vllm.sampling_params import StructuredOutputsParams

    shapes: list[dict[str, Any]] = [
        {"regex": r"[a-f]{20,40}"},
        {"choice": ["return first + second", "return second"]},
        {"json": {"type": "object", "properties": {"i": {"type": "integer"}}, "required": ["i"]}},
    ]

    def asked() -> list[Request]:  # an engine changes them
        structured: list[dict[str, Any]] = [
            {**GREEDY, "structured_outputs": StructuredOutputsParams(**shape)} for shape in shapes
        ]
        return [
            Request(request.prompt, settings)
            for request, settings in zip(requests[:5], [*structured, GREEDY, GREEDY], strict=True)
        ]

    written = answers(drafted, asked())
    assert written == answers(plain, asked())
    assert plain.get_tokenizer().decode(written[1]).startswith("return ")
