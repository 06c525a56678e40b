"""Measure vLLM without drafts, with its own ways of drafting from texts, and with rest-store's.

Run it with the interpreter of `make test-vllm`, into which `pip install --no-build-isolation --no-deps
arctic-inference==0.3.0` has put suffix decoding as well. Each way of drafting has an engine in a process of its own,
and the engines take turns: they answer the same held-out prompts of the recordings, greedily, so many at a time. Each
round begins with new drafters: cold, they know nothing of the model's outputs; warm, they know those of all recordings
for fitting, as if they had answered these prompts before. Both learn from what they answer meanwhile.

Reported: tokens a second, the reading of prompts included (median over rounds), and relative to vLLM without drafts and
to suffix decoding (median over rounds of the ratio in each); the same of decoding, the steps in which no prompt is
read; tokens that a row gets in a step, and tokens drafted for it; the share of time that drafting takes, in `propose`
and, with ours, in its hook on the model; and how many texts are those without drafts.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sysconfig
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.metadata import packages_distributions
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import click

from rest_store.bench.options import datastores_option, recordings_option, result_options
from rest_store.bench.prompts import interleaved, recorded_prompts
from rest_store.bench.recordings import Recording, read_recordings, split
from rest_store.bench.remembering import logits_of
from rest_store.bench.results import write_result
from rest_store.datastore.datastore import Datastore
from rest_store.options import SETTINGS, max_new_tokens_option, model_option

LENGTH = 2048  # of the longest text, with its prompt
TURN = 4  # a turn answers so many times the rows of prompts
WARM_UP = 16  # tokens of each text
GREEDY = {"temperature": 0.0}
# The best in replays of the recordings for fitting, with 20.5 ms for a step and 0.95 ms for each token in it. Those of
# n-grams are of 1 to 24 tokens after n-grams of 1 to 8; those of suffix decoding are of depths of 24 and 64, 8 to 24
# tokens, factors from 1 to 16, and probabilities from 0 to 0.5.
NGRAM = {"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_min": 2, "prompt_lookup_max": 8}
NGRAM_TOKENS = {1: 8, 4: 4, 8: 3, 16: 2}  # by the greatest number of rows
SUFFIX = {"method": "suffix", "num_speculative_tokens": 8}
SUFFIX_ALONE = {"max_spec_factor": 2.0, "min_token_prob": 0.2}  # with one row
SUFFIX_IN_BATCHES = {"max_spec_factor": 1.0, "min_token_prob": 0.5}
OURS = {"method": "ngram_gpu", "num_speculative_tokens": 8}  # whose place the plug-in takes
SUMMED = ("seconds", "tokens", "steps", "row steps", "propose seconds", "drafted")

Answers = dict[str, Any]  # what `peer_vllm.py` returns
Ask = Callable[..., Any]  # what an engine is asked, and with what


@dataclass(frozen=True)
class Way:
    """A way of drafting.

    Attributes:
        speculative: the speculative configuration; None: no drafts.
        has_corpora: whether our drafter has the datastores.
        remembers: whether our drafter remembers answers.
        warm: whether the drafter knows outputs to begin with.
    """

    speculative: dict[str, Any] | None
    has_corpora: bool = True
    remembers: bool = False
    warm: bool = False


WAYS = {
    "none": Way(None),
    "ngram": Way(NGRAM),
    "suffix, cold": Way(SUFFIX),
    "suffix, warm": Way(SUFFIX, warm=True),
    "memory, cold": Way(OURS, has_corpora=False, remembers=True),
    "memory, warm": Way(OURS, has_corpora=False, remembers=True, warm=True),
    "corpora": Way(OURS),
    "corpora and memory, cold": Way(OURS, remembers=True),
    "corpora and memory, warm": Way(OURS, remembers=True, warm=True),
}


@click.command(
    help=__doc__,
    context_settings=SETTINGS,
    epilog="Example: python benchmarks/bench_vllm.py --model SMOLLM2 --recordings traces.jsonl.gz --datastore code.ds",
)
@model_option
@recordings_option()
@datastores_option
@click.option(
    "--batch",
    "batches",
    metavar="N",
    multiple=True,
    default=(1, 4, 8, 16),
    type=click.IntRange(1),
    help="Rows at once. Repeatable.",
)
@click.option(
    "--prompts", metavar="N", default=20, type=click.IntRange(1), help="Prompts, or twice the rows if these are more."
)
@max_new_tokens_option(128, least=8)
@click.option("--rounds", metavar="N", default=2, type=click.IntRange(1), help="Rounds of all ways.")
@click.option(
    "--way",
    "chosen",
    metavar="NAME",
    multiple=True,
    type=click.Choice(list(WAYS)),
    show_default="all",
    help=f"Only this one, of {'; '.join(WAYS)}. Repeatable.",
)
@result_options
def main(**options: Any) -> None:
    ways = [name for name in WAYS if name in options["chosen"] or not options["chosen"]]
    most = options["max_new_tokens"]
    recorded = [one for path in options["recordings"] for one in read_recordings(path)]
    fitting, held_out = split(recorded, "bench_vllm.py")
    fitting = known_texts(fitting, most)
    known = [(one.prompt.tolist(), one.output.tolist()) for one in fitting]
    prompts = [one.tokens for one in interleaved(recorded_prompts(held_out))]
    settings = {
        "ngram": NGRAM,
        "ngram tokens": NGRAM_TOKENS,
        "suffix": SUFFIX,
        "one row": SUFFIX_ALONE,
        "more rows": SUFFIX_IN_BATCHES,
        "ours": OURS,
    }
    figures: dict[str, Any] = {"settings": settings, "known texts": len(known), "batches": {}}
    packages = ("numpy", "torch", "transformers", *packages_distributions()["vllm"][:1])
    with ExitStack() as stack:
        logits = stack.enter_context(tempfile.TemporaryDirectory(prefix="rest-store-")) + "/logits"
        with Datastore.open(options["datastores"][0]) as like:
            logits_of(fitting).save(logits, like.tokenizer)
        engines = {name: started(stack, name, options) for name in ways}
        for batch in options["batches"]:
            for ask in engines.values():
                ask("answer", prompts=[text for text, _ in known[:batch]], rows=batch, sampling=GREEDY, most=WARM_UP)
            some = prompts[: max(options["prompts"], 2 * batch)]
            rounds = []
            for number in range(options["rounds"]):
                for name, ask in engines.items():
                    way = WAYS[name]
                    knows = (known, logits) if way.warm else ([], None)
                    ask("begin", known=knows[0], logits=knows[1], settings=settings_of(way, batch))
                rounds.append(in_turns(engines, some, number, {"rows": batch, "sampling": GREEDY, "most": most}))
            figures["batches"][str(batch)] = summarize(rounds)
            report(f"{batch} at once", figures["batches"][str(batch)])
            write_result(options["out"], "vllm", options, packages, figures)  # what there is, should a later one fail


def settings_of(way: Way, rows: int) -> dict[str, Any]:
    """Return the attributes of vLLM's own drafter that are best with so many rows."""
    if way.speculative is NGRAM:
        return {"k": next((NGRAM_TOKENS[most] for most in NGRAM_TOKENS if rows <= most), 2)}
    if way.speculative is SUFFIX:
        return SUFFIX_ALONE if rows == 1 else SUFFIX_IN_BATCHES
    return {}


