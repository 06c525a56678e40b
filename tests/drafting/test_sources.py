"""What is handed over as sources is checked at once, and each fault has a name."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import rest_store
from rest_store.datastore.tree import TokenTree
from rest_store.drafting.session import DraftSession
from rest_store.drafting.sources import PromptLookup, RecycledLogits, require_source_timeout, require_sources
from rest_store.errors import LimitError, NativeKernelError, SourceError
from tests.shared.strategies import ONE_TO_NINE, open_datastore, refused


class MyLookup(PromptLookup):
    pass


class Own:
    """A source as CONTRIBUTING.md describes it."""

    def draft_batch(self, contexts: Any, *, max_nodes: int, max_suffix: int, max_depth: int) -> list[TokenTree]:
        return [TokenTree([], [], []) for _ in contexts]


class OldFashioned:
    def draft_batch(self, contexts: Any) -> list[TokenTree]:
        return []


class Asynchronous(Own):
    async def draft_batch(self, contexts: Any, **limits: int) -> list[TokenTree]:  # type: ignore[override]
        return []


class WithEvidence(Own):
    def evidence(self, context: Any) -> None:
        return None


class WithEvidenceAsText(Own):
    evidence = "of a crime"


ONE = Own()
WRONG: dict[str, tuple[Any, str]] = {
    "a path": ("np.ds", "sources is a str"),
    "no list": (None, "sources is a NoneType"),
    "one source": (ONE, "sources is a Own"),
    "a set": ({ONE}, "sources is a set"),
    "a class as the list": (PromptLookup, "sources is the class PromptLookup"),
    "paths": (["np.ds"], "source 0 is a str"),
    "a class": ([PromptLookup], "source 0 is the class PromptLookup"),
    "a class of one's own": ([ONE, Own], "source 1 is the class Own"),
    "None": ([None], "source 0 is a NoneType"),
    "a number": ([3], "source 0 is a int"),
    "a list in the list": ([[ONE]], "source 0 is a list"),
    "twice the same": ([ONE, ONE], "source 1 is one of the others"),
    "two prompt lookups": ([PromptLookup(), PromptLookup()], "source 1 is a second PromptLookup()"),
    "prompt lookup and one of its kind": ([MyLookup(), PromptLookup()], "source 1 is a second PromptLookup()"),
    "two of recycled logits": ([RecycledLogits(), RecycledLogits()], "source 1 is a second RecycledLogits"),
    "nine": ([Own() for _ in range(9)], "number of sources is 9"),
    "seven with counts": ([PromptLookup(), *(Own() for _ in range(7))], "number of sources with counts is 7"),
    "no method": ([SimpleNamespace(draft_batch=3)], "draft_batch is not a method"),
    "other arguments": ([OldFashioned()], "draft_batch does not take these arguments"),
    "a coroutine": ([Asynchronous()], "draft_batch is a coroutine"),
    "evidence of other arguments": ([WithEvidence()], "evidence does not take these arguments"),
    "evidence that is no method": ([WithEvidenceAsText()], "evidence is not a method"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_not_a_list_of_sources_is_refused_by_name(name: str) -> None:
    sources, fragment = WRONG[name]
    refused(SourceError, lambda: require_sources("here", sources), "here: ", fragment)
    refused(SourceError, lambda: DraftSession(sources), "draft session: ", fragment)


def test_an_asyncio_client_is_no_source() -> None:
    client = rest_store.AsyncDatastoreClient("127.0.0.1:1")
    refused(SourceError, lambda: DraftSession([client]), "AsyncDatastoreClient, whose draft_batch is a coroutine")


def test_sources_are_taken_as_they_are_documented(tmp_path: Path) -> None:
    store = open_datastore(tmp_path, ONE_TO_NINE)
    client = rest_store.DatastoreClient("127.0.0.1:1")
    partial = SimpleNamespace(draft_batch=functools.partial(Own.draft_batch, ONE))
    require_sources("here", [store, client, PromptLookup(), RecycledLogits(), ONE, partial])
    require_sources("here", ())
    client.close()


def test_without_the_kernel_sources_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rest_store._kernel", None)
    monkeypatch.delattr(rest_store, "_kernel")
    refused(NativeKernelError, lambda: require_sources("here", [PromptLookup()]), "the native kernel")


@pytest.mark.parametrize("timeout", [None, 0, 0.5, np.float32(0.5), np.int64(1)])
def test_timeouts_are_numbers_of_seconds(timeout: Any) -> None:
    require_source_timeout("here", timeout)
    with DraftSession([Own()], [1], source_timeout=timeout) as session:
        session.draft()
        assert (0, "error") not in session.statistics.dropped


@pytest.mark.parametrize("timeout", ["1", True, float("nan"), -1, float("inf"), 1e30, [1], np.float32(-1), 1j])
def test_other_timeouts_are_refused(timeout: Any) -> None:
    refused(LimitError, lambda: require_source_timeout("here", timeout), "here: source_timeout")
    refused(LimitError, lambda: DraftSession([PromptLookup()], source_timeout=timeout), "draft session: source_timeout")
