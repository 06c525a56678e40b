"""Typical acceptance: the rule of Medusa, which path is followed, and what stays exact."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    SynthIDTextWatermarkingConfig,
    TemperatureLogitsWarper,
)

import rest_store
from rest_store.bench.baselines import merge_paths
from rest_store.datastore.tree import TokenTree
from rest_store.errors import ArgumentError, NotSupportedError
from rest_store.generation import typical
from rest_store.generation.rows import make_rows
from rest_store.generation.typical import typical_path
from tests.shared.strategies import refused
from tests.shared.tiny import Drafted, SameTree, prompts, tiny_model

EVERYTHING = {"acceptance": "typical"}


def path(
    tree: TokenTree, logits: torch.Tensor, *processors: Any, ends: Sequence[int] = ()
) -> list[int]:
    """The accepted path of `tree` behind a row of the token 0."""
    edges = enumerate(zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True))
    children = {edge: node for node, edge in edges}
    (row,) = make_rows(torch.tensor([[0]]), LogitsProcessorList(processors), sample=True)
    return typical_path(children, row, logits, lambda token: token in ends)


@pytest.mark.parametrize("seed", range(20))
def test_the_longest_path_is_that_of_medusas_code(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`evaluate_posterior` of Medusa (`fast`) judges all paths from root to leaf.

    The test has its code for a tree.
    """
    random = np.random.default_rng(seed)
    paths = [random.integers(0, 4, random.integers(1, 6)).tolist() for _ in range(6)]
    tree = merge_paths(paths)
    temperature, threshold, alpha = 0.7, 0.3, 0.6
    logits = torch.from_numpy(random.normal(size=(1 + len(tree), 6)).astype(np.float32)) * 2
    probabilities = torch.softmax(logits / temperature, dim=-1)
    entropy = -(probabilities * probabilities.log()).sum(dim=-1)
    least = torch.minimum(torch.full_like(entropy, threshold), torch.exp(-entropy) * alpha)
    judged = []
    for drafted in paths:
        place, length, likelihood = 0, 0, 0.0
        for token in drafted:
            if probabilities[place, token] <= least[place]:
                break
            length, likelihood = length + 1, likelihood + math.log(probabilities[place, token])
            (child,) = [node for node in tree.children(place - 1) if tree.tokens[node] == token]
            place = int(child) + 1
        judged.append((length, likelihood, drafted[:length]))
    expected = max(judged, key=lambda candidate: candidate[:2])[2]
    monkeypatch.setattr(typical, "THRESHOLD", threshold)
    monkeypatch.setattr(typical, "ALPHA", alpha)
    assert path(tree, logits, TemperatureLogitsWarper(temperature)) == expected


def test_drafts_behind_the_end_of_a_text_do_not_count() -> None:
    tree = merge_paths([[1, 2, 3], [4, 5]])
    flat = torch.zeros(1 + len(tree), 6)
    assert path(tree, flat) == [1, 2, 3]
    assert path(tree, flat, ends=[1]) == [4, 5]


def test_of_equally_likely_paths_the_first_of_the_tree_is_followed() -> None:
    tree = merge_paths([[1, 5], [2, 5], [3, 5], [4]])
    assert path(tree, torch.zeros(1 + len(tree), 6)) == [1, 5]


# --- Generations ----------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def everything_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every draft token that may be drawn at all is accepted."""
    monkeypatch.setattr(typical, "THRESHOLD", 0.0)


def generate(
    model: Any, inputs: dict[str, torch.Tensor], *paths: Sequence[int], seed: int = 0, **more: Any
) -> Any:
    torch.manual_seed(seed)
    return model.generate(
        **inputs,
        **{"max_new_tokens": 12, "do_sample": True, "top_k": 0, **more},
        custom_generate=rest_store.generate,
        sources=[Drafted(lambda _: SameTree(paths))],
        adaptive=False,
        return_dict_in_generate=True,
    )


@pytest.mark.parametrize("rows", [1, 3])
def test_accepted_paths_are_written_and_the_token_behind_them_is_drawn(rows: int) -> None:
    model, inputs = tiny_model("llama"), prompts(rows)
    output = generate(
        model,
        inputs,
        [7, 8, 9],
        max_new_tokens=13,
        temperature=2.0,
        output_scores=True,
        **EVERYTHING,
    )
    text = output.sequences[:, 14:]
    assert output.statistics.forward_passes == 4
    for start in (1, 5, 9):  # the first token is that of the prompt's pass
        assert text[:, start : start + 3].tolist() == [[7, 8, 9]] * rows
    drawn = torch.cat([text[:, :1], text[:, 4::4]], dim=1)
    assert len({tuple(tokens) for tokens in drawn.tolist()}) == rows
    if rows == 1:
        torch.manual_seed(0)
        for place in (0, 4, 8, 12):
            token = torch.multinomial(torch.softmax(output.scores[place], dim=-1), 1)
            assert int(token) == int(text[0, place])


def test_scores_are_those_of_the_text_that_was_written() -> None:
    model, inputs = tiny_model("llama"), prompts(1)
    paths = ([7, 8, 9], [7, 5], [11, 12])
    options = {"repetition_penalty": 1.7, "output_scores": True, **EVERYTHING}
    output = generate(model, inputs, *paths, **options)
    assert output.statistics.drafts.accepted > 3
    penalty = RepetitionPenaltyLogitsProcessor(1.7)
    with torch.no_grad():
        logits = model(output.sequences).logits
    for place, scores in enumerate(output.scores):
        end = 14 + place
        expected = penalty(output.sequences[:, :end], logits[:, end - 1])
        assert torch.allclose(scores, expected, atol=1e-4)


def test_a_text_ends_within_an_accepted_path() -> None:
    model, inputs = tiny_model("llama"), prompts(2)
    output = generate(model, inputs, [7, 8, 9], eos_token_id=8, **EVERYTHING)
    assert output.sequences[:, 15:].tolist() == [[7, 8]] * 2


# --- What is refused ------------------------------------------------------------------------------


def test_it_is_refused_where_nothing_is_drawn_and_where_a_state_follows_every_call() -> None:
    model, inputs = tiny_model("llama"), prompts(1)
    passes: list[int] = []
    model.register_forward_pre_hook(lambda *_: passes.append(1))
    ask = {"max_new_tokens": 4, "custom_generate": rest_store.generate, "acceptance": "typical"}
    refused(
        NotSupportedError,
        lambda: model.generate(**inputs, do_sample=False, **ask),
        "acceptance is 'typical' in greedy search, expected 'exact', or do_sample=True",
    )
    watermark = SynthIDTextWatermarkingConfig(keys=[3, 5, 7], ngram_len=3)
    refused(
        NotSupportedError,
        lambda: model.generate(**inputs, do_sample=True, watermarking_config=watermark, **ask),
        "SynthIDTextWatermarkLogitsProcessor",
    )
    assert not passes


def test_an_unknown_acceptance_is_refused() -> None:
    expected = "acceptance is 'lossy', expected 'exact' or 'typical'"
    refused(
        ArgumentError,
        lambda: rest_store.Generator(tiny_model("llama"), acceptance="lossy"),
        expected,
    )
