"""The speed of drafting methods beside plain `generate`, measured in one run."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click

import rest_store
from rest_store.bench.prompts import Prompt
from rest_store.bench.replay import interval
from rest_store.datastore.render import counted
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.sources import require_sources
from rest_store.errors import DataFileError, describe
from rest_store.generation.comparison import MIN_PAIRS, Speedup

# The settings of the paper's Table 1: for HumanEval, and for MT-Bench and all others.
_NUCLEUS = {
    "humaneval": {"temperature": 0.8, "top_p": 0.95},
    "": {"temperature": 0.7, "top_p": 0.8},
}

Method = dict[str, Any]  # arguments of `model.generate`
Run = dict[str, Any]
Runs = dict[str, dict[str, list[Run]]]  # by family and method
Figures = dict[str, dict[str, dict[str, float]]]  # the same, summed up
PACKAGES = ("numpy", "torch", "transformers")
_WARM_UP_TOKENS = 16


def decoding(sampling: str, family: str) -> dict[str, Any]:
    """Return the arguments of `model.generate` that choose tokens for prompts of a family.

    Args:
        sampling: "greedy", or "nucleus": temperature and top-p of REST's Table 1 for the family,
            without top-k.
        family: the family of the prompt.
    """
    if sampling == "greedy":
        return {"do_sample": False}
    name = "humaneval" if family.startswith("humaneval") else ""
    return {"do_sample": True, "top_k": 0, **_NUCLEUS[name]}


def make_methods(
    stores: Sequence[Any],
    *,
    max_nodes: int,
    only: Sequence[str] = (),
    calibration: Calibration | None = None,
) -> dict[str, Method]:
    """Return the methods by name, plain generation first.

    Args:
        stores: datastores of the sessions.
        max_nodes: bound on the draft tokens of a step, for methods in the package's loop.
        only: names of methods beside plain generation; empty: all.
        calibration: the calibration of sessions; None: that of the package.

    Raises:
        DataFileError: `only` has the name of an unknown method.
        SourceError: more datastores than a session can hold.
    """
    sources = [*stores, rest_store.PromptLookup(), rest_store.RecycledLogits()]
    require_sources("--datastore", sources)
    loop: Method = {
        "custom_generate": rest_store.generate,
        "max_nodes": max_nodes,
        "return_dict_in_generate": True,
    }
    methods: dict[str, Method] = {
        "plain": {},
        "transformers prompt lookup": {"prompt_lookup_num_tokens": 10},
        "no drafts": {**loop, "sources": None},
        "DraftSession": {**loop, "sources": sources, "calibration": calibration},
    }
    for name in only:
        if name not in methods:
            expected = "one of " + ", ".join(map(repr, methods))
            raise DataFileError(describe("--method", "method", repr(name), expected))
    return {name: methods[name] for name in dict.fromkeys(["plain", *(only or methods)])}


def measure_speed(
    model: Any,
    make_methods: Callable[[], dict[str, Method]],
    prompts: Sequence[Prompt],
    *,
    sampling: str = "greedy",
    max_new_tokens: int,
    max_seconds: float | None = None,
    progress: Callable[[str], object],
) -> dict[str, Any]:
    """Continue every prompt with every method, in rounds, until speeds are certain or time is up.

    The clock is read after each prompt. A round that it cuts short does not count, unless it is the
    first: then the figures are of the prompts that were continued.

    Args:
        model: a model of transformers.
        make_methods: returns the methods of a round, plain generation first; they must have learnt
            nothing from earlier rounds.
        prompts: at least one.
        sampling: as in `decoding`.
        max_new_tokens: bound on the tokens of each text.
        max_seconds: time for all rounds; None: one round, without a bound.
        progress: called with a line after each text: its prompt and method, its seconds, and the
            time that is left.

    Returns:
        "families": the figures by family and method, of the median seconds of each prompt;
        "rounds": by method, the speedup of whole rounds over plain generation; "prompts": the
        prompts that were continued; "threads" and "sampling".
    """
    import torch

    methods = make_methods()
    names = list(methods)
    for method in methods.values():
        warm_up(model, method, prompts)
    rounds: dict[str, list[list[Run]]] = {name: [] for name in names}
    clock = _Clock(max_seconds)
    while True:
        new_runs = _round(
            model,
            make_methods(),
            prompts,
            len(rounds["plain"]) + 1,
            sampling,
            max_new_tokens,
            clock,
            progress,
        )
        if not rounds["plain"]:
            prompts = prompts[: len(new_runs["plain"])]
        if len(new_runs["plain"]) == len(prompts):
            for name in names:
                rounds[name].append(new_runs[name])
        plain_seconds = _round_seconds(rounds["plain"])
        speedups = {
            name: Speedup.from_runs(plain_seconds, _round_seconds(rounds[name])) for name in names
        }
        if clock.is_over:
            break
        if all(one.is_certain and one.pairs >= MIN_PAIRS for one in speedups.values()):
            break
    runs = by_family(prompts, {name: median_runs(one) for name, one in rounds.items()})
    settings: dict[str, Any] = {"kind": sampling}
    for family in runs:
        settings[family] = decoding(sampling, family)
    return {
        "threads": torch.get_num_threads(),
        "sampling": settings,
        "prompts": [
            {"family": prompt.family, "key": prompt.key, "seed": number}
            for number, prompt in enumerate(prompts)
        ],
        "families": summarize(runs, names),
        "rounds": {name: asdict(speedup) for name, speedup in speedups.items()},
    }


def _round_seconds(rounds: Sequence[Sequence[Run]]) -> list[float]:
    return [_seconds(runs) for runs in rounds]


def _seconds(runs: Sequence[Run]) -> float:
    return float(sum(run["seconds"] for run in runs))


class _Clock:
    """The time for a measurement; None: until the end of the first round."""

    def __init__(self, max_seconds: float | None) -> None:
        self.has_limit = max_seconds is not None
        self._end = time.perf_counter() + (max_seconds or 0.0)

    @property
    def is_over(self) -> bool:
        return time.perf_counter() >= self._end

    def __str__(self) -> str:
        """Return the time that is left, in words; empty without a limit."""
        if not self.has_limit:
            return ""
        seconds = max(0.0, self._end - time.perf_counter())
        return f", {seconds:.0f} s left at most"


def _round(
    model: Any,
    methods: Mapping[str, Method],
    prompts: Sequence[Prompt],
    number: int,
    sampling: str,
    max_new_tokens: int,
    clock: _Clock,
    progress: Callable[[str], object],
) -> dict[str, list[Run]]:
    """Return the runs of each method, of all prompts or of as many as time allowed, at least one.

    Args:
        model: a model of transformers.
        methods: the methods of the round.
        prompts: at least one.
        number: number of the round, from 1. Each prompt of each round begins with another method.
        sampling: as in `decoding`.
        max_new_tokens: bound on the tokens of each text.
        clock: the time of the measurement.
        progress: as in `measure_speed`.
    """
    names = list(methods)
    runs: dict[str, list[Run]] = {name: [] for name in names}
    for index, prompt in enumerate(prompts):
        settings = decoding(sampling, prompt.family)
        for turn in range(len(names)):
            name = names[(index + number + turn) % len(names)]
            run = write(model, methods[name], prompt.tokens, max_new_tokens, settings, index)
            runs[name].append(run)
            where = f"round {number}, prompt {index + 1}/{len(prompts)} ({prompt.family})"
            progress(f"{where}, {name}: {run['seconds']:.1f} s{clock}")
        if clock.has_limit and clock.is_over:
            break
    return runs


def median_runs(rounds: Sequence[Sequence[Run]]) -> list[Run]:
    """Return a run for each prompt, with the median of its seconds over the rounds."""
    medians = []
    for runs in zip(*rounds, strict=True):
        seconds = statistics.median(run["seconds"] for run in runs)
        medians.append({**runs[0], "seconds": seconds})
    return medians


def warm_up(model: Any, method: Method, prompts: Sequence[Prompt]) -> None:
    """Continue a prompt that is not timed.

    Its tokens stand in an order that no prompt has, since sessions learn from texts.
    """
    write(model, method, prompts[0].tokens[::-1], _WARM_UP_TOKENS, {"do_sample": False}, 0)


def by_family(prompts: Sequence[Prompt], written: Mapping[str, Sequence[Run]]) -> Runs:
    """Return the runs by family and method, one for each prompt, compared with plain generation."""
    runs: Runs = defaultdict(lambda: defaultdict(list))
    for name, all_runs in written.items():
        for prompt, run, plain in zip(prompts, all_runs, written["plain"], strict=True):
            beside = {
                "identical": run["written"] == plain["written"],
                "speedup": plain["seconds"] / run["seconds"],
            }
            runs[prompt.family][name].append({**run, **beside})
    return runs


def write(
    model: Any,
    method: Method,
    prompt: list[int],
    max_new_tokens: int,
    settings: dict[str, Any],
    seed: int,
) -> Run:
    """Continue a prompt with one method.

    Args:
        model: a model of transformers.
        method: arguments of `model.generate`.
        prompt: token ids.
        max_new_tokens: bound on the tokens written.
        settings: arguments of `model.generate` for decoding.
        seed: the seed of torch.

    Returns:
        "seconds", "passes", "written" (token ids), "tokens" (their number), and with the package's
        loop "nodes".
    """
    import torch

    passes = 0

    def count(*_: Any) -> None:
        nonlocal passes
        passes += 1

    ids = torch.tensor([prompt], device=model.device)
    torch.manual_seed(seed)
    hook = model.register_forward_pre_hook(count)
    try:
        began = time.perf_counter()
        output = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_new_tokens,
            **settings,
            **method,
        )
        seconds = time.perf_counter() - began
    finally:
        hook.remove()
    written = getattr(output, "sequences", output)[0, len(prompt) :].tolist()
    run: Run = {"seconds": seconds, "passes": passes, "written": written, "tokens": len(written)}
    counts = getattr(getattr(output, "statistics", None), "drafts", None)
    if counts is not None:
        run["nodes"] = counts.nodes
    return run


def summarize(runs: Runs, names: Sequence[str]) -> Figures:
    """Return the figures of each family and method, and of all families together."""
    families = dict(runs)
    families["all"] = {}
    for name in names:
        all_runs = []
        for by_method in runs.values():
            all_runs += by_method[name]
        families["all"][name] = all_runs
    summary: Figures = {}
    for family, by_method in families.items():
        summary[family] = {name: figures(by_method[name], by_method["plain"]) for name in names}
    return summary


def figures(runs: Sequence[Run], plain: Sequence[Run]) -> dict[str, float]:
    """Return the figures of a method, relative to plain generation of the same prompts.

    "low" and "high" are the ends of the 95% interval of the speedup.
    """
    tokens = sum(run["tokens"] for run in runs)
    passes = sum(run["passes"] for run in runs)
    rate = tokens / sum(run["seconds"] for run in runs)
    plain_rate = sum(run["tokens"] for run in plain) / sum(run["seconds"] for run in plain)
    beside = [
        (one["tokens"], one["seconds"], other["tokens"], other["seconds"])
        for one, other in zip(runs, plain, strict=True)
    ]
    low, high = interval(beside, lambda sums: sums[0] / sums[1] / (sums[2] / sums[3]))
    return {
        "prompts": len(runs),
        "tokens_per_second": round(rate, 2),
        "speedup": round(rate / plain_rate, 3),
        "low": round(low, 3),
        "high": round(high, 3),
        "median_speedup": round(statistics.median(run["speedup"] for run in runs), 3),
        "mean_tokens": round(tokens / passes, 3),
        "identical": round(sum(run["identical"] for run in runs) / len(runs), 4),
        "nodes_per_pass": round(sum(run.get("nodes", 0) for run in runs) / passes, 2),
    }


def show(table: Figures) -> None:
    """Print the figures."""
    click.echo(
        "family: method, speedup over plain generate (95% interval; median prompt), M while"
        " generating, identical"
    )
    for family, by_method in table.items():
        click.echo(f"{family} ({counted(int(by_method['plain']['prompts']), 'prompt')})")
        for name, row in by_method.items():
            click.echo(
                f"  {name:<30}{row['speedup']:.2f} ({row['low']:.2f} to {row['high']:.2f};"
                f" {row['median_speedup']:.2f})  M {row['mean_tokens']:.2f}  identical"
                f" {100 * row['identical']:.1f} %"
            )
