r"""Drafts in an engine as it runs, against plain decoding and its own lookups, at 1, 8 and 32 rows.

In an environment with vLLM or SGLang and this package, on the machine that serves:

    python benchmarks/bench_engines.py --model MODEL --datastore code.ds

Each method has an engine of its own, in a process of its own, since engines share no GPU memory.
Plain decoding comes first and last: the ratio of both says how steady the machine was. The warm-up
and each cell have prompts of their own while the file has new ones. Prompts that come again favour
methods that remember answers: ours, and vLLM's `suffix`. So pass a file of your own with enough.
After ten minutes nothing is started any more (`--minutes`).
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import click

from rest_store.bench.measurement_options import Destination, datastores_option, result_options
from rest_store.bench.results import write_result
from rest_store.command_options import (
    FILE,
    SETTINGS,
    FloatRange,
    max_new_tokens_option,
    model_option,
)

ENGINES = ("vllm", "sglang")
METHODS = {"vllm": ("none", "ngram", "suffix", "ours"), "sglang": ("none", "ngram", "ours")}
_VARIABLE = "REST_STORE_SGLANG"


@click.command(
    context_settings=SETTINGS,
    epilog="Example: python benchmarks/bench_engines.py --model smollm2 --datastore code.ds",
)
@model_option
@datastores_option
@click.option(
    "--prompts",
    metavar="FILE",
    type=FILE,
    default=Path("benchmarks/prompts.jsonl"),
    help="Prompts for the model: JSON Lines.",
)
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    show_default="the one that is installed",
    help="Engine that is measured.",
)
@click.option(
    "--rows",
    metavar="N",
    multiple=True,
    type=click.IntRange(1),
    default=(1, 8, 32),
    show_default=True,
    help="Requests at once. Repeatable.",
)
@click.option(
    "--speculation",
    "methods",
    multiple=True,
    type=click.Choice(METHODS["vllm"]),
    show_default="all of the engine",
    help="Way of drafting that is measured. Repeatable.",
)
@click.option(
    "--draft-tokens", metavar="N", type=click.IntRange(1), default=8, help="Draft tokens of a row."
)
@click.option(
    "--minutes",
    metavar="N",
    type=FloatRange(0.1),
    default=10.0,
    help="After this time nothing is started any more.",
)
@click.option(
    "--engine-options",
    metavar="JSON",
    default="{}",
    help="Further arguments of the engine, such as a dtype.",
)
@max_new_tokens_option(128)
@result_options
def main(
    model: str,
    datastores: tuple[Path, ...],
    prompts: Path,
    engine: str | None,
    rows: tuple[int, ...],
    methods: tuple[str, ...],
    draft_tokens: int,
    minutes: float,
    engine_options: str,
    max_new_tokens: int,
    out: Destination,
) -> None:
    """Measure tokens a second of an engine, by method and rows."""
    engine = engine or _installed()
    # vLLM's build for CPUs has another name.
    distribution = metadata.packages_distributions()[engine][0]
    end = time.monotonic() + 60 * minutes
    work: dict[str, Any] = {
        "engine": engine,
        "model": model,
        "datastores": [str(place.resolve()) for place in datastores],
        "batches": _batches(prompts, rows),
        "draft_tokens": draft_tokens,
        "max_new_tokens": max_new_tokens,
        "options": json.loads(engine_options),
    }
    requests = 1 + sum(rows)
    known = len(set().union(*work["batches"]))
    if known < requests:
        click.echo(f"{requests} prompts are asked, and {requests - known} of them come again")
    chosen = [method for method in METHODS[engine] if not methods or method in methods]
    table_rows: list[dict[str, Any]] = []
    for method in [*chosen, *(["none"] if "none" in chosen else [])]:
        is_again = any(row["method"] == method for row in table_rows)
        left = end - time.monotonic()
        if left <= 0:
            click.echo(f"{method}: left out, the time is over")
            table_rows.append({"method": method, "again": is_again, "fault": "the time was over"})
            continue
        for row in _in_a_process({**work, "method": method}, left):
            table_rows.append({"method": method, "again": is_again, **row})
    _compare(table_rows)
    for row in table_rows:
        click.echo(_line(row))
    write_result(
        out,
        "engines",
        click.get_current_context().params,
        ("numpy", "torch", distribution),
        {"engine": engine, "prompts": requests, "repeated": requests - known, "rows": table_rows},
    )


def _installed() -> str:
    for engine in ENGINES:
        if importlib.util.find_spec(engine) is not None:
            return engine
    raise click.UsageError("neither vLLM nor SGLang is installed here")


def _batches(prompts: Path, rows: Sequence[int]) -> list[list[str]]:
    """Return the prompts of the warm-up, then those of each cell, different as far as possible."""
    texts = [json.loads(line)["prompt"] for line in prompts.read_text().splitlines()]
    batches = []
    begin = 0
    for count in (1, *rows):
        batches.append([texts[(begin + place) % len(texts)] for place in range(count)])
        begin += count
    return batches


def _in_a_process(work: dict[str, Any], seconds: float) -> list[dict[str, Any]]:
    """Return the cells of one method; one with a fault if the engine does not run."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "work.json").write_text(json.dumps({**work, "folder": folder}))
        log = place / "log"
        command = [sys.executable, __file__, "--work", str(place / "work.json")]
        with log.open("w") as stream:
            process = subprocess.Popen(
                command, stdout=stream, stderr=stream, start_new_session=True
            )
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                return [*_cells(place), {"fault": "the time was over"}]
            finally:
                with suppress(ProcessLookupError):  # an engine's own processes outlive it
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        cells = _cells(place)
        if process.returncode:
            lines = log.read_text(errors="replace").strip().splitlines()
            cells.append({"fault": lines[-1][:300] if lines else f"exit {process.returncode}"})
        return cells


