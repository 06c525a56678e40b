"""Generations with drafts against plain `generate` of transformers, over tiny models of many architectures.

What must hold (docs/how-to/generation.md): the same tokens, greedy or sampled from the same seed, after as many random
draws. A sampled batch draws its own numbers, the same whatever is drafted: it is compared with ours without drafts.
Where there is no text, an error of ours, or the very one of plain generation. Models have 64-bit numbers, so that
rounding, which differs between one token and a tree of them, decides nothing.
"""

from __future__ import annotations

import random
import shutil
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import StopStringCriteria

import rest_store
from rest_store.errors import RestStoreError
from tests.fuzz import campaign
from tests.fuzz.drafters import Drafter, Services, some_drafter
from tests.fuzz.plans import Plan, plainly, some_plan

# --- Both ways --------------------------------------------------------------------------------------------------------


class Collector:
    """A streamer that keeps all that it is given."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.ended = False

    def put(self, value: torch.Tensor) -> None:
        self.tokens += value.flatten().tolist()

    def end(self) -> None:
        self.ended = True


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
        begin = asked["input_ids"].shape[1]
        if plan.options["do_sample"] and plan.rows > 1:
            asked["custom_generate"] = rest_store.generate
            if "stop_strings" in asked:  # of these transformers tells no loop but its own
                criterion = StopStringCriteria(asked.pop("tokenizer"), asked.pop("stop_strings"))
                asked["stopping_criteria"] = [*asked.get("stopping_criteria", []), criterion]
        torch.manual_seed(plan.seed)
        return model.generate(**asked, streamer=streamer)

    text = write(call)
    if isinstance(text, Text):
        text.begin, text.streamed = begin, None if streamer is None else streamer.tokens
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
    if plan.way in ("generate", "streamed"):
        streamer = Collector() if plan.way == "streamed" else None
        ours = {**plan.drafting, **({"stream_to": streamer} if streamer else {})}
        text = write(lambda: model.generate(**asked, custom_generate=rest_store.generate, drafter=made, **ours))
        if isinstance(text, Text) and streamer is not None:
            assert streamer.ended
            text.streamed = streamer.tokens
        return text
    names = ("input_ids", "attention_mask")
    prompt = {name: asked.pop(name) for name in names if name in asked}
    tokenizer = asked.pop("tokenizer", None)
    try:
        generator = rest_store.Generator(model, tokenizer, made, **plan.drafting)
        if plan.way == "generator":
            return write(lambda: generator.generate(prompt, **asked).sequences)
        generation = generator.stream(prompt, **asked)
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


# --- The judgement ----------------------------------------------------------------------------------------------------


def difference(plan: Plan, plain: Text, ours: Text) -> str:
    """Return in what ours differs from what plain generation wrote; empty: in nothing."""
    if ours.pieces is not None:
        texts = plain.sequences[:, plain.begin :].tolist()
        for row, (tokens, whole) in enumerate(zip(ours.pieces, texts, strict=True)):
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
        static = plan.options.get("cache_implementation") == "static"  # ours returns none of these
        if not static and (ours.output.past_key_values is None) != (plain.output.past_key_values is None):
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
    return all(torch.allclose(own, theirs, equal_nan=True) for own, theirs in zip(ours, plain, strict=True))


def judge(plan: Plan, plain: Text | BaseException, ours: Text | BaseException) -> str:
    """Return how it ended: "answered" or the name of an error.

    Raises:
        AssertionError: it is not what is promised.
        BaseException: that of ours, where plain generation writes a text or raises another one.
    """
    if isinstance(ours, BaseException):
        name = type(ours).__name__
        if isinstance(plain, BaseException) and isinstance(ours, RestStoreError):
            return name
        if type(ours) is type(plain) and str(ours) == str(plain):
            return f"{name} of plain generation, too"
        raise ours
    if isinstance(plain, BaseException):
        if plan.way == "left":
            return "left before plain generation fails"
        drawing = isinstance(plain, RuntimeError) and "probability tensor" in str(plain) and len(ours.sequences) > 1
        assert drawing, f"a text, where plain generation raises {type(plain).__name__}: {plain}"
        return "answered, where plain generation fails to draw for a row that has ended"
    differs = difference(plan, plain, ours)
    assert not differs, differs
    return "answered"


class Fuzzer(campaign.Fuzzer):
    """Generates in both ways, and compares."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        super().__init__(directory, stack)
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.callback(transformers.utils.logging.set_verbosity, transformers.utils.logging.get_verbosity())
        transformers.utils.logging.set_verbosity_error()
        self._services = Services(directory, stack)

    def run(self, chance: random.Random) -> Counter[str]:
        """Run one case."""
        plan = some_plan(chance)
        options = {name: value for name, value in plan.options.items() if name != "tokenizer"}
        self.case = f"{', '.join(plan.words)}\n{options}\n{plan.drafting}"
        model = plan.model()
        attention = model.config._attn_implementation
        plain = plain_text(plan, model)
        texts = plain.sequences.tolist() if isinstance(plain, Text) else [[5, 9, 5, 9, 5]]
        datastores = self.directory / "datastores"
        datastores.mkdir()
        try:
            drafter = some_drafter(chance, texts, datastores, self._services)
            self.case += f"\ndrafter {drafter.name}"
            outcome = judge(plan, plain, drafted_text(plan, model, drafter, chance))
        finally:
            shutil.rmtree(datastores)
        assert model.config._attn_implementation == attention
        if isinstance(plain, Text) and (plan.way == "left" or chance.random() < 0.2):
            again = plain_text(plan, model)
            assert isinstance(again, Text), again
            assert torch.equal(plain.sequences, again.sequences), "plain generation differs afterwards"
        return Counter([outcome])
