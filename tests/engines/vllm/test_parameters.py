"""Each greedy text is that of plain vLLM, and refused parameters are refused by vLLM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engines.vllm.engine import IN_VLLM, counted, drafter_of, engine

pytestmark = IN_VLLM

MOST = 24
OBJECT = {"type": "object", "properties": {"i": {"type": "integer"}}, "required": ["i"]}
# Parameters of a request besides those of all: greedy, 24 tokens.
ASKED: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled from one token": {"temperature": 1.0, "top_k": 1},
    "seed": {"seed": 5},
    "stop string": {"stop": ["e"]},
    "stop string that stays": {"stop": ["e"], "include_stop_str_in_output": True},
    "stop tokens": {"stop_token_ids": list(range(3, 100))},
    "end tokens are written": {"ignore_eos": True},
    "special tokens are shown": {"skip_special_tokens": False},
    "fewest tokens": {"min_tokens": 20, "stop_token_ids": list(range(3, 100))},
    "repetition penalty": {"repetition_penalty": 1.3},
    "presence penalty": {"presence_penalty": 1.5},
    "frequency penalty": {"frequency_penalty": 0.8},
    "reward of frequency": {"frequency_penalty": -0.8},
    "forbidden words": {"bad_words": ["as", "It", "A", "U"]},
    "allowed tokens": {"allowed_token_ids": list(range(3, 60))},
    "log probabilities": {"logprobs": 2},
    "log probabilities of the prompt": {"prompt_logprobs": 2},
    "two outputs": {"n": 2, "temperature": 1.0, "top_k": 1},
    "regular expression": {"structured_outputs": {"regex": "[a-f]{8,20}"}},
    "choice": {"structured_outputs": {"choice": ["return first + second", "return second"]}},
    "JSON schema": {"structured_outputs": {"json": OBJECT}},
    "extra arguments": {"extra_args": {"other": 1}},
    "malformed prediction": {"extra_args": {"prediction": 7, "group": 3}},
}
REFUSED: dict[str, dict[str, Any]] = {
    "min_p": {"temperature": 1.0, "min_p": 0.1},
    "logit_bias": {"logit_bias": {5: 1.0}},
}


def parameters(arguments: dict[str, Any]) -> Any:
    """Return new ones: an engine changes them."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    shape = arguments.get("structured_outputs")
    own = {} if shape is None else {"structured_outputs": StructuredOutputsParams(**shape)}
    return SamplingParams(**{"temperature": 0.0, "max_tokens": MOST, **arguments, **own})


def finished(llm: Any, prompt: list[int], choices: Sequence[dict[str, Any]]) -> list[Any]:
    """Return the results of requests that run together."""
    prompts = [{"prompt_token_ids": prompt} for _ in choices]
    results: list[Any] = llm.generate(
        prompts, [parameters(arguments) for arguments in choices], use_tqdm=False
    )
    return results


@pytest.fixture(scope="module")
def prompt(vocabulary: int) -> list[int]:
    """One whose greedy text repeats tokens."""
    tokens: list[int] = np.random.default_rng(3).integers(3, vocabulary, 14).tolist()
    return tokens


@pytest.fixture(scope="module")
def expected(plain: Any, prompt: list[int]) -> list[Any]:
    return finished(plain, prompt, list(ASKED.values()))


@pytest.fixture(scope="module")
def drafted(model: Path, tmp_path_factory: pytest.TempPathFactory, expected: Any) -> Iterator[Any]:
    """An engine that remembers.

    After `expected`, since engines in one process end what they share.
    """
    with engine(model, {"remember": str(tmp_path_factory.mktemp("memory") / "live")}) as llm:
        yield llm


@pytest.fixture(scope="module")
def times(drafted: Any, prompt: list[int]) -> list[list[Any]]:
    """The results, asked twice, so that the second time the text of the first is drafted."""
    return [finished(drafted, prompt, list(ASKED.values())) for _ in range(2)]


@pytest.mark.parametrize("name", ASKED)
def test_texts_are_those_without_drafts(
    expected: list[Any], times: list[list[Any]], name: str
) -> None:
    index = list(ASKED).index(name)
    for results in times:
        assert len(results[index].outputs) == len(expected[index].outputs)
        for one, right in zip(results[index].outputs, expected[index].outputs, strict=True):
            assert one.token_ids == right.token_ids
            assert one.text == right.text
            assert (one.finish_reason, one.stop_reason) == (right.finish_reason, right.stop_reason)


def test_the_list_tries_something(
    expected: list[Any], drafted: Any, times: list[list[Any]]
) -> None:
    """Parameters change texts, and drafts are accepted."""
    texts = {name: result.outputs[0].text for name, result in zip(ASKED, expected, strict=True)}
    changing = [
        "stop string",
        "stop tokens",
        "fewest tokens",
        "forbidden words",
        "allowed tokens",
        "choice",
        "JSON schema",
    ]
    changing += [
        "repetition penalty",
        "presence penalty",
        "frequency penalty",
        "reward of frequency",
    ]
    assert [name for name in changing if texts[name] == texts["greedy"]] == []
    assert len(expected[list(ASKED).index("stop tokens")].outputs[0].token_ids) < 10
    assert counted(drafted, "spec_decode_num_accepted_tokens") > 100
    errors = {
        label: n
        for (name, label), n in drafter_of(drafted).metrics.totals().items()
        if name == "errors" and n
    }
    assert errors == {"references": 4}, "of the malformed prediction and group, twice"


def values(logprobs: Any) -> list[dict[int, float]]:
    return [{token: one.logprob for token, one in (place or {}).items()} for place in logprobs]


def test_log_probabilities_are_those_without_drafts(
    expected: list[Any], times: list[list[Any]]
) -> None:
    of_output, of_prompt = (
        list(ASKED).index(name) for name in ("log probabilities", "log probabilities of the prompt")
    )
    for results in times:
        for one, right in (
            (
                values(results[of_output].outputs[0].logprobs),
                values(expected[of_output].outputs[0].logprobs),
            ),
            (
                values(results[of_prompt].prompt_logprobs),
                values(expected[of_prompt].prompt_logprobs),
            ),
        ):
            assert [set(place) for place in one] == [set(place) for place in right]
            flat, flat_right = (
                np.array([v for place in both for _, v in sorted(place.items())])
                for both in (one, right)
            )
            assert flat == pytest.approx(flat_right, abs=1e-3)


def test_beams_are_those_without_drafts(plain: Any, drafted: Any, prompt: list[int]) -> None:
    from vllm.sampling_params import BeamSearchParams

    choices = BeamSearchParams(beam_width=2, max_tokens=6)
    beams = [
        [
            sequence.tokens
            for sequence in llm.beam_search([{"prompt_token_ids": prompt}], choices)[0].sequences
        ]
        for llm in (plain, drafted)
    ]
    assert len(beams[0]) == 2
    assert beams[0] == beams[1]


@pytest.mark.parametrize("name", REFUSED)
def test_vllm_refuses_with_any_speculation(drafted: Any, prompt: list[int], name: str) -> None:
    """If this fails, the docs may no longer name it."""
    from vllm.exceptions import VLLMValidationError

    with pytest.raises(
        VLLMValidationError,
        match=r"min_p and logit_bias .* not yet supported with speculative decoding",
    ):
        finished(drafted, prompt, [REFUSED[name]])