def started(stack: ExitStack, name: str, options: Mapping[str, Any]) -> Ask:
    """Start the engine of a way; `stack` ends it."""
    libraries = sorted(Path(sysconfig.get_paths()["data"], "lib").glob("libiomp5.so"))
    os.environ.update(  # as vLLM's guide for CPUs says, in one process, whose threads make room for the next turn soon
        LD_PRELOAD=":".join(map(str, libraries)),
        KMP_BLOCKTIME="1",
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_NO_USAGE_STATS="1",
        VLLM_LOGGING_LEVEL="ERROR",
    )
    way = WAYS[name]
    settings: dict[str, Any] = {}
    if way.speculative is OURS:
        settings["datastores"] = [str(path) for path in options["datastores"]] if way.has_corpora else []
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="rest-store-"))
        settings["logits"] = f"{folder}/logits"
        if way.remembers:
            settings["remember"] = f"{folder}/live"
    spawn = multiprocessing.get_context("spawn")
    connection, other = spawn.Pipe()
    process = spawn.Process(target=run_engine, args=(other,))
    process.start()
    other.close()
    stack.callback(process.join)
    stack.callback(connection.close)  # before, which ends it

    def ask(what: str, **arguments: Any) -> Any:
        connection.send((what, arguments))
        return connection.recv()

    engine = {"model": options["model"], "speculative": way.speculative, "settings": settings}
    print(f"vLLM {ask('start', **engine, rows=max(options['batches']), length=LENGTH)}: {name}", flush=True)
    return ask


