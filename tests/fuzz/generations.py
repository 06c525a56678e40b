"""Generations with drafts against plain `generate` of transformers, over tiny models of many architectures.

What must hold (docs/generation.md): the same tokens, greedy or sampled from the same seed; as many random draws; and where there
is no text, an error of ours, or the very one of plain generation.
"""

from __future__ import annotations

import gc
import random
import shutil
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import DynamicCache, LogitsProcessor, StaticCache

import rest_store
from rest_store.errors import RestStoreError
from tests.fuzz import campaign
from tests.fuzz.drafters import Drafter, some_drafter
from tests.shared.families import family_model
from tests.shared.tiny import ARCHITECTURES, VOCABULARY, text_tokenizer, tiny_model

# Besides those of `ARCHITECTURES`, all of which are supported; of these some are refused.
FAMILIES = (
    *("arcee", "biogpt", "bloom", "codegen", "dots1", "ernie4_5", "exaone4", "gemma", "glm", "glm4", "gpt_bigcode"),
    *(
        "gpt_neo",
        "gpt_oss",
        "gptj",
        "granitemoe",
        "helium",
        "hunyuan_v1_dense",
        "lfm2",
        "llama4_text",
        "mamba",
        "minimax",
    ),
    *("mpt", "nemotron", "olmo", "olmo3", "olmoe", "openai-gpt", "persimmon", "phi", "phimoe", "recurrent_gemma"),
    *("seed_oss", "smollm3", "xglm"),
)
MODEL_REFUSALS = frozenset({"ModelNotSupportedError", "CacheNotSupportedError"})
ROUNDING = 1e-3  # of scores, relative to the greatest


class Fresh(partial):
    """A value that each generation needs a new one of: called with the model."""


def plainly(values: dict[str, Any], model: Any) -> dict[str, Any]:
    return {name: value(model) if isinstance(value, Fresh) else value for name, value in values.items()}


@dataclass
class Plan:
    """One case.

    Attributes:
        model: makes the model, of a type of floating-point numbers.
        prepare: makes what the model is asked with: inputs, and options with them such as a filled cache.
        options: of plain generation.
        drafting: options of ours.
        way: how ours is called.
        words: the case, for people.
        refusals: names of errors that ours may raise though plain generation works.
        refused: whether it must raise one of ours.
    """

    model: Callable[..., Any]
    prepare: Callable[[Any], dict[str, Any]]
    seed: int
    options: dict[str, Any] = field(default_factory=dict)
    drafting: dict[str, Any] = field(default_factory=dict)
    way: str = "generate"
    words: list[str] = field(default_factory=list)
    refusals: set[str] = field(default_factory=set)
    refused: bool = False


# --- What is asked ----------------------------------------------------------------------------------------------------


class Drifting(LogitsProcessor):
    """Bans another token at each of its calls, which it counts."""

    def __init__(self) -> None:
        self.calls = 0
        self.banned = torch.zeros(VOCABULARY)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.banned[self.calls * 7 % VOCABULARY] += 3
        self.calls += 1
        return scores - self.banned[: scores.shape[-1]].to(scores)


