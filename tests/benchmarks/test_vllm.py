"""What `bench_vllm.py` makes of the answers of its engines; the engines themselves need vLLM."""

from __future__ import annotations

from typing import Any

import bench_vllm
import pytest

PROMPTS = [[place] for place in range(10)]


def engine(name: str, seconds: float, asked: list[str]) -> bench_vllm.Ask:
    """An engine that writes four tokens for each prompt, the first with the prompt and the others in two steps."""

    def ask(what: str, *, prompts: list[list[int]], rows: int, **fields: Any) -> dict[str, Any]:
        assert what == "answer"
        asked.append(name)
        texts = [[*prompt, 1, 2, 3] for prompt in prompts]
        taken = seconds * len(texts)
        answers = {"texts": texts, "tokens": 4 * len(texts), "row steps": 2 * len(texts), "drafted": 6 * len(texts)}
        decoding = {"decoding seconds": 0.6 * taken, "decoding tokens": 3 * len(texts)}
        return {**answers, **decoding, "seconds": taken, "steps": 3, "propose seconds": 0.1 * taken}

    return ask


def rounds(asked: list[str]) -> list[dict[str, list[bench_vllm.Answers]]]:
    engines = {"none": engine("none", 1.0, asked), "suffix, cold": engine("suffix, cold", 0.5, asked)}
    engines["corpora"] = engine("corpora", 0.25, asked)
    return [bench_vllm.in_turns(engines, PROMPTS, number, {"rows": 1}) for number in range(2)]


def test_each_turn_begins_with_another_engine_and_none_is_left_out() -> None:
    asked: list[str] = []
    first, second = rounds(asked)
    names = ["none", "suffix, cold", "corpora"]
    assert asked[:6] == [*names, *names[1:], names[0]]
    assert asked[9:12] == [*names[1:], names[0]]
    for turns in (*first.values(), *second.values()):
        assert [text[0] for turn in turns for text in turn["texts"]] == list(range(10))


def test_figures_are_relative_to_the_same_round() -> None:
    figures = bench_vllm.summarize(rounds([]))
    assert figures["corpora"] == {
        "tokens a second": 16.0,
        "of none": 4.0,
        "decoding": {
            "tokens a second": 20.0,
            "of none": 4.0,
        },
        "tokens a row and step": 1.5,
        "drafted a row and step": 3.0,
        "share of propose": 0.1,
        "milliseconds a step": 277.78,
        "identical": "20 of 20",
    }


@pytest.mark.parametrize(("rows", "tokens"), [(1, 8), (2, 4), (4, 4), (8, 3), (16, 2), (32, 2)])
def test_each_way_has_the_settings_that_are_best_for_its_rows(rows: int, tokens: int) -> None:
    ways = bench_vllm.WAYS
    assert bench_vllm.settings_of(ways["ngram"], rows) == {"k": tokens}
    suffix = bench_vllm.SUFFIX_ALONE if rows == 1 else bench_vllm.SUFFIX_IN_BATCHES
    assert bench_vllm.settings_of(ways["suffix, warm"], rows) == suffix
    assert bench_vllm.settings_of(ways["memory, warm"], rows) == {}
    assert not ways["memory, warm"].has_corpora
