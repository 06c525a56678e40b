"""Measure typical acceptance beside exact sampling: tokens of a forward pass, speed, and how the distribution moves.

Plain `generate`, exact acceptance and typical acceptance with each rule continue the same prompts from the same seeds,
in turns. Speed is relative to plain `generate` of the same prompt, the median over texts. Perplexity and entropy are
those of the distribution that tokens are sampled from. Of exact samples the logarithm of the perplexity tends to the
mean entropy; a text that is more predictable has less.

The distance from the model's distribution is computed, not estimated: where a rule writes a token of probability p, the
distribution of the next token is a point, at a total variation of 1 - p from the model's; where a token is drawn it is
the model's, at 0. The mean is over all tokens that the rule wrote, and over the steps of exact sampling with the trees
that were drafted there, in further generations that are not timed.
"""

from __future__ import annotations

import math
import operator
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import click
import torch
from transformers import LogitsProcessorList, TemperatureLogitsWarper

import rest_store
from rest_store.bench.environment import write_result
from rest_store.bench.options import Destination, datastores_option, result_options, seed_option
from rest_store.bench.prompts import chat_tokens, interleaved, read_prompts
from rest_store.datastore.tree import TokenTree
from rest_store.generation.draft_sessions import SessionFactory
from rest_store.generation.generate import default_session_factory
from rest_store.generation.model import load_model
from rest_store.generation.sampling import Choice
from rest_store.generation.typical import ALPHA, THRESHOLD, TypicalRule, TypicalStep
from rest_store.options import PATH, SETTINGS, max_new_tokens_option, model_option

DRAFTING: dict[str, Any] = {"custom_generate": rest_store.generate, "max_nodes": 16}
Figures = dict[str, float]


@click.command(
    help=__doc__,
    context_settings=SETTINGS,
    epilog="Example: python benchmarks/bench_typical.py --model SmolLM2.gguf --prompts benchmarks/prompts.jsonl",
)
@model_option
@click.option(
    "--prompts", metavar="FILE", type=PATH, required=True, help="JSON lines of prompts, each rendered as a user's turn."
)
@datastores_option
@click.option("--temperature", "temperatures", metavar="T", multiple=True, default=(0.7, 1.0), help="Of sampling.")
@click.option(
    "--rule",
    "rules",
    nargs=2,
    type=float,
    multiple=True,
    default=((THRESHOLD, ALPHA), (0.25, 0.5)),
    metavar="THRESHOLD ALPHA",
    help="Of typical acceptance.",
)
@max_new_tokens_option(96)
@click.option("--rounds", metavar="N", default=2, type=click.IntRange(1), help="Texts of each prompt.")
@seed_option
@result_options
def main(out: Destination, **options: Any) -> None:
    model, tokenizer = load_model(options["model"], dtype="float32")
    stores = [rest_store.Datastore.open(path, tokenizer=tokenizer) for path in options["datastores"]]
    read = read_prompts(options["prompts"], lambda text: chat_tokens(tokenizer, [text]))
    prompts = [prompt.tokens for prompt in interleaved(read)]
    rules = [TypicalRule(*rule) for rule in options["rules"]]
    figures: dict[str, dict[str, Figures]] = {}
    with rest_store.prepacked_weights(model):
        for temperature in options["temperatures"]:
            print(f"temperature {temperature}")
            bench = Sampling(model, stores, temperature, options["max_new_tokens"])
            figures[str(temperature)] = bench.measured(prompts, rules, options["rounds"], options["seed"])
            for way, row in figures[str(temperature)].items():
                print(f"  {way}: {', '.join(f'{name} {value}' for name, value in row.items())}")
    results = {"prompts": len(prompts), "temperatures": figures}
    write_result(out, "typical", options, ("numpy", "torch", "transformers"), results)


