"""Each text with sampling parameters is plain SGLang's without overlap, or is named here."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.engines.sglang.engine import IN_SGLANG, answers
from tests.shared.tiny import text_tokenizer

pytestmark = IN_SGLANG

MOST = 24
SCHEMA = json.dumps(
    {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
)
# Parameters of a request besides those of all: greedy, 24 tokens.
ASKED: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled from one token": {"temperature": 1.0, "top_k": 1},
    "seed": {"temperature": 0.0, "sampling_seed": 5},
    "stop string": {"stop": ["e"]},
    "stop string that stays": {"stop": ["e"], "no_stop_trim": True},
    "stop expression": {"stop_regex": "[aeiou]"},
    "stop tokens": {"stop_token_ids": list(range(3, 200))},
    "end tokens are written": {"ignore_eos": True},
    "special tokens are shown": {"skip_special_tokens": False},
    "logit bias": {"logit_bias": {"5": 4.0, "9": -4.0}},
    "regular expression": {"regex": "[a-f]{8,20}"},
    "grammar": {"ebnf": 'root ::= ("ab" | "cd")+'},
    "JSON schema": {"json_schema": SCHEMA},
    "extra arguments": {"custom_params": {"other": 1}},
    "malformed extra arguments": {"custom_params": "x"},
    "repetition penalty": {"repetition_penalty": 1.3},
    "presence penalty": {"presence_penalty": 1.5},
    "frequency penalty": {"frequency_penalty": 0.8},
    "reward of frequency": {"frequency_penalty": -0.8},
    "fewest tokens": {"min_new_tokens": 20, "stop_token_ids": list(range(3, 200))},
}
PENALIZED = [name for name in ASKED if name.endswith(("penalty", "frequency"))]


@pytest.fixture(scope="module")
def rounds() -> list[list[dict[str, Any]]]:
    """All of them at once, with log probabilities, and then two outputs of one request."""
    prompt = np.random.default_rng(3).integers(3, len(text_tokenizer()), 14).tolist()
    together = [
        {
            "input_ids": prompt,
            "sampling_params": {"temperature": 0.0, "max_new_tokens": MOST, **sampling},
        }
        for sampling in ASKED.values()
    ]
    shown = {"return_logprob": True, "top_logprobs_num": 2}
    two = {
        "input_ids": prompt,
        "sampling_params": {"temperature": 0.0, "max_new_tokens": MOST, "n": 2},
    }
    return [together, [{**together[0], **shown}], [two]]


@pytest.fixture(scope="module")
def plain(model: Path, rounds: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    server = {"model_path": str(model), "disable_overlap_schedule": True}
    return answers(tmp_path_factory.mktemp("plain") / "run", server, rounds)


@pytest.fixture(scope="module")
def drafted(model: Path, rounds: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Twice, so that the second time the text of the first is drafted."""
    place = tmp_path_factory.mktemp("drafted")
    read = answers(
        place / "run", {"model_path": str(model)}, rounds * 2, {"remember": str(place / "memory")}
    )
    return read[:3], read[3:]


@pytest.mark.parametrize("time", [0, 1], ids=["first", "again"])
@pytest.mark.parametrize("name", ASKED)
def test_texts_are_those_without_drafts(plain: Any, drafted: Any, name: str, time: int) -> None:
    index = list(ASKED).index(name)
    one = drafted[time][0][index]
    expected = plain[0][index]
    assert one["output_ids"] == expected["output_ids"]
    assert one["text"] == expected["text"]
    assert one["meta_info"]["finish_reason"] == expected["meta_info"]["finish_reason"]


def test_the_list_tries_something(plain: Any, drafted: Any) -> None:
    """Parameters change texts, and drafts are accepted where they may be."""
    texts = {name: answer["text"] for name, answer in zip(ASKED, plain[0], strict=True)}
    changing = [
        *PENALIZED,
        "stop string",
        "stop expression",
        "logit bias",
        "grammar",
        "JSON schema",
        "fewest tokens",
    ]
    assert [name for name in changing if texts[name] == texts["greedy"]] == []
    assert len(plain[0][list(ASKED).index("stop tokens")]["output_ids"]) < 10
    steps = dict(
        zip(
            ASKED, (one["meta_info"].get("spec_verify_ct", 0) for one in drafted[1][0]), strict=True
        )
    )
    for name in ("greedy", "malformed extra arguments", "end tokens are written", "logit bias"):
        assert steps[name] < 0.6 * MOST, name


def test_penalized_requests_are_given_no_draft_nodes(drafted: Any) -> None:
    for answered in drafted:
        for name, one in zip(ASKED, answered[0], strict=True):
            if name in PENALIZED:
                assert (
                    one["meta_info"]["spec_verify_ct"] == one["meta_info"]["completion_tokens"] - 1
                ), name


def test_log_probabilities_are_those_without_drafts(plain: Any, drafted: Any) -> None:
    [expected] = plain[1]
    for answered in drafted:
        [one] = answered[1]
        for name in ("output_token_logprobs", "output_top_logprobs"):
            values = [
                np.ravel([part[0] for part in np.atleast_2d(each)])
                for each in one["meta_info"][name]
            ]
            right = [
                np.ravel([part[0] for part in np.atleast_2d(each)])
                for each in expected["meta_info"][name]
            ]
            assert len(values) == len(right) == MOST
            assert np.concatenate(values).astype(float) == pytest.approx(
                np.concatenate(right).astype(float), abs=1e-3
            )


def test_two_outputs_of_one_request_are_those_without_drafts(plain: Any, drafted: Any) -> None:
    for answered in drafted:
        assert [one["output_ids"] for one in answered[2]] == [one["output_ids"] for one in plain[2]]


@pytest.mark.usefixtures("sglang_on_cpu")
def test_sglang_counts_one_token_a_step() -> None:
    """SGLang counts one token of all that a step accepts (`BatchDrafts._most`).

    If this fails, SGLang may count all: see the report in the docs.
    """
    from sglang.srt.managers.schedule_batch import ScheduleBatch

    counted: list[list[int]] = []
    penalties = SimpleNamespace(
        cumulate_output_tokens=lambda tokens: counted.append(tokens.tolist())
    )
    batch = object.__new__(ScheduleBatch)
    accepted = [7, 8, 9]  # of one step
    batch.reqs = [SimpleNamespace(output_ids=accepted, origin_input_ids=[1])]
    batch.device = torch.device("cpu")
    batch.sampling_info = SimpleNamespace(penalizer_orchestrator=penalties)
    batch.cumulate_penalty_output_tokens()
    assert counted == [accepted[-1:]]


@pytest.mark.usefixtures("sglang_on_cpu")
def test_only_on_cuda_does_sglang_sample_while_it_verifies() -> None:
    """On other devices a sampled request is answered greedily with any drafts."""
    from sglang.srt.speculative.eagle_utils import _verify_uses_greedy

    device = {"is_all_greedy": False, "is_cpu": False, "is_hip": False, "is_xpu": False}
    assert not _verify_uses_greedy(**device, use_rejection_sampling=False)
    for name in ("is_cpu", "is_hip", "is_xpu"):
        assert _verify_uses_greedy(**{**device, name: True}, use_rejection_sampling=False)


@pytest.mark.usefixtures("sglang_on_cpu")
def test_sglang_applies_no_min_p_and_no_custom_processor_while_it_verifies() -> None:
    """If this fails, the docs may no longer name them."""
    from sglang.srt.speculative.eagle_utils import eagle_sample

    source = inspect.getsource(eagle_sample)
    assert "top_p" in source
    assert "min_p" not in source
    assert "logit_processor" not in source
