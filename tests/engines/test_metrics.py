"""Figures as lines of a log and as Prometheus metrics."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector

from rest_store.drafting.remembering import RememberCounts
from rest_store.engines import metrics
from rest_store.engines.counters import Counters, Figures
from rest_store.engines.metrics import LogLines, PrometheusCounters, line


@pytest.fixture
def counters() -> Counters:
    return Counters(["code.ds", "prompt"], most=3)


def figures(counters: Counters, sessions: int = 2) -> Figures:
    return counters.figures(sessions=sessions, opened=3, resumed=1)


def add(counters: Counters, *drafts: tuple[list[int], int]) -> None:
    for origins, accepted in drafts:
        counters.add_draft(origins, accepted)
    counters.calls += 1
    counters.seconds += 0.002


def test_draft_tokens_are_counted_by_position_and_by_source(counters: Counters) -> None:
    add(counters, ([0b01, 0b11, 0b10], 2), ([0b10, 0b01], 0))
    add(counters, ([0b01], 1))
    now = figures(counters)
    assert (now.drafted, now.accepted) == ((3, 2, 1), (2, 1, 0))
    assert now.drafted_by == {"code.ds": 4, "prompt": 3}
    assert now.accepted_by == {"code.ds": 3, "prompt": 1}
    assert (now.calls, now.sessions) == (2, 2)


def test_documents_are_counted_once_they_are_decided(counters: Counters) -> None:
    counters.documents += [RememberCounts(["a"]), RememberCounts(["b", "c"], added=2), RememberCounts(["d"], dropped=1)]
    assert (figures(counters).remembered, figures(counters).not_remembered) == (2, 1)
    counters.documents[0].added = 1
    assert figures(counters).remembered == 3
    assert counters.documents == []


def test_each_reason_is_said_once_and_few_are(counters: Counters) -> None:
    said = [counters.add_error("draft", ValueError(f"no\n{number // 2}")) for number in range(100)]
    assert said[:3] == ["ValueError: no 0", None, "ValueError: no 1"]
    assert len([reason for reason in said if reason]) == 16
    assert figures(counters).errors == {"draft": 100}


def test_a_line_says_what_is_new(counters: Counters) -> None:
    add(counters, ([0b01, 0b11], 2), ([0b10], 0))
    before = figures(counters)
    expected = "3 draft tokens, 2 accepted; by position 0.50, 1.00; accepted by source: code.ds 2, prompt 1; "
    assert line(before) == expected + "2 sessions; 2.00 ms a step"
    add(counters, ([0b10], 1))
    counters.add_error("source", "late")
    counters.remembered = 4
    expected = "1 draft token, 1 accepted; by position 1.00; accepted by source: code.ds 0, prompt 1; "
    expected += "2 sessions; 2.00 ms a step; 4 outputs remembered; errors: source 1"
    assert line(figures(counters), before) == expected
    assert line(before, before) == "0 draft tokens, 0 accepted; 2 sessions; 0.00 ms a step"


def test_lines_come_in_the_engines_rhythm(counters: Counters, caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    caplog.set_level(logging.INFO)
    lines = LogLines(logging.getLogger("test"), 10.0, lambda: now)
    for now in range(1, 51):
        if now in (5, 15, 16):
            add(counters, ([1], 1))
        lines(figures(counters))
    assert [record.getMessage()[:27] for record in caplog.records] == [
        "rest-store: 1 draft token, ",
        "rest-store: 2 draft tokens,",
    ]


def values() -> dict[tuple[str, ...], float]:
    """Return our metrics in the process's registry, by their names and labels without that of the engine."""
    families = [family for family in REGISTRY.collect() if family.name.startswith("rest_store_engine_")]
    return {
        (sample.name, *(label for name, label in sample.labels.items() if name != "engine")): sample.value
        for family in families
        for sample in family.samples
    }


@pytest.fixture
def registry() -> Any:
    """Leaves the process's registry as it was."""
    yield
    counters, sessions = metrics._metrics(("engine",))
    for metric in (*counters.values(), sessions):
        REGISTRY.unregister(metric)
    metrics._metrics.cache_clear()


@pytest.mark.usefixtures("registry")
def test_metrics_are_those_of_the_figures(counters: Counters) -> None:
    exported = PrometheusCounters({"engine": "0"})
    for _ in range(2):
        add(counters, ([0b01, 0b11], 2), ([0b10], 0))
        counters.add_error("source", "late")
        exported(figures(counters))
    exported(figures(counters, sessions=7))
    found = values()
    assert found["rest_store_engine_draft_tokens_total", "0"] == 4
    assert found["rest_store_engine_accepted_tokens_total", "1"] == 2
    assert found["rest_store_engine_accepted_tokens_total", "2"] == 0
    assert found["rest_store_engine_source_accepted_tokens_total", "code.ds"] == 4
    assert found["rest_store_engine_errors_total", "source"] == 2
    assert found["rest_store_engine_steps_total",] == 2
    assert found["rest_store_engine_sessions",] == 7


@pytest.mark.usefixtures("registry")
def test_engines_one_after_the_other_add_to_the_same_metrics(counters: Counters) -> None:
    for _ in range(2):
        exported = PrometheusCounters({"engine": "0"})
        add(counters, ([0b01], 1))
        exported(figures(counters))
    assert values()["rest_store_engine_steps_total",] == 1 + 2


# An engine's process, which ends without the finalizers of a server.
_ENGINE = """
import os
from rest_store.engines.counters import Counters
from rest_store.engines.metrics import PrometheusCounters

counters = Counters(["code.ds"], most=3)
counters.calls = 5
PrometheusCounters({"engine": "0"})(counters.figures(sessions=2, opened=3, resumed=1))
os._exit(0)
"""


def test_a_server_sees_the_metrics_of_the_engines_process(tmp_path: Path) -> None:
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", _ENGINE], check=True, env=environment)
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(tmp_path))
    assert registry.get_sample_value("rest_store_engine_steps_total", {"engine": "0"}) == 5
    assert registry.get_sample_value("rest_store_engine_sessions", {"engine": "0"}) == 2