@dataclass
class Texts:
    """What one way of sampling wrote, in sums over tokens.

    Attributes:
        texts: the new tokens of each.
        passes: of the model.
        seconds: that each text took.
        surprisal: of tokens, in nats.
        entropy: of the distributions that they were sampled from, in nats.
        kept: tokens that were written without a draw.
        variation: total variation from the model's distribution.
    """

    texts: list[list[int]] = field(default_factory=list)
    passes: int = 0
    seconds: list[float] = field(default_factory=list)
    surprisal: float = 0.0
    entropy: float = 0.0
    kept: int = 0
    variation: float = 0.0

    def add(self, tokens: list[int], scores: torch.Tensor, origins: Sequence[int], rule: TypicalRule | None) -> None:
        """Add a text.

        Args:
            tokens: new ones.
            scores: float32[tokens, vocabulary].
            origins: of each token 0 if it was not drafted.
            rule: of typical acceptance; None: exact.
        """
        logarithms = torch.log_softmax(scores, dim=-1)
        self.texts.append(tokens)
        self.surprisal -= float(logarithms[range(len(tokens)), tokens].sum())
        self.entropy += float(torch.special.entr(logarithms.exp()).sum())
        for place, (token, origin) in enumerate(zip(tokens, origins, strict=True)):
            # A drafted token that passes was not drawn: nothing is drawn where a draft token passes.
            if rule is not None and origin and (probability := rule.accepted(scores[place : place + 1], [token])[0]):
                self.kept += 1
                self.variation += 1 - probability

    def speeds(self) -> list[float]:
        """Return the tokens a second of each text."""
        return [len(text) / seconds for text, seconds in zip(self.texts, self.seconds, strict=True)]

    def figures(self, plain: Texts) -> Figures:
        """Return the figures; speed relative to that of `plain` for the same prompt, the median over texts."""
        count = sum(map(len, self.texts))
        own, others = self.speeds(), plain.speeds()
        return {
            "tokens": count,
            "M": round(count / self.passes, 3),
            "tokens a second": round(statistics.median(own), 2),
            "speedup": round(statistics.median(map(operator.truediv, own, others)), 3),
            "kept": round(self.kept / count, 4),
            "total variation": round(self.variation / count, 4),
            "perplexity": round(math.exp(self.surprisal / count), 3),
            "surprisal": round(self.surprisal / count, 4),
            "entropy": round(self.entropy / count, 4),
            "distinct 2-grams": round(distinct(self.texts, 2), 4),
            "distinct 3-grams": round(distinct(self.texts, 3), 4),
            "the plain text": round(sum(map(list.__eq__, self.texts, plain.texts)) / len(self.texts), 3),
        }


