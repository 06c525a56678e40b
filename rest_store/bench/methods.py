"""The methods that `bench speed` compares: the arguments of `model.generate` for each. Torch is imported here."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

import rest_store
from rest_store.bench.baselines import LongestMatch, PromptLookupRule, RestRule
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.sources import require_sources
from rest_store.errors import LimitError, ModelNotSupportedError, RecordingError, describe
from rest_store.generation.model import load_model

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
    stores: Sequence[Any],
    assistant: Any,
    *,
    service: Any = None,
    max_nodes: int,
    only: Sequence[str] = (),
    calibration: Calibration | None = None,
) -> dict[str, Method]:
    """Return the methods by name, plain generation first.

    Args:
        stores: datastores; without any, methods that need one are left out.
        assistant: a smaller model; None: transformers' assisted generation is left out.
        service: a client of a service of `stores`; None: sessions through a service are left out.
        max_nodes: most draft tokens of a step, for methods in the package's loop.
        only: names of methods beside plain generation; empty: all.
        calibration: of sessions; None: that of the package.

    Raises:
        RecordingError: `only` has the name of an unknown method.
        SourceError: more datastores than a session can hold.
    """

    def sources(*counted: Any) -> list[Any]:
        return [*counted, rest_store.PromptLookup(), rest_store.RecycledLogits()]

    require_sources("--datastore", sources(*stores))

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
    if stores:
        methods["REST's rule"] = drafted(RestRule.of(LongestMatch(stores)))
    methods["DraftSession"] = {**drafted(sources(*stores)), "calibration": calibration}
    if service is not None:
        methods["DraftSession through a service"] = {**drafted(sources(service)), "calibration": calibration}
    for name in only:
        if name not in methods:
            expected = "one of " + ", ".join(map(repr, methods))
            raise RecordingError(describe("--method", "method", repr(name), expected))
    return {name: methods[name] for name in dict.fromkeys(["plain", *(only or methods)])}


def early_exit(model: Any, layers: int) -> Any:
    """Return the first layers of a model with its own final norm and head, as a smaller model that shares its weights.

    What `assistant_early_exit` of `transformers` is, as a model of its own. Only models that were trained for it
    (LayerSkip, arXiv 2404.16710) write well from there; of others it shows what an untrained assistant costs.

    Args:
        model: a decoder-only model of `transformers`; not changed.
        layers: how many of its layers, 1 to all but one.

    Raises:
        LimitError: `layers` is out of range.
        ModelNotSupportedError: no list of layers, of the number that the configuration says, is found in the model.
    """
    depth = model.config.get_text_config(decoder=True).num_hidden_layers
    if not 1 <= layers < depth:
        raise LimitError(describe("early exit", "number of layers", layers, f"1..{depth - 1}, of the model's {depth}"))
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    smaller = copy.deepcopy(model, shared)  # what the memo holds is not copied
    config = smaller.config.get_text_config(decoder=True)
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None) is not None:
        config.layer_types = config.layer_types[:layers]
    for parent in smaller.modules():
        for name, child in parent.named_children():
            if isinstance(child, torch.nn.ModuleList) and len(child) == depth:
                setattr(parent, name, child[:layers])
                return smaller
    found = f"no torch.nn.ModuleList of {depth}"
    raise ModelNotSupportedError(describe(type(model).__name__, "its layers", found, "one list of all layers"))
