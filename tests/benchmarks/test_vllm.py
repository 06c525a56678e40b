"""What `bench_vllm.py` makes of the answers of its engines; the engines themselves need vLLM."""

from __future__ import annotations

import importlib
from typing import Any

import bench_vllm

from rest_store.bench.exhibits import Table
from rest_store.bench.results import Result
from rest_store.bench.sections import section_of
from rest_store.bench.verdict import verdict

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
    engines["empty"] = engine("empty", 1.25, asked)
    engines["corpora"] = engine("corpora", 0.25, asked)
    return [bench_vllm.in_turns(engines, PROMPTS, number, {"rows": 1}) for number in range(2)]


def test_each_turn_begins_with_another_engine_and_none_is_left_out() -> None:
    asked: list[str] = []
    first, second = rounds(asked)
    names = ["none", "suffix, cold", "empty", "corpora"]
    assert asked[:8] == [*names, *names[1:], names[0]]
    assert asked[12:16] == [*names[1:], names[0]]
    for turns in (*first.values(), *second.values()):
        assert [text[0] for turn in turns for text in turn["texts"]] == list(range(10))


def test_figures_are_relative_to_the_same_round() -> None:
    figures = bench_vllm.summarize(rounds([]))
    assert figures["corpora"] == {
        "tokens a second": 16.0,
        "of none": 4.0,
        "of none, by round": [4.0, 4.0],
        "of empty": 5.0,
        "of empty, by round": [5.0, 5.0],
        "of suffix": 2.0,
        "of suffix, by round": [2.0, 2.0],
        "decoding": {
            "tokens a second": 20.0,
            "of none": 4.0,
            "of none, by round": [4.0, 4.0],
            "of empty": 5.0,
            "of empty, by round": [5.0, 5.0],
            "of suffix": 2.0,
            "of suffix, by round": [2.0, 2.0],
        },
        "tokens a row and step": 1.5,
        "drafted a row and step": 3.0,
        "share of propose": 0.1,
        "milliseconds a step": 277.78,
        "identical": "20 of 20",
    }


def test_figures_are_reported() -> None:
    figures = bench_vllm.summarize(rounds([]))
    result = Result("vllm", "vllm", {}, {"batches": {"1": figures}, "nothing to draft": {"1": figures}})
    speeds, decoding, _, *others = section_of(result).exhibits
    assert speeds.header[1:] == ["1 at once"]  # type: ignore[union-attr]
    assert ["rest-store, corpora", "16 / 4.00 / 1.50"] in speeds.rows  # type: ignore[union-attr]
    assert ["nothing to draft; an empty drafter", "3 / 0.80 / 1.50"] in speeds.rows  # type: ignore[union-attr]
    tables = {one.title: one for one in (decoding, *others) if isinstance(one, Table)}
    assert ["rest-store, corpora", "20 / 4.00 / 2.00"] in tables["Decoding in vLLM"].rows
    assert ["nothing to draft; rest-store, corpora", 5.0] in tables["Speed relative to an empty drafter"].rows
    assert ["rest-store, corpora", 2.0] in tables["Speed relative to suffix decoding, cold or warm as it is"].rows


def test_files_of_earlier_releases_are_reported() -> None:
    """They have no empty drafter, and nothing of decoding alone."""
    figures = bench_vllm.summarize([{name: one[name] for name in ("none", "corpora")} for one in rounds([])])
    for row in figures.values():
        del row["decoding"]
    result = Result("vllm", "vllm", {}, {"batches": {"1": figures}, "nothing to draft": {"1": figures}})
    titles = [one.title for one in section_of(result).exhibits]
    assert "Speed in vLLM" in titles
    assert not any("relative to" in title or "Decoding" in title for title in titles)


def test_the_verdict_is_about_our_drafts_alone() -> None:
    figures = bench_vllm.summarize(rounds([]))
    result = Result("vllm", "vllm", {}, {"batches": {"1": figures}})
    assert "In vLLM drafts give 4.00 times the speed of none." in verdict({"vllm": result})


def test_the_empty_drafter_has_no_drafts_for_any_row() -> None:
    module, _, name = bench_vllm.EMPTY["model"].rpartition(".")
    drafter = getattr(importlib.import_module(module), name)(vllm_config=None)
    drafter.load_model(None)
    assert drafter.propose([[1], [], [2, 3]], [5, 9, 7], [[0] * 9] * 3, slot_mappings=None) == [[], [], []]