def _cells(place: Path) -> list[dict[str, Any]]:
    file = place / "cells.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def _compare(table_rows: list[dict[str, Any]]) -> None:
    """Add to each cell its speed relative to plain decoding, and the share of equal texts."""
    plain = {
        row["rows"]: row
        for row in reversed(table_rows)
        if row["method"] == "none" and "texts" in row
    }
    for row in table_rows:
        texts = row.get("texts")
        if texts is None:
            continue
        if (other := plain.get(row["rows"])) is not None:
            row["speedup"] = round(row["tokens_per_second"] / other["tokens_per_second"], 3)
            same = sum(one == two for one, two in zip(texts, other["texts"], strict=True))
            row["same_texts"] = round(same / len(texts), 3)
    for row in table_rows:
        row.pop("texts", None)


def _line(row: Mapping[str, Any]) -> str:
    name = f"{row['method']}{', again' if row['again'] else ''}"
    if "fault" in row:
        return f"{name}: {row['fault']}"
    words = [f"{name}, rows {row['rows']}: {row['tokens_per_second']:.1f} tokens a second"]
    if "speedup" in row:
        words.append(f"{row['speedup']:.2f} of plain, {100 * row['same_texts']:.0f}% equal texts")
    if row["M"] is not None:
        words.append(f"M {row['M']:.2f}")
    return "; ".join(words)


# --- in the process of an engine ------------------------------------------------------------------


def measure(work: dict[str, Any]) -> None:
    """Start an engine with one method, and write a line for each cell."""
    start: Callable[[dict[str, Any]], Any] = {"vllm": _Vllm, "sglang": _Sglang}[work["engine"]]
    engine = start(work)
    warm_up, *batches = work["batches"]
    engine.run(warm_up, work["max_new_tokens"])
    with (Path(work["folder"]) / "cells.jsonl").open("w") as file:
        for prompts in batches:
            before = engine.drafted()
            began = time.perf_counter()
            texts = engine.run(prompts, work["max_new_tokens"])
            seconds = time.perf_counter() - began
            steps, accepted = (
                after - first for after, first in zip(engine.drafted(), before, strict=True)
            )
            count = sum(map(len, texts))
            cell = {
                "rows": len(prompts),
                "tokens": count,
                "seconds": round(seconds, 3),
                "tokens_per_second": round(count / seconds, 2),
                "M": round(1 + accepted / steps, 3) if steps else None,
                "texts": texts,
            }
            file.write(json.dumps(cell) + "\n")
            file.flush()
    engine.close()