class Sampling:
    """Samples at one temperature, in several ways.

    Args:
        model: of transformers.
        stores: datastores to draft from, besides prompt lookup and recycled logits.
        temperature: of sampling; nothing else changes the model's distribution.
        length: most new tokens of a text.
    """

    def __init__(self, model: Any, stores: Sequence[Any], temperature: float, length: int) -> None:
        self.model = model
        self.stores = stores
        self.watched = self.sessions()
        self.temperature = temperature
        self.decoding = {
            "do_sample": True,
            "temperature": temperature,
            "top_k": 0,
            "top_p": 1.0,
            "max_new_tokens": length,
            "return_dict_in_generate": True,
            "output_scores": True,
        }
        ends = model.generation_config.eos_token_id
        self.ends = set(ends if isinstance(ends, list) else [ends])

    def measured(
        self, prompts: Sequence[list[int]], rules: Sequence[TypicalRule], rounds: int, seed: int
    ) -> dict[str, Figures]:
        """Return the figures of each way, by its name."""
        ways: dict[str, tuple[dict[str, Any], TypicalRule | None]] = {
            "plain": ({}, None),
            "exact": (self.drafted(), None),
        }
        for rule in rules:
            typical = {"acceptance": "typical", "typical_threshold": rule.threshold, "typical_alpha": rule.alpha}
            ways[f"typical, {rule.threshold:g}, {rule.alpha:g}"] = ({**self.drafted(), **typical}, rule)
        for way, _ in ways.values():  # what the first generation of a kind costs is not measured
            self.text(prompts[0], seed, {**way, "drafter": self.sessions()} if way else way)
        written = {name: Texts() for name in ways}
        far: dict[TypicalRule, list[float]] = {rule: [] for rule in rules}
        names = list(ways)
        for turn in range(rounds):
            for number, prompt in enumerate(prompts):
                first = (turn + number) % len(names)
                for name in names[first:] + names[:first]:
                    way, rule = ways[name]
                    began = time.perf_counter()
                    tokens, scores, counts = self.text(prompt, seed + turn, way)
                    written[name].seconds.append(time.perf_counter() - began)
                    written[name].passes += counts.forward_passes if counts else len(tokens)
                    origins = counts.origins[0] if counts else [0] * len(tokens)
                    written[name].add(tokens, scores, origins, rule)
                for tree, logits in self.steps(prompt, seed + turn):
                    for rule, distances in far.items():
                        distances.append(self.distance(rule, tree, logits))
        figures = {name: texts.figures(written["plain"]) for name, texts in written.items()}
        for name, (_, rule) in ways.items():
            if rule is not None:
                figures[name]["total variation at steps of exact sampling"] = round(sum(far[rule]) / len(far[rule]), 4)
        return figures

    def sessions(self) -> SessionFactory:
        """Return what makes the sessions of one way.

        They share a calibration and recycled logits that no other way has: all ways continue the same prompts from the
        same seeds, so the logits of one would draft the texts of the next.
        """
        return default_session_factory([*self.stores, rest_store.PromptLookup(), rest_store.RecycledLogits()])

    def drafted(self) -> dict[str, Any]:
        """Return arguments of `generate` that draft."""
        return {**DRAFTING, "drafter": self.sessions()}

    def text(self, prompt: list[int], seed: int, way: Mapping[str, Any]) -> tuple[list[int], torch.Tensor, Any]:
        """Return one text's new tokens, the scores of each, float32[tokens, vocabulary], and statistics if drafted."""
        ids = torch.tensor([prompt])
        torch.manual_seed(seed)
        output = self.model.generate(ids, attention_mask=torch.ones_like(ids), **self.decoding, **way)
        tokens = output.sequences[0, len(prompt) :].tolist()
        return tokens, torch.cat(output.scores), getattr(output, "statistics", None)

    def steps(self, prompt: list[int], seed: int) -> list[tuple[TokenTree | None, torch.Tensor]]:
        """Return the tree of each step of an exact sample, if there was one, and its logits, [width, vocabulary]."""
        passes: list[tuple[TokenTree | None, torch.Tensor]] = []
        trees: list[TokenTree] = []

        def note(module: Any, arguments: Any, output: Any) -> None:
            passes.append((trees.pop() if trees else None, output.logits[0]))

        with hooked(self.model, note):
            self.text(prompt, seed, {**DRAFTING, "drafter": lambda ids: Watched(self.watched(ids), trees)})
        return [(tree, logits) for tree, logits in passes[1:] if logits.shape[0] == 1 + len(tree or ())]

    def distance(self, rule: TypicalRule, tree: TokenTree | None, logits: torch.Tensor) -> float:
        """Return the total variation between the next token's distribution under `rule` and the model's."""
        if not tree:
            return 0.0
        edges = enumerate(zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True), start=1)
        children = {(parent + 1, token): node for node, (parent, token) in edges}
        processors = LogitsProcessorList([TemperatureLogitsWarper(self.temperature)])
        choice = Choice(processors, sample=True, rows=1, device=logits.device)
        step = TypicalStep(rule, children, choice, 0, torch.tensor([[0]]), logits, self.ends.__contains__)
        path = step.longest_path()
        return 1 - float(torch.softmax(logits[0] / self.temperature, dim=-1)[path[0]]) if path else 0.0


class Watched:
    """A draft session whose trees are kept.

    Args:
        session: the session.
        trees: where.
    """

    def __init__(self, session: Any, trees: list[TokenTree]) -> None:
        self._session = session
        self._trees = trees
        self.accept = session.accept
        self.close = session.close

    def draft(self, **limits: Any) -> TokenTree:
        """Return the session's tree."""
        tree: TokenTree = self._session.draft(**limits)
        self._trees[:] = [tree]
        return tree


@contextmanager
def hooked(model: Any, hook: Any) -> Iterator[None]:
    """Have a hook called after each forward pass."""
    handle = model.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def distinct(texts: Iterable[list[int]], size: int) -> float:
    """Return how many of all n-grams of `size` tokens are different ones."""
    grams = [tuple(text[start : start + size]) for text in texts for start in range(len(text) - size + 1)]
    return len(set(grams)) / max(1, len(grams))


if __name__ == "__main__":
    main()