def run_engine(connection: Connection) -> None:
    """Run one engine, in a process of its own."""
    from peer_vllm import serve

    serve(connection)


def known_texts(recordings: Sequence[Recording], most: int) -> list[Recording]:
    """Return the recordings with the first `most` tokens of each answer, as an engine would have seen them."""
    return [replace(one, output=one.output[:most], top_k=one.top_k[: one.prompt.size + most]) for one in recordings]


def in_turns(
    engines: Mapping[str, Ask], prompts: Sequence[list[int]], number: int, fields: Mapping[str, Any]
) -> dict[str, list[Answers]]:
    """Have all engines answer all prompts, in turns of `TURN` times their rows; each turn begins with another one.

    Args:
        engines: by way.
        prompts: the prompts.
        number: of the round.
        fields: what the engines are asked besides.
    """
    names, size = list(engines), TURN * fields["rows"]
    answers: dict[str, list[Answers]] = {name: [] for name in names}
    for turn, start in enumerate(range(0, len(prompts), size)):
        for place in range(len(names)):
            name = names[(number + turn + place) % len(names)]
            answers[name].append(engines[name]("answer", prompts=prompts[start : start + size], **fields))
    return answers


def summarize(rounds: Sequence[Mapping[str, Sequence[Answers]]]) -> dict[str, dict[str, Any]]:
    """Return the figures of each way; `rounds` has, of each, what each way answered in its turns."""
    figures = {}
    for name in rounds[0]:
        turns = [turn for one in rounds for turn in one[name]]
        texts = [text for turn in turns for text in turn["texts"]]
        total = {key: sum(turn[key] for turn in turns) for key in SUMMED}
        row: dict[str, Any] = {**speed(rounds, name), "decoding": speed(rounds, name, "decoding ")}
        row["tokens a row and step"] = round((total["tokens"] - len(texts)) / total["row steps"], 3)
        row["drafted a row and step"] = round(total["drafted"] / total["row steps"], 3)
        row["share of propose"] = round(total["propose seconds"] / total["seconds"], 4)
        row["milliseconds a step"] = round(1e3 * total["seconds"] / total["steps"], 2)
        if "none" in rounds[0]:
            plain = [text for one in rounds for turn in one["none"] for text in turn["texts"]]
            same = sum(text == other for text, other in zip(texts, plain, strict=True))
            row["identical"] = f"{same} of {len(texts)}"
        figures[name] = row
    return figures


def speed(rounds: Sequence[Mapping[str, Sequence[Answers]]], name: str, kind: str = "") -> dict[str, Any]:
    """Return the tokens a second of a way, alone and relative to others.

    Args:
        rounds: of each, what each way answered in its turns.
        name: the way.
        kind: of the tokens and seconds that are meant, as their names begin; empty: all.
    """

    def rates(way: str) -> list[float]:
        sums = [[sum(turn[kind + key] for turn in one[way]) for key in ("tokens", "seconds")] for one in rounds]
        return [tokens / seconds for tokens, seconds in sums]

    figures: dict[str, Any] = {"tokens a second": round(statistics.median(rates(name)), 1)}
    suffix = f"suffix, {'warm' if WAYS[name].warm else 'cold'}"
    for key, other in (("of none", "none"), ("of suffix", suffix)):
        if other in rounds[0]:
            ratios = [one / against for one, against in zip(rates(name), rates(other), strict=True)]
            figures[key] = round(statistics.median(ratios), 3)
    return figures


def report(title: str, figures: Mapping[str, Mapping[str, Any]]) -> None:
    print(title)
    for name, row in figures.items():
        cells = [f"{row['tokens a second']:7.1f} tokens/s"]
        cells += [f"{row[key]:.2f} {key}" for key in ("of none", "of suffix") if key in row]
        cells += [f"decoding {row['decoding']['of suffix']:.2f} of suffix"] if "of suffix" in row else []
        cells += [f"{row[f'{what} a row and step']:.2f} {what}" for what in ("tokens", "drafted")]
        cells += [f"propose {100 * row['share of propose']:.1f}%"]
        cells += [f"identical {row['identical']}"] if "identical" in row else []
        print(f"  {name:<26}" + "  ".join(cells), flush=True)


if __name__ == "__main__":
    main()
