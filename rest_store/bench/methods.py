"""The ways of writing that `bench speed` compares: what each passes to `model.generate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import rest_store
from rest_store.bench.assistant import AssistantRule, early_exit
from rest_store.bench.baselines import LongestMatch, MergedRules, PromptLookupRule, RestRule
from rest_store.errors import LimitError, RecordingError, describe
from rest_store.generation.generator import load_model

EARLY_EXIT = "early-exit:"
# The settings of the paper's Table 1: of HumanEval, and of MT-Bench and all like it.
NUCLEUS = {"humaneval": {"temperature": 0.8, "top_p": 0.95}, "": {"temperature": 0.7, "top_p": 0.8}}

Method = dict[str, Any]


def decoding(sampling: str, family: str) -> dict[str, Any]:
    """Return how prompts of a family are decoded, as arguments of `model.generate`.

    Args:
        sampling: "greedy" or "nucleus": the temperature and top-p that REST's paper gives the family (Table 1), and no
            other limit on the tokens that may be drawn.
        family: of the prompt.
    """
    if sampling == "greedy":
        return {"do_sample": False}
    settings = next(found for start, found in NUCLEUS.items() if family.startswith(start))
    return {"do_sample": True, "top_k": 0, **settings}


def load_assistant(model: Any, name: str, *, dtype: str, device: str | None) -> Any:
    """Return the smaller model called `name`, or for "early-exit:K" the first K layers of `model`.

    Raises:
        LimitError: K is no number of layers that can be left.
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
        stores: datastores; without any, no method that asks one.
        assistant: a smaller model, or None: no method with one.
        max_nodes: draft tokens of a step at most, of methods in our loop.
        only: names of methods to take beside plain generation; empty: all.

    Raises:
        RecordingError: a name of `only` is none of the methods.
    """

    def drafted(drafter: Any) -> Method:
        ours = {"custom_generate": rest_store.generate, "drafter": drafter, "max_nodes": max_nodes}
        return {**ours, "return_dict_in_generate": True}

    lookup = PromptLookupRule.of(tokens=10)
    methods: dict[str, Method] = {
        "plain": {},
        "transformers prompt lookup": {"prompt_lookup_num_tokens": 10},
        "no drafts": drafted(None),
        "prompt lookup": drafted(lookup),
    }
    if assistant is not None:
        methods["transformers assisted generation"] = {"assistant_model": assistant}
        methods["assistant"] = drafted(AssistantRule.of(assistant))
    if stores:
        methods["REST's rule"] = drafted(RestRule.of(LongestMatch(stores)))
        methods["merged rules"] = drafted(MergedRules.of([lookup, *(RestRule.of(store) for store in stores)]))
    methods["DraftSession"] = drafted([*stores, rest_store.PromptLookup(), rest_store.RecycledLogits()])
    return _only(methods, only)


def _only(methods: Mapping[str, Method], names: Sequence[str]) -> dict[str, Method]:
    for name in names:
        if name not in methods:
            expected = "one of " + ", ".join(repr(one) for one in methods)
            raise RecordingError(describe("--methods", "method", repr(name), expected))
    return {name: methods[name] for name in dict.fromkeys(["plain", *(names or methods)])}
