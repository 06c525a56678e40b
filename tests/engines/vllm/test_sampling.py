"""Sampled requests in vLLM: distributed as without drafts.

A seed repeats a text only where the drafts are the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines.vllm.engine import IN_VLLM, Request, counted, engine

pytestmark = IN_VLLM

SAMPLES = 160  # the interpreter is slow
# At which the likeliest token has about half of the mass.
SAMPLED = {"temperature": 0.4, "ignore_eos": True}


def sampled(llm: Any, prompt: list[int], seeds: range, most: int) -> list[list[int]]:
    from vllm import SamplingParams

    params = [SamplingParams(**SAMPLED, seed=seed, max_tokens=most) for seed in seeds]
    results = llm.generate([{"prompt_token_ids": prompt} for _ in params], params, use_tqdm=False)
    return [list(result.outputs[0].token_ids) for result in results]


@pytest.fixture(scope="module")
def prompt(requests: list[Request]) -> list[int]:
    return requests[3].prompt


@pytest.fixture(scope="module")
def plain_samples(plain: Any, prompt: list[int]) -> list[list[int]]:
    return sampled(plain, prompt, range(SAMPLES), 3)


@pytest.fixture(scope="module")
def drafted(
    model: Path, datastore: Path, plain_samples: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """After the plain samples, since engines in one process end what they share."""
    memory = tmp_path_factory.mktemp("memory") / "live"
    with engine(model, {"datastores": [str(datastore)], "remember": str(memory)}) as llm:
        yield llm


def distance(one: list[tuple[int, ...]], other: list[tuple[int, ...]]) -> tuple[float, int]:
    """Return the chi-squared statistic of two samples of one size, and its degrees of freedom."""
    counts = Counter(one), Counter(other)
    frequent = [
        outcome for outcome, count in (counts[0] + counts[1]).most_common(12) if count >= 10
    ]
    pairs = [(counts[0][outcome], counts[1][outcome]) for outcome in frequent]
    pairs.append((len(one) - sum(a for a, _ in pairs), len(other) - sum(b for _, b in pairs)))
    return sum((a - b) ** 2 / (a + b) for a, b in pairs if a + b), len(pairs) - 1


def test_samples_are_distributed_as_without_drafts(
    drafted: Any, prompt: list[int], plain_samples: list[list[int]]
) -> None:
    """From the second token on, tokens are verified.

    Other seeds make both samples independent.
    """
    texts = sampled(drafted, prompt, range(SAMPLES, 2 * SAMPLES), 3)
    accepted, tried = (
        counted(drafted, f"spec_decode_num_{name}_tokens") for name in ("accepted", "draft")
    )
    assert 0.05 * tried < accepted < 0.9 * tried
    for first, end in ((0, 1), (1, 2), (2, 3), (0, 3)):
        statistic, freedom = distance(
            [tuple(t[first:end]) for t in texts], [tuple(t[first:end]) for t in plain_samples]
        )
        assert freedom >= 3
        assert statistic < freedom + 4 * (2 * freedom) ** 0.5, (first, end)


def test_a_seed_repeats_a_text_without_drafts_alone(
    drafted: Any, plain: Any, prompt: list[int]
) -> None:
    """vLLM draws from a seed by position and by draft, and memory changes drafts.

    If this fails, the docs may promise more.
    """
    seeds = range(5000, 5006)
    once, again = (sampled(plain, prompt, seeds, 10) for _ in range(2))
    assert once == again
    once, again = (sampled(drafted, prompt, seeds, 10) for _ in range(2))
    assert once != again
