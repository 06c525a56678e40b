"""The methods that `bench speed` compares: the arguments of `model.generate` for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import rest_store
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.sources import require_sources
from rest_store.errors import RecordingError, describe

# The settings of the paper's Table 1: of HumanEval, and of MT-Bench and all like it.
_NUCLEUS = {"humaneval": {"temperature": 0.8, "top_p": 0.95}, "": {"temperature": 0.7, "top_p": 0.8}}

Method = dict[str, Any]


def decoding(sampling: str, family: str) -> dict[str, Any]:
    """Return how prompts of a family are decoded, as arguments of `model.generate`.

    Args:
        sampling: "greedy", or "nucleus": temperature and top-p of REST's Table 1 for the family, without top-k.
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
        "DraftSession": {**drafted(sources(*stores)), "calibration": calibration},
    }
    for name in only:
        if name not in methods:
            expected = "one of " + ", ".join(map(repr, methods))
            raise RecordingError(describe("--method", "method", repr(name), expected))
    return {name: methods[name] for name in dict.fromkeys(["plain", *(only or methods)])}
