"""What is handed over as sources is checked at once, and each fault has a name."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import rest_store
from rest_store.drafting.session import DraftSession
from rest_store.drafting.sources import (
    PromptLookup,
    RecycledLogits,
    require_source_timeout,
    require_sources,
)
from rest_store.errors import ArgumentError, NativeKernelError, SourceError
from tests.shared.members import ScriptedSource, scored
from tests.shared.strategies import refused


class MyLookup(PromptLookup):
    pass


ONE = ScriptedSource(scored([1], [-1], [0.5]))
WRONG: dict[str, tuple[Any, str]] = {
    "a path": ("np.ds", "sources is a str"),
    "no list": (None, "sources is a NoneType"),
    "one source": (ONE, "sources is a ScriptedSource"),
    "a class as the list": (PromptLookup, "sources is the class PromptLookup"),
    "paths": (["np.ds"], "source 0 is a str"),
    "a class": ([PromptLookup], "source 0 is the class PromptLookup"),
    "a class of one's own": ([ONE, ScriptedSource], "source 1 is the class ScriptedSource"),
    "a list in the list": ([[ONE]], "source 0 is a list"),
    "twice the same": ([ONE, ONE], "source 1 occurs twice"),
    "two prompt lookups": ([MyLookup(), PromptLookup()], "source 1 is a second PromptLookup"),
    "two of recycled logits": (
        [RecycledLogits(), RecycledLogits()],
        "source 1 is a second RecycledLogits",
    ),
    "seven services": (
        [PromptLookup(), *(ScriptedSource() for _ in range(7))],
        "7 datastores, services and grammars",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_not_a_list_of_sources_is_refused_by_name(name: str) -> None:
    sources, fragment = WRONG[name]
    refused(SourceError, lambda: require_sources("here", sources), "here: ", fragment)
    refused(SourceError, lambda: DraftSession(sources), "draft session: ", fragment)


def test_without_the_kernel_sources_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rest_store._kernel", None)
    monkeypatch.delattr(rest_store, "_kernel")
    refused(NativeKernelError, lambda: require_sources("here", [PromptLookup()]), "kernel")


@pytest.mark.parametrize("timeout", [None, 0, 0.5, np.float32(0.5), np.int64(1)])
def test_timeouts_are_numbers_of_seconds(timeout: Any) -> None:
    require_source_timeout("here", timeout)
    with DraftSession([ONE], [1], source_timeout=timeout) as session:
        session.draft()
        assert ("scripted", "error") not in session.statistics.omissions


@pytest.mark.parametrize(
    "timeout", ["1", True, float("nan"), -1, float("inf"), 1e30, [1], np.float32(-1), 1j]
)
def test_other_timeouts_are_refused(timeout: Any) -> None:
    refused(ArgumentError, lambda: require_source_timeout("here", timeout), "here: source_timeout")
    refused(
        ArgumentError,
        lambda: DraftSession([PromptLookup()], source_timeout=timeout),
        "draft session: source_timeout",
    )