class _Vllm:
    """vLLM with one method of drafts."""

    def __init__(self, work: Mapping[str, Any]) -> None:
        from vllm import LLM

        count = work["draft_tokens"]
        speculative = {
            "none": None,
            "ngram": {"method": "ngram", "num_speculative_tokens": count},
            "suffix": {"method": "suffix", "num_speculative_tokens": count},
            "ours": {"method": "ngram", "num_speculative_tokens": count},
        }[work["method"]]
        options = dict(work["options"])
        if work["method"] == "ours":
            options["additional_config"] = {"rest_store": _settings(work)}
        self._llm = LLM(
            work["model"], speculative_config=speculative, disable_log_stats=False, **options
        )

    def run(self, prompts: Sequence[str], max_new_tokens: int) -> list[list[int]]:
        """Return the token ids of answers."""
        from vllm import SamplingParams

        sampling = SamplingParams(temperature=0.0, max_tokens=max_new_tokens, ignore_eos=True)
        tokenizer = self._llm.get_tokenizer()
        inputs: list[Any] = [{"prompt_token_ids": _ids(tokenizer, prompt)} for prompt in prompts]
        outputs = self._llm.generate(inputs, sampling, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    def drafted(self) -> tuple[float, float]:
        """Return the drafts so far, of a row in a step, and their accepted tokens."""
        sums = {"drafts": 0.0, "accepted_tokens": 0.0}
        for metric in self._llm.get_metrics():
            for name in sums:
                if metric.name == f"vllm:spec_decode_num_{name}":
                    sums[name] += getattr(metric, "value", 0.0)
        return sums["drafts"], sums["accepted_tokens"]

    def close(self) -> None:
        self._llm.llm_engine.engine_core.shutdown()


class _Sglang:
    """SGLang with one method of drafts."""

    def __init__(self, work: Mapping[str, Any]) -> None:
        import sglang
        from transformers import AutoTokenizer

        algorithm = {"none": None, "ngram": "NGRAM", "ours": "REST_STORE"}[work["method"]]
        options = dict(work["options"])
        if algorithm is not None:
            options["speculative_algorithm"] = algorithm
            options["speculative_num_draft_tokens"] = work["draft_tokens"]
        if work["method"] == "ours":
            os.environ[_VARIABLE] = json.dumps(_settings(work))
        self._tokenizer = AutoTokenizer.from_pretrained(work["model"])
        self._engine = sglang.Engine(model_path=work["model"], **options)
        self._steps = 0.0
        self._accepted = 0.0

    def run(self, prompts: Sequence[str], max_new_tokens: int) -> list[list[int]]:
        """Return the token ids of answers."""
        ids = [_ids(self._tokenizer, prompt) for prompt in prompts]
        sampling = {"temperature": 0.0, "max_new_tokens": max_new_tokens, "ignore_eos": True}
        texts = []
        for output in self._engine.generate(input_ids=ids, sampling_params=sampling):
            texts.append(list(output["output_ids"]))
            steps = output["meta_info"].get("spec_verify_ct", 0)
            self._steps += steps
            # The first token comes with the prompt.
            self._accepted += len(texts[-1]) - 1 - steps if steps else 0
        return texts

    def drafted(self) -> tuple[float, float]:
        """Return the steps of requests so far, and their accepted tokens."""
        return self._steps, self._accepted

    def close(self) -> None:
        self._engine.shutdown()


def _ids(tokenizer: Any, prompt: str) -> list[int]:
    """Return a chat of one message as token ids; the text itself where there are no chats."""
    if tokenizer.chat_template is None:
        return list(tokenizer.encode(prompt))
    chat = [{"role": "user", "content": prompt}]
    return list(tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False))


def _settings(work: Mapping[str, Any]) -> dict[str, Any]:
    return {"datastores": work["datastores"], "remember": str(Path(work["folder"]) / "history.ds")}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        measure(json.loads(Path(sys.argv[2]).read_text()))
    else:
        main()
