"""The command `rest-store bench speed`: drafting methods beside
plain `generate`, on one model, in one run.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

import rest_store
from rest_store.bench.measurement_options import (
    Destination,
    calibration_option,
    chat_option,
    datastores_option,
    prepacked_option,
    prompts_option,
    recordings_option,
    result_options,
)
from rest_store.bench.prompts import (
    Prompt,
    encoding,
    interleaved,
    read_prompts,
    require_known_tokens,
)
from rest_store.bench.recordings import encoder, read_recordings, unfitted, without
from rest_store.bench.replay import interval
from rest_store.bench.results import write_result
from rest_store.command_options import (
    device_option,
    dtype_option,
    max_new_tokens_option,
    max_nodes_option,
    model_option,
)
from rest_store.datastore.render import counted
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.sources import require_sources
from rest_store.errors import DataFileError, describe
from rest_store.generation.comparison import MIN_PAIRS, Speedup
from rest_store.live.open_store import open_store
from rest_store.terminal import loading

# The settings of the paper's Table 1: of HumanEval, and of MT-Bench and all like it.
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


@click.command(
    epilog=(
        "Example: rest-store bench speed --model MODEL --recordings traces.jsonl.gz --datastore"
        " python.ds --out results/speed.json"
    )
)
@model_option
@prompts_option(required=False)
@chat_option
@recordings_option(required=False)
@datastores_option
@click.option(
    "--method",
    "methods",
    metavar="NAME",
    multiple=True,
    help="Only this one and plain generation. Repeatable.",
)
@click.option(
    "--sampling",
    type=click.Choice(["greedy", "nucleus"]),
    default="greedy",
    help="How tokens are chosen.",
)
@click.option(
    "--per-family",
    metavar="N",
    type=click.IntRange(1),
    show_default="all",
    help="Most prompts of each family.",
)
@max_new_tokens_option()
@max_nodes_option(16, minimum=0)
@calibration_option
@dtype_option("float32")
@device_option
@prepacked_option
@result_options
def speed(
    model: str,
    prompts_file: Path | None,
    chat: bool,
    recordings: tuple[Path, ...],
    datastores: tuple[Path, ...],
    methods: tuple[str, ...],
    sampling: str,
    per_family: int | None,
    max_new_tokens: int,
    max_nodes: int,
    calibration: Path | None,
    dtype: str,
    device: str | None,
    prepacked_weights: bool,
    out: Destination,
) -> None:
    """Measure how much faster text is written: drafting methods
    beside plain generation, on your model.

    The prompts are those of --prompts and --recordings, all of them unless --per-family says
    otherwise. Prompts that the calibration was fitted to are left out, with a message: none of
    yours, unless you fitted one.

    Every method continues every prompt, after a warm-up. The methods take turns, and each prompt
    begins with another one, so that a machine that is slower for a while is slower for all.
    Reported for each family of prompts and over all: tokens per second relative to plain `generate`
    of transformers (of all seconds, and the median over prompts), M (tokens per forward pass), and
    the share of texts that are those of plain `generate`. Where they are not, the rounding of a
    wider pass decided between two tokens.

    --sampling nucleus uses the temperatures and top-p of REST's Table 1, with one seed for each
    prompt. The package's loop still writes the tokens of plain `generate`; prompt lookup of
    transformers draws other texts from the same distribution.
    """
    import torch  # noqa: F401  a missing package is reported before anything is read

    from rest_store.generation.model import load_model
    from rest_store.generation.support import vocabulary_size

    if prompts_file is None and not recordings:
        raise click.UsageError("prompts are needed: --prompts or --recordings")
    own = None if calibration is None else Calibration.load(calibration)
    encode = encoder(None, model)
    recorded = [recording for path in recordings for recording in read_recordings(path, encode)]
    reported = unfitted(recorded, own or Calibration.default(), "bench speed") if recorded else []
    target, tokenizer = load_model(model, dtype=dtype, device=device, announce=loading)
    stores = [open_store(path, tokenizer=tokenizer) for path in datastores]
    prompts = (
        [] if prompts_file is None else read_prompts(prompts_file, encoding(tokenizer, chat=chat))
    )
    prompts += [
        Prompt(one.family, one.key, one.prompt.tolist()) for one in reported if one.prompt.size
    ]
    prompts = interleaved(prompts, per_family)
    if not prompts:
        raise DataFileError(describe("bench speed", "number of prompts", 0, "at least one"))
    require_known_tokens(prompts, vocabulary_size(target))
    make = functools.partial(
        make_methods, stores, max_nodes=max_nodes, only=methods, calibration=own
    )
    make()  # a wrong name is reported first
    if prepacked_weights:
        click.get_current_context().with_resource(rest_store.prepacked_weights(target))
    click.echo(f"{counted(len(prompts), 'prompt')}{without(recorded, reported)}")
    results = measure_speed(
        target, make, prompts, sampling=sampling, max_new_tokens=max_new_tokens, progress=click.echo
    )
    show(results["families"])
    write_result(out, "speed", click.get_current_context().params, PACKAGES, results)


def decoding(sampling: str, family: str) -> dict[str, Any]:
    """Return how prompts of a family are decoded, as arguments of `model.generate`.

    Args:
        sampling: "greedy", or "nucleus": temperature and top-p of REST's Table 1 for the family,
            without top-k.
        family: of the prompt.
    """
    if sampling == "greedy":
        return {"do_sample": False}
    settings = next(settings for start, settings in _NUCLEUS.items() if family.startswith(start))
    return {"do_sample": True, "top_k": 0, **settings}


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
        max_nodes: most draft tokens of a step, for methods in the package's loop.
        only: names of methods beside plain generation; empty: all.
        calibration: of sessions; None: that of the package.

    Raises:
        DataFileError: `only` has the name of an unknown method.
        SourceError: more datastores than a session can hold.
    """

    def sources(*counted: Any) -> list[Any]:
        return [*counted, rest_store.PromptLookup(), rest_store.RecycledLogits()]

    require_sources("--datastore", sources(*stores))

    def drafted(drafter: Any) -> Method:
        options = {
            "custom_generate": rest_store.generate,
            "sources": drafter,
            "max_nodes": max_nodes,
        }
        return {**options, "return_dict_in_generate": True}

    methods: dict[str, Method] = {
        "plain": {},
        "transformers prompt lookup": {"prompt_lookup_num_tokens": 10},
        "no drafts": drafted(None),
        "DraftSession": {**drafted(sources(*stores)), "calibration": calibration},
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
    """Continue every prompt with every method, in rounds, until it
    is certain how fast they are or time is up.

    The time is looked at after each prompt. A round that it cuts short does not count, unless it is
    the first: then the figures are of the prompts that were continued.

    Args:
        model: of transformers.
        make_methods: returns the methods of a round, plain generation first: one learns nothing
            from earlier rounds.
        prompts: at least one.
        sampling: as in `decoding`.
        max_new_tokens: most tokens of each text.
        max_seconds: for all rounds; None: for one round, however long it takes.
        progress: called with a line after each text: which it is, what it took, and the time that
            is left.

    Returns:
        "families": the figures by family and method, of the median seconds of each prompt;
        "rounds": by method, how many times as fast as plain generation whole rounds were;
        "prompts": those that were continued; and what they were measured with.
    """
    import torch

    names = list(methods := make_methods())
    for method in methods.values():
        warm_up(model, method, prompts)
    rounds: dict[str, list[list[Run]]] = {name: [] for name in names}
    clock = _Clock(max_seconds)
    while True:
        made = _round(
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
            prompts = prompts[: len(made["plain"])]
        if len(made["plain"]) == len(prompts):
            for name in names:
                rounds[name].append(made[name])
        seconds = {
            name: [sum(run["seconds"] for run in one) for one in runs]
            for name, runs in rounds.items()
        }
        speedups = {name: Speedup.of(seconds["plain"], seconds[name]) for name in names}
        if clock.is_over or all(
            one.is_certain and one.pairs >= MIN_PAIRS for one in speedups.values()
        ):
            break
    runs = by_family(prompts, {name: median_runs(made) for name, made in rounds.items()})
    return {
        "threads": torch.get_num_threads(),
        "sampling": {"kind": sampling, **{family: decoding(sampling, family) for family in runs}},
        "prompts": [
            {"family": prompt.family, "key": prompt.key, "seed": number}
            for number, prompt in enumerate(prompts)
        ],
        "families": summarize(runs, names),
        "rounds": {name: asdict(speedup) for name, speedup in speedups.items()},
    }


class _Clock:
    """The time that a measurement has; None: until the end of the first round."""

    def __init__(self, max_seconds: float | None) -> None:
        self.has_limit = max_seconds is not None
        self._end = time.perf_counter() + (max_seconds or 0.0)

    @property
    def is_over(self) -> bool:
        return time.perf_counter() >= self._end

    def __str__(self) -> str:
        """The time that is left, in words; empty without a limit."""
        return (
            f", {max(0.0, self._end - time.perf_counter()):.0f} s left at most"
            if self.has_limit
            else ""
        )


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
    """Return the runs of each method, of all prompts or of those
    for which there was time, one at least.

    Args:
        model: of transformers.
        methods: of the round.
        prompts: at least one.
        number: of the round, 1 for the first. Each prompt of each round begins with another method.
        sampling: as in `decoding`.
        max_new_tokens: most tokens of each text.
        clock: says when time is up.
        progress: as in `measure_speed`.
    """
    names = list(methods)
    runs: dict[str, list[Run]] = {name: [] for name in names}
    for index, prompt in enumerate(prompts):
        settings = decoding(sampling, prompt.family)
        for turn in range(len(names)):
            name = names[(index + number + turn) % len(names)]
            runs[name].append(
                write(model, methods[name], prompt.tokens, max_new_tokens, settings, index)
            )
            where = f"round {number}, prompt {index + 1}/{len(prompts)} ({prompt.family})"
            progress(f"{where}, {name}: {runs[name][-1]['seconds']:.1f} s{clock}")
        if clock.has_limit and clock.is_over:
            break
    return runs


def median_runs(rounds: Sequence[Sequence[Run]]) -> list[Run]:
    """Return a run for each prompt, with the median of its seconds over the rounds."""
    return [
        {**runs[0], "seconds": statistics.median(run["seconds"] for run in runs)}
        for runs in zip(*rounds, strict=True)
    ]


def warm_up(model: Any, method: Method, prompts: Sequence[Prompt]) -> None:
    """Continue a prompt that is not timed: tokens in an order that
    none has, since sessions keep what they learn.
    """
    write(model, method, prompts[0].tokens[::-1], _WARM_UP_TOKENS, {"do_sample": False}, 0)


def by_family(prompts: Sequence[Prompt], written: Mapping[str, Sequence[Run]]) -> Runs:
    """Return the runs of each method, one for each prompt,
    by family and beside plain generation.
    """
    runs: Runs = defaultdict(lambda: defaultdict(list))
    for name, all_runs in written.items():
        for prompt, run, plain in zip(prompts, all_runs, written["plain"], strict=True):
            beside = {
                "identical": run["written"] == plain["written"],
                "of_plain": plain["seconds"] / run["seconds"],
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
        model: of transformers.
        method: arguments of `model.generate`.
        prompt: token ids.
        max_new_tokens: most tokens written.
        settings: arguments of `model.generate` for decoding.
        seed: of torch.

    Returns:
        "seconds", "passes", "written" (token ids), "tokens" (their number), and of the package's
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
    families["all"] = {
        name: [run for family in runs.values() for run in family[name]] for name in names
    }
    return {
        family: {name: figures(rows[name], rows["plain"]) for name in names}
        for family, rows in families.items()
    }


def figures(runs: Sequence[Run], plain: Sequence[Run]) -> dict[str, float]:
    """Return the figures of a method, relative to plain generation of the same prompts.

    "low" and "high" are where the speedup lies for 95% of samples of as many prompts.
    """
    tokens, passes = (sum(run[name] for run in runs) for name in ("tokens", "passes"))
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
        "median_speedup": round(statistics.median(run["of_plain"] for run in runs), 3),
        "mean_tokens": round(tokens / passes, 3),
        "identical": round(sum(run["identical"] for run in runs) / len(runs), 4),
        "nodes_per_pass": round(sum(run.get("nodes", 0) for run in runs) / passes, 2),
    }


def show(table: Figures) -> None:
    """Print the figures."""
    click.echo(
        "family: method, speedup over plain generate (for 95% of such samples; of the median"
        " prompt), M while generating, identical"
    )
    for family, rows in table.items():
        click.echo(f"{family} ({counted(int(rows['plain']['prompts']), 'prompt')})")
        for name, row in rows.items():
            click.echo(
                f"  {name:<30}{row['speedup']:.2f} ({row['low']:.2f} to {row['high']:.2f};"
                f" {row['median_speedup']:.2f})  M {row['mean_tokens']:.2f}  identical"
                f" {100 * row['identical']:.1f} %"
            )
