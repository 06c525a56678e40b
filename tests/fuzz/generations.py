"""Generations with drafts equal plain `generate` of transformers, over many tiny models.

What must hold (docs/how-to/generation.md): the same tokens, greedy or sampled from the same seed,
after as many random draws. A sampled batch draws its own numbers, the same whatever is drafted: it
is compared with ours without drafts. Where there is no text, an error of ours, or the very one of
plain generation. Models have 64-bit numbers, so that rounding, which differs between one token and
a tree of them, decides nothing.
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
from rest_store.generation.seam import CACHE
from tests.fuzz import campaign
from tests.fuzz.drafters import some_drafter
from tests.fuzz.plans import Plan, some_plan
from tests.shared.services import running
from tests.shared.strategies import Corpus, write_datastore
from tests.shared.tiny import VOCABULARY


@dataclass
class Text:
    """What a generation wrote.

    Attributes:
        sequences: int64[rows, length].
        output: what `generate` returned.
        draw: the next random number.
    """

    sequences: torch.Tensor
    output: Any
    draw: float


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
    arguments = {**plan.inputs, **plan.options}
    if plan.options["do_sample"] and plan.rows > 1:
        arguments["custom_generate"] = rest_store.generate
        if "stop_strings" in arguments:  # of these transformers tells no loop but its own
            criterion = StopStringCriteria(
                arguments.pop("tokenizer"), arguments.pop("stop_strings")
            )
            arguments["stopping_criteria"] = [*arguments.get("stopping_criteria", []), criterion]
    torch.manual_seed(plan.seed)
    return write(lambda: model.generate(**arguments))


def drafted_text(plan: Plan, model: Any, drafter: list[Any]) -> Text | BaseException:
    arguments: dict[str, Any] = {**plan.inputs, **plan.options}
    inputs_before = {name: value.clone() for name, value in plan.inputs.items()}
    torch.manual_seed(plan.seed)
    if plan.way == "generate":
        ours = {"custom_generate": rest_store.generate, "sources": drafter, **plan.drafting}
        text = write(lambda: model.generate(**arguments, **ours))
    else:
        prompt = {name: arguments.pop(name) for name in plan.inputs}
        text = write(
            lambda: (
                rest_store.Generator(model, None, drafter, **plan.drafting)
                .generate(prompt, **arguments)
                .sequences
            )
        )
    for name, value in inputs_before.items():
        assert torch.equal(plan.inputs[name], value), f"{name} was changed"
    return text


def difference(plan: Plan, plain: Text, ours: Text) -> str:
    """Return in what ours differs from what plain generation wrote; empty: in nothing."""
    if not torch.equal(ours.sequences, plain.sequences):
        return f"{ours.sequences.tolist()} for {plain.sequences.tolist()}"
    if ours.draw != plain.draw:
        return "another number of random draws"
    if not isinstance(plain.output, torch.Tensor):
        if type(ours.output).__name__ != type(plain.output).__name__ and not hasattr(
            ours.output, "statistics"
        ):
            return f"a {type(ours.output).__name__} for a {type(plain.output).__name__}"
        static = plan.options.get("cache_implementation") == "static"  # ours returns none of these
        if not static and (getattr(ours.output, CACHE) is None) != (
            getattr(plain.output, CACHE) is None
        ):
            return f"{CACHE}: {getattr(ours.output, CACHE)} for {getattr(plain.output, CACHE)}"
        if not {"eos_token_id", "stopping_criteria", "stop_strings"} & set(plan.options):
            for name in ("scores", "logits"):
                if not near(getattr(ours.output, name), getattr(plain.output, name)):
                    return f"other {name}"
    return ""


def near(ours: Any, plain: Any) -> bool:
    """Whether two tuples of scores differ by rounding only."""
    if ours is None or plain is None:
        return ours is plain
    return all(
        torch.allclose(own, theirs, equal_nan=True) for own, theirs in zip(ours, plain, strict=True)
    )


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
        drawing = (
            isinstance(plain, RuntimeError)
            and "probability tensor" in str(plain)
            and len(ours.sequences) > 1
        )
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
        stack.callback(
            transformers.utils.logging.set_verbosity, transformers.utils.logging.get_verbosity()
        )
        transformers.utils.logging.set_verbosity_error()
        served = write_datastore(
            directory / "served", Corpus(VOCABULARY, [[list(range(VOCABULARY))], [[5, 9] * 20]])
        )
        self._target = stack.enter_context(running(served)).target

    def run(self, chance: random.Random) -> Counter[str]:
        """Run one case."""
        plan = some_plan(chance)
        options = {name: value for name, value in plan.options.items() if name != "tokenizer"}
        self.case = (
            f"{plan.words}, {', '.join(plan.inputs)}, {plan.way}\n{options}\n{plan.drafting}"
        )
        model = plan.model()
        attention = model.config._attn_implementation
        plain = plain_text(plan, model)
        texts = plain.sequences.tolist() if isinstance(plain, Text) else [[5, 9, 5, 9, 5]]
        datastores = self.directory / "datastores"
        datastores.mkdir()
        try:
            name, drafter = some_drafter(chance, texts, datastores, self._target)
            self.case += f"\ndrafter {name}"
            outcome = judge(plan, plain, drafted_text(plan, model, drafter))
        finally:
            shutil.rmtree(datastores)
        assert model.config._attn_implementation == attention
        if isinstance(plain, Text) and chance.random() < 0.2:
            again = plain_text(plan, model)
            assert isinstance(again, Text), again
            assert torch.equal(plain.sequences, again.sequences), (
                "plain generation differs afterwards"
            )
        return Counter([outcome])
