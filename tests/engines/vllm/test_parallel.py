"""With tensor parallelism, only the worker whose drafts vLLM takes drafts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rest_store.live.live_datastore import LiveDatastore
from tests.engines.vllm.engine import IN_VLLM, Request, answers, counted, engine
from tests.shared.live import until

pytestmark = IN_VLLM
RANKS = 2


@pytest.fixture(scope="module", autouse=True)
def workers() -> Iterator[None]:
    """New processes, since this one has threads.

    With a core for each, where vLLM would look for a NUMA node.
    """
    cores = sorted(os.sched_getaffinity(0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
        patch.setenv("VLLM_CPU_OMP_THREADS_BIND", f"{cores[0]}|{cores[-1]}")
        yield


@pytest.fixture(scope="module")
def written(model: Path, requests: list[Request]) -> list[list[int]]:
    """The text of plain vLLM with as many workers, whose sums are rounded in another order."""
    with engine(model, ranks=RANKS) as llm:
        return answers(llm, requests)


def in_worker(worker: Any) -> Any:
    """The totals of a worker's drafter, None where it has none."""
    ours = worker.model_runner.speculator.rest_store
    return None if ours is None else ours.drafter.metrics.totals()


def test_one_worker_drafts_remembers_and_counts(
    model: Path, datastore: Path, requests: list[Request], written: list[list[int]], tmp_path: Path
) -> None:
    settings = {"datastores": [str(datastore)], "remember": str(tmp_path / "live")}
    ended = [
        text
        for request, text in zip(requests, written, strict=True)
        if request.settings["max_tokens"]
    ]
    with engine(model, settings, ranks=RANKS) as llm:
        assert answers(llm, requests) == written
        with LiveDatastore.open(tmp_path / "live", read_only=True) as live:
            until(lambda: all(live.count(text[:10]) for text in ended if len(text) >= 10))
        assert answers(llm, requests) == written
        accepted = counted(llm, "spec_decode_num_accepted_tokens")
        totals, others = llm.collective_rpc(in_worker)
    own = sum(count for (name, _), count in totals.items() if name == "accepted_tokens")
    assert 0 < own <= accepted
    assert totals["source_accepted_tokens", "outputs"] > 0
    assert not [label for name, label in totals if name == "errors"]
    assert not totals.get(("dropped_documents", ""))
    assert others is None
    with LiveDatastore.open(tmp_path / "live", read_only=True) as live:
        longest = max(ended, key=len)
        assert live.count(longest[-40:]) > 0
