"""The methods that `bench speed` compares: the arguments of `model.generate` for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import rest_store
from rest_store.bench.assistant import AssistantRule, early_exit
from rest_store.bench.baselines import LongestMatch, PromptLookupRule, RestRule
from rest_store.errors import LimitError, RecordingError, describe
from rest_store.generation.generator import load_model

EARLY_EXIT = "early-exit:"
# The settings of the paper's Table 1: of HumanEval, and of MT-Bench and all like it.
NUCLEUS = {"humaneval": {"temperature": 0.8, "top_p": 0.95}, "": {"temperature": 0.7, "top_p": 0.8}}

Method = dict[str, Any]


def decoding(sampling: str, family: str) -> dict[str, Any]:
    """Return how prompts of a family are decoded, as arguments of `model.generate`.

    Args:
        sampling: "greedy", or "nucleus": temperature and top-p of REST's Table 1 for the family, without top-k.
        family: of the prompt.
    """
    if sampling == "greedy":
        return {"do_sample": False}
    settings = next(settings for start, settings in NUCLEUS.items() if family.startswith(start))
    return {"do_sample": True, "top_k": 0, **settings}


def load_assistant(model: Any, name: str, *, dtype: str, device: str | None) -> Any:
    """Return the smaller model called `name`, or for "early-exit:K" the first K layers of `model`.

    Raises:
        LimitError: K is not a valid number of layers.
        ModelLoadError: the model cannot be loaded.
        ModelNotSupportedError: the layers of `model` are not found.
    """
    if not name.startswith(EARLY_EXIT):
        return load_model(name, dtype=dtype, device=device)[0]
    layers = name.removeprefix(EARLY_EXIT)
    if not layers.isdecimal():
        raise LimitError(describe("--assistant", "number of layers", repr(layers), "a number, such as early-exit:8"))
    return early_exit(model, int(layers))


def make_methods(
    stores: Sequence[Any], assistant: Any, *, max_nodes: int, only: Sequence[str] = ()
) -> dict[str, Method]:
    """Return the methods by name, plain generation first.

    Args:
        stores: datastores; without any, methods that need one are left out.
        assistant: a smaller model; None: methods that need one are left out.
        max_nodes: most draft tokens of a step, for methods in the package's loop.
        only: names of methods beside plain generation; empty: all.

    Raises:
        RecordingError: `only` has the name of an unknown method.
    """

    def drafted(drafter: Any) -> Method:
        options = {"custom_generate": rest_store.generate, "drafter": drafter, "max_nodes": max_nodes}
        return {**options, "return_dict_in_generate": True}

    methods: dict[str, Method] = {
        "plain": {},
        "transformers prompt lookup": {"prompt_lookup_num_tokens": 10},
        "no drafts": drafted(None),
        "prompt lookup": drafted(PromptLookupRule.of(tokens=10)),
    }
    if assistant is not None:
        methods["transformers assisted generation"] = {"assistant_model": assistant}
        methods["assistant"] = drafted(AssistantRule.of(assistant))
    if stores:
        methods["REST's rule"] = drafted(RestRule.of(LongestMatch(stores)))
    methods["DraftSession"] = drafted([*stores, rest_store.PromptLookup(), rest_store.RecycledLogits()])
    for name in only:
        if name not in methods:
            expected = "one of " + ", ".join(map(repr, methods))
            raise RecordingError(describe("--method", "method", repr(name), expected))
    return {name: methods[name] for name in dict.fromkeys(["plain", *(only or methods)])}