def by_last_token(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Favours tokens near the last one of each row."""
    distance = (torch.arange(scores.shape[-1]) - input_ids[:, -1:]).abs()
    return scores - distance.to(scores) / 50


def few_small(limit: int, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
    """A criterion: enough tokens of a small number."""
    return torch.stack([(row < VOCABULARY // 3).sum() >= limit for row in input_ids])


def some_tokens(chance: random.Random, most: int) -> list[int]:
    return [chance.randrange(3, VOCABULARY) for _ in range(chance.randrange(1, most))]


# Options that change what is written; each is given a source of randomness.
SETTINGS: dict[str, Callable[[random.Random], Any]] = {
    "repetition_penalty": lambda chance: chance.choice([0.7, 1.2, 3.0]),
    "encoder_repetition_penalty": lambda chance: chance.choice([0.7, 1.5]),
    "no_repeat_ngram_size": lambda chance: chance.randrange(1, 4),
    "encoder_no_repeat_ngram_size": lambda chance: chance.randrange(1, 4),
    "bad_words_ids": lambda chance: [some_tokens(chance, 4) for _ in range(chance.randrange(1, 9))],
    "sequence_bias": lambda chance: {tuple(some_tokens(chance, 3)): chance.uniform(-9, 9) for _ in range(4)},
    "suppress_tokens": lambda chance: some_tokens(chance, 40),
    "begin_suppress_tokens": lambda chance: some_tokens(chance, 40),
    "forced_bos_token_id": lambda chance: chance.randrange(VOCABULARY),
    "forced_eos_token_id": lambda chance: chance.randrange(VOCABULARY),
    "min_new_tokens": lambda chance: chance.randrange(12),
    "exponential_decay_length_penalty": lambda chance: (chance.randrange(6), chance.uniform(1, 1.5)),
    "renormalize_logits": lambda chance: True,
    "remove_invalid_values": lambda chance: True,
    "logits_processor": lambda chance: Fresh(lambda _: [Drifting()]) if chance.random() < 0.5 else [by_last_token],
    "stopping_criteria": lambda chance: [partial(few_small, chance.randrange(1, 20))],
}
SAMPLING: dict[str, Callable[[random.Random], Any]] = {
    "temperature": lambda chance: chance.choice([0.2, 0.9, 2.5]),
    "top_k": lambda chance: chance.choice([0, 1, 5, 200]),
    "top_p": lambda chance: chance.choice([0.01, 0.5, 0.95]),
    "min_p": lambda chance: chance.choice([0.01, 0.3]),
    "typical_p": lambda chance: chance.choice([0.3, 0.9]),
    "epsilon_cutoff": lambda chance: 0.01,
    "eta_cutoff": lambda chance: 0.02,
}
MODES: dict[str, dict[str, Any]] = {
    "beams": {"num_beams": 2},
    "guidance": {"guidance_scale": 1.5},
    "attentions": {"output_attentions": True, "return_dict_in_generate": True},
    "lookup": {"prompt_lookup_num_tokens": 3},
    "contrast": {"penalty_alpha": 0.6, "top_k": 4},
}


def some_inputs(chance: random.Random) -> dict[str, torch.Tensor]:
    """Token ids of some rows, padded on the left; texts that repeat themselves among them."""
    rows, length = chance.choice([1, 1, 2, 3, 5]), chance.randrange(1, 20)
    few = chance.choice([3, 10, VOCABULARY])
    ids = torch.tensor([[chance.randrange(3, 3 + few) % VOCABULARY for _ in range(length)] for _ in range(rows)])
    mask = torch.ones_like(ids)
    for row in range(rows):
        padding = chance.randrange(length) if chance.random() < 0.5 else 0
        mask[row, :padding] = 0
        ids[row, :padding] = 0
    return {"input_ids": ids, "attention_mask": mask}


def some_cache(chance: random.Random, plan: Plan, inputs: dict[str, torch.Tensor], length: int) -> None:
    """Decide what keeps keys and values, and what is in it already. `length`: of the finished text, in tokens."""
    kind = chance.choice(["usual"] * 4 + ["named", "own", "own static", "filled", "filled static", "none"])
    plan.words.append(f"cache {kind}")
    if kind == "named":
        name = chance.choice(["dynamic", "static", "static", "offloaded", "offloaded_static", "quantized"])
        plan.words.append(name)
        plan.options["cache_implementation"] = name
        if name not in ("dynamic", "static"):
            plan.refusals.add("CacheNotSupportedError")
    elif kind == "none":
        plan.options["use_cache"] = False
    elif kind != "usual":
        most = length + chance.choice([0, 0, 7, 100, -1, -9]) + 30 * kind.startswith("filled")
        static = kind.endswith("static")
        fill = chance.randrange(1, 12) if kind.startswith("filled") else 0
        turn = torch.tensor([some_tokens(chance, 6)[:1] * 2] * len(inputs["input_ids"]))
        plan.words.append(f"{most} places, {fill} filled" if static else f"{fill} filled")

        def prepare(model: Any) -> dict[str, Any]:
            config = model.config
            cache = StaticCache(config=config, max_cache_len=max(1, most)) if static else DynamicCache(config=config)
            if not fill:
                return {**inputs, "past_key_values": cache}
            first = model.generate(**inputs, past_key_values=cache, max_new_tokens=fill, do_sample=False)
            ids = torch.cat([first, turn], dim=1)
            mask = torch.cat([inputs["attention_mask"], torch.ones_like(ids[:, inputs["input_ids"].shape[1] :])], dim=1)
            return {"input_ids": ids, "attention_mask": mask, "past_key_values": cache}

        plan.prepare = prepare


def some_plan(chance: random.Random) -> Plan:
    """A case, all but its drafter."""
    architecture = chance.choice([*ARCHITECTURES] * 2 + [*FAMILIES])
    attention = chance.choice([None, None, "eager", "sdpa"])
    positions = chance.choice([None, None, 24, 32])
    inputs = some_inputs(chance)
    rows, length = inputs["input_ids"].shape
    new = chance.choice([1, 2, chance.randrange(1, 16), chance.randrange(16, 45)])
    if positions is not None and chance.random() < 0.8:
        new = max(1, positions - length + chance.choice([0, 0, 0, -1, 1]))
    if architecture in ARCHITECTURES:
        make = partial(tiny_model, architecture, attention=attention, positions=positions)
    else:
        sizes = dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx"), positions) if positions else {}
        make = partial(family_model, architecture, **sizes)
    plan = Plan(make, lambda _: dict(inputs), chance.randrange(2**31))
    plan.words += [f"{architecture}, {attention}, {positions} positions, {rows} rows of {length} and {new} new"]
    if architecture not in ARCHITECTURES:
        plan.refusals |= MODEL_REFUSALS
    options = plan.options
    options.update({"max_length": length + new} if chance.random() < 0.3 else {"max_new_tokens": new})
    options["do_sample"] = chance.random() < 0.4
    for name in chance.sample(list(SETTINGS), chance.choice([0, 0, 1, 2, 4])):
        options[name] = SETTINGS[name](chance)
    if options["do_sample"]:
        for name in chance.sample(list(SAMPLING), chance.choice([0, 1, 2])):
            options[name] = SAMPLING[name](chance)
        if chance.random() < 0.3:
            options["num_return_sequences"] = chance.randrange(2, 4)
    if chance.random() < 0.5:
        options["eos_token_id"] = chance.sample(range(3, VOCABULARY), chance.choice([1, 6, 20]))
    if chance.random() < 0.3:
        options.update(return_dict_in_generate=True, output_scores=True, output_logits=chance.random() < 0.5)
    if chance.random() < 0.04:
        name = chance.choice(list(MODES))
        plan.words.append(name)
        options.update(MODES[name])
        plan.refusals.add("ModeNotSupportedError")
    if chance.random() < 0.1:
        both, masked = chance.random() < 0.5, chance.random() < 0.8

        def embedded(model: Any) -> dict[str, Any]:
            asked = {"inputs_embeds": model.get_input_embeddings()(inputs["input_ids"]).detach()}
            asked |= {"input_ids": inputs["input_ids"]} if both else {}
            return asked | ({"attention_mask": inputs["attention_mask"]} if masked else {})

        plan.words.append("embeddings" + " and ids" * both)
        plan.prepare = embedded
    elif chance.random() < 0.1:
        plan.words.append("no mask")
        plan.prepare = lambda _: {"input_ids": inputs["input_ids"]}
    else:
        some_cache(chance, plan, inputs, length + new)
    some_way(chance, plan, rows * options.get("num_return_sequences", 1))
    return plan


def some_way(chance: random.Random, plan: Plan, rows: int) -> None:
    """Decide how ours is called, and with which options."""
    drafting = plan.drafting
    plan.way = chance.choice(["generate"] * 4 + ["generator", "pieces", "left", "streamed", "broken stream"])
    drafting["adaptive"] = chance.random() < 0.3
    if chance.random() < 0.6:
        drafting["max_nodes"] = chance.choice([0, 1, 3, 16, 64, 200])
    if chance.random() < 0.3:
        drafting["widths"] = chance.choice([(1, 4, 17), (1,), (9,), (70, 1)])
    if chance.random() < 0.5:
        drafting["source_timeout"] = chance.choice([None, 0, 0.005, 20])
    if chance.random() < 0.03:
        drafting.update(
            chance.choice([{"max_nodes": -1}, {"max_nodes": 2000}, {"widths": (0,)}, {"source_timeout": -1}])
        )
        plan.refused = drafting.get("max_nodes") in (-1, 2000) or 0 in drafting.get("widths", ())
        plan.refused = plan.refused or drafting.get("source_timeout") == -1
    if plan.way == "generator" and chance.random() < 0.3:
        tokenizer = text_tokenizer()
        tokens = [chance.randrange(30, VOCABULARY) for _ in range(chance.randrange(1, 5))]
        plan.options["stop_strings"] = [tokenizer.decode([token]) or "a" for token in tokens]
        plan.options["tokenizer"] = tokenizer
    if plan.way in ("streamed", "broken stream") and rows > 1:
        if chance.random() < 0.8:
            plan.way = "generate"
        plan.refusals.add("ModeNotSupportedError")
    plan.words.append(plan.way)


# --- Both ways --------------------------------------------------------------------------------------------------------


class Collector:
    """A streamer that keeps all that it is given; `fails` after so many calls."""

    def __init__(self, fails: int | None = None) -> None:
        self.tokens: list[int] = []
        self.calls, self.fails, self.ended = 0, fails, False

    def put(self, value: torch.Tensor) -> None:
        self.tokens += value.flatten().tolist()
        self.calls += 1
        if self.calls == self.fails:
            raise BrokenStreamError

    def end(self) -> None:
        self.ended = True


class BrokenStreamError(Exception):
    """The reader of a stream went away."""


@dataclass
class Text:
    """What a generation wrote.

    Attributes:
        sequences: int64[rows, length].
        begin: where the prompt ends in `sequences`.
        output: what `generate` returned.
        draw: the next random number.
        streamed: what a streamer was given.
        pieces: the new tokens of each row as they came, whether or not to the end.
    """

    sequences: torch.Tensor
    begin: int = 0
    output: Any = None
    draw: float = 0.0
    streamed: list[int] | None = None
    pieces: list[list[int]] | None = None


def write(call: Callable[[], Any]) -> Text | BaseException:
    """Return what `call` writes, or what it raises."""
    try:
        output = call()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return error
    sequences = output if isinstance(output, torch.Tensor) else output.sequences
    return Text(sequences, output=output, draw=float(torch.rand(1)))


def plain_text(plan: Plan, model: Any) -> Text | BaseException:
    streamer = Collector() if plan.way == "streamed" else None
    begin = 0

    def call() -> Any:
        nonlocal begin
        asked = {**plan.prepare(model), **plainly(plan.options, model)}
        begin = asked["input_ids"].shape[1] if "input_ids" in asked else 0
        torch.manual_seed(plan.seed)
        return model.generate(**asked, streamer=streamer)

    text = write(call)
    if isinstance(text, Text):
        text.begin, text.streamed = begin, streamer and streamer.tokens
    return text


def drafted_text(plan: Plan, model: Any, drafter: Drafter, chance: random.Random) -> Text | BaseException:
    try:
        asked = {**plan.prepare(model), **plainly(plan.options, model)}
    except Exception as error:  # of plain generation, which filled a cache
        return error
    kept = {name: value.clone() for name, value in asked.items() if isinstance(value, torch.Tensor)}
    text = _drafted(plan, model, dict(asked), drafter, chance)
    for name, value in kept.items():
        assert torch.equal(asked[name], value), f"{name} was changed"
    return text


def _drafted(
    plan: Plan, model: Any, asked: dict[str, Any], drafter: Drafter, chance: random.Random
) -> Text | BaseException:
    made = drafter.make()
    torch.manual_seed(plan.seed)
    if plan.way in ("generate", "streamed", "broken stream"):
        fails = chance.randrange(2, 8) if plan.way == "broken stream" else None
        streamer = Collector(fails) if plan.way != "generate" else None
        ours = {**plan.drafting, **({"stream_to": streamer} if streamer else {})}
        held = [write(lambda: model.generate(**asked, custom_generate=rest_store.generate, drafter=made, **ours))]
        if isinstance(held[0], Text) and streamer is not None:
            assert streamer.ended
            held[0].streamed = streamer.tokens
        cache = asked.get("past_key_values")
        if isinstance(held[0], BrokenStreamError) and isinstance(cache, StaticCache) and places_of(cache) > 12:
            after_a_broken_stream(model, cache, held)
            return BrokenStreamError()
        return held[0]
    names = ("input_ids", "attention_mask", "inputs_embeds")
    prompt = {name: asked.pop(name) for name in names if name in asked}
    tokenizer = asked.pop("tokenizer", None)
    try:
        generator = rest_store.Generator(model, tokenizer, made, **plan.drafting)
        if plan.way == "generator":
            return write(lambda: generator.generate(prompt, **asked))
        generation = generator.begin(prompt, **asked)
        steps = chance.randrange(1, 8) if plan.way == "left" else 10**9
        pieces: list[list[int]] = []
        for step, piece in enumerate(generation, start=1):
            pieces = pieces or [[] for _ in piece.tokens]
            for row, tokens in zip(pieces, piece.tokens, strict=True):
                row += tokens
            if step == steps:
                break
        if plan.way == "left":
            generation.close()
            return Text(torch.zeros(0), pieces=pieces)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return error
    text = write(generation.result)
    if isinstance(text, Text):
        text.pieces = pieces
    return text


def places_of(cache: StaticCache) -> int:
    """Return the tokens that a cache has memory for."""
    return min(int(layer.max_cache_len) for layer in cache.layers)


def after_a_broken_stream(model: Any, cache: Any, held: list[Any]) -> None:
    """The caller answers another prompt with the same cache, and drops the error half-way: that text is unharmed."""
    cache.reset()
    prompt = torch.tensor([[5, 9, 11, 30]])
    fresh = DynamicCache(config=model.config)
    expected = model.generate(prompt, past_key_values=fresh, max_new_tokens=8, do_sample=False)
    first = model.generate(prompt, past_key_values=cache, max_new_tokens=4, do_sample=False)
    held.clear()
    gc.collect()
    rest = model.generate(first, past_key_values=cache, max_new_tokens=4, do_sample=False)
    assert torch.equal(rest, expected), f"with a cache that was used before: {rest.tolist()} for {expected.tolist()}"


# --- The judgement ----------------------------------------------------------------------------------------------------


def difference(plan: Plan, plain: Text, ours: Text) -> str:
    """Return in what ours differs from what plain generation wrote; empty: in nothing."""
    if ours.pieces is not None:
        for row, (tokens, whole) in enumerate(
            zip(ours.pieces, plain.sequences[:, plain.begin :].tolist(), strict=True)
        ):
            if whole[: len(tokens)] != tokens:
                return f"pieces of row {row}: {tokens} for {whole}"
            if plan.way == "pieces" and len(set(whole[len(tokens) :])) > 1:
                return f"pieces of row {row} end early: {tokens} for {whole}"
    if plan.way == "left":
        return ""
    if not torch.equal(ours.sequences, plain.sequences):
        return f"{ours.sequences.tolist()} for {plain.sequences.tolist()}"
    if ours.draw != plain.draw:
        return "another number of random draws"
    if plan.way == "streamed" and ours.streamed != plain.streamed:
        return f"streamed: {ours.streamed} for {plain.streamed}"
    if not isinstance(plain.output, torch.Tensor):
        if type(ours.output).__name__ != type(plain.output).__name__ and not hasattr(ours.output, "statistics"):
            return f"a {type(ours.output).__name__} for a {type(plain.output).__name__}"
        if (ours.output.past_key_values is None) != (plain.output.past_key_values is None):
            return f"past_key_values: {ours.output.past_key_values} for {plain.output.past_key_values}"
        if not {"eos_token_id", "stopping_criteria", "stop_strings"} & set(plan.options):
            for name in ("scores", "logits"):
                if not near(getattr(ours.output, name), getattr(plain.output, name)):
                    return f"other {name}"
    return ""


def near(ours: Any, plain: Any) -> bool:
    """Whether two tuples of scores differ by rounding only."""
    if ours is None or plain is None:
        return ours is plain
    for own, theirs in zip(ours, plain, strict=True):
        finite = theirs.isfinite()
        scale = theirs[finite].abs().max() if finite.any() else torch.ones(())
        if not torch.equal(own.isfinite(), finite) or ((own - theirs)[finite].abs() > ROUNDING * (1 + scale)).any():
            return False
    return True


def decided_by_rounding(plan: Plan, drafter: Drafter, chance: random.Random, plain: Text, ours: Text) -> bool:
    """Whether two nearly equal scores decided: then texts differ in float32, and do not with more digits.

    Where the first tokens differ, greedy search must have had to choose between such scores.
    """
    if ours.sequences.numel() == 0 or plan.refused:
        return False
    if not plan.options["do_sample"]:
        options = {**plan.options, "return_dict_in_generate": True, "output_scores": True}
        model = plan.model()
        output = model.generate(**plan.prepare(model), **plainly(options, model))
        begin = plain.sequences.shape[1] - len(output.scores)
        for row, (own, theirs) in enumerate(zip(ours.sequences.tolist(), plain.sequences.tolist(), strict=True)):
            places = [place for place, pair in enumerate(zip(own, theirs, strict=False)) if pair[0] != pair[1]]
            if places:
                scores = output.scores[places[0] - begin][row]
                if not scores[theirs[places[0]]] - scores[own[places[0]]] < ROUNDING * 0.1:
                    return False
    precise = plan.model().to(torch.float64)
    plan.drafting["adaptive"] = False
    expected, again = plain_text(plan, precise), drafted_text(plan, precise, drafter, chance)
    if not isinstance(expected, Text) or not isinstance(again, Text):
        return False
    return not difference(plan, expected, again)


def judge(plan: Plan, plain: Text | BaseException, ours: Text | BaseException) -> str:
    """Return how it ended: "answered", the name of an error, or what is wrong, after a "!"."""
    if isinstance(ours, BaseException):
        name = type(ours).__name__
        if isinstance(ours, BrokenStreamError) and plan.way == "broken stream":
            return name
        if isinstance(plain, Text):
            expected = isinstance(ours, RestStoreError) and (plan.refused or name in plan.refusals)
            return name if expected else "!"
        if isinstance(ours, RestStoreError):
            return name
        same = type(ours) is type(plain) and (not plan.refused or str(ours) == str(plain))
        return f"{name} of plain generation, too" if same else "!"
    if plan.refused:
        return "!a text for what must be refused"
    if isinstance(plain, BaseException):
        return f"!a text, where plain generation raises {type(plain).__name__}: {plain}"
    differs = difference(plan, plain, ours)
    return f"!{differs}" if differs else "answered"


class Fuzzer(campaign.Fuzzer):
    """Generates in both ways, and compares."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        super().__init__(directory, stack)
        warnings.simplefilter("ignore")
        transformers.utils.logging.set_verbosity_error()

    def run(self, chance: random.Random) -> Counter[str]:
        """Run one case."""
        plan = some_plan(chance)
        options = {name: value for name, value in plan.options.items() if name != "tokenizer"}
        self.case = f"{', '.join(plan.words)}\n{options}\n{plan.drafting}"
        try:
            model = plan.model()
        except ValueError:  # an attention that it does not have
            return Counter(["no such model"])
        attention = model.config._attn_implementation
        plain = plain_text(plan, model)
        texts = plain.sequences.tolist() if isinstance(plain, Text) else [[5, 9, 5, 9, 5]]
        self.directory.mkdir(exist_ok=True)
        try:
            drafter = some_drafter(chance, texts, self.directory)
            self.case += f"\ndrafter {drafter.name}"
            plan.refusals |= drafter.refusals
            plan.refused |= drafter.refused
            ours = drafted_text(plan, model, drafter, chance)
            outcome = judge(plan, plain, ours)
            if isinstance(ours, BaseException) and outcome == "!":
                raise ours
            texts_differ = outcome.startswith("!") and isinstance(plain, Text) and isinstance(ours, Text)
            if texts_differ and decided_by_rounding(plan, drafter, chance, plain, ours):
                outcome = "decided by rounding"
            assert not outcome.startswith("!"), outcome[1:]
            assert model.config._attn_implementation == attention
            if plan.way == "left" or chance.random() < 0.2:
                again = plain_text(plan, model)
                if isinstance(plain, Text):
                    assert isinstance(again, Text), again
                    assert torch.equal(plain.sequences, again.sequences), "plain generation differs afterwards"
        finally:
            shutil.rmtree(self.directory)
        return Counter([outcome])
