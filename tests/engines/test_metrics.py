"""What a drafter counts, as totals, lines of a log and Prometheus metrics."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest
from prometheus_client import REGISTRY, CollectorRegistry

from rest_store.drafting.remembering import RememberCounts
from rest_store.engines import engine_metrics
from rest_store.engines.engine_metrics import EngineMetrics, summary_line

LOG = logging.getLogger("test")
SOURCES = ["code.ds", "prompt"]


@pytest.fixture
def counted() -> EngineMetrics:
    return EngineMetrics(SOURCES, LOG)


def add(counted: EngineMetrics, *drafts: tuple[list[int], Sequence[int]]) -> None:
    for origins, accepted in drafts:
        counted.count_draft(origins, accepted)
    counted.count("steps")
    counted.count("seconds", 0.002)


def test_documents_are_counted_once_they_are_decided(counted: EngineMetrics) -> None:
    waiting = RememberCounts(["a"])
    counted.documents += [
        waiting,
        RememberCounts(["b", "c"], added=2),
        RememberCounts(["d"], dropped=1),
    ]
    assert counted.totals()["remembered_documents", ""] == 2
    assert counted.totals()["dropped_documents", ""] == 1
    waiting.added = 1
    assert [counted.totals()["remembered_documents", ""] for _ in range(2)] == [3, 3]


def test_each_reason_is_said_once_and_few_are(
    counted: EngineMetrics, caplog: pytest.LogCaptureFixture
) -> None:
    """Few reasons of one kind are logged, so that others are, too."""
    for number in range(100):
        counted.count_error("draft", ValueError(f"no\n{number // 2}"))
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        f"rest-store: no drafts (draft): ValueError: no {number}; said once" for number in range(4)
    ]
    for number in range(100):
        counted.count_error(f"kind {number}", f"other {number}")
    assert len(caplog.records) == 16
    assert counted.totals()["errors", "draft"] == 100


def test_a_line_says_what_happened(counted: EngineMetrics) -> None:
    add(counted, ([0b01, 0b11], [0, 1]), ([0b10], []))
    expected = "3 draft tokens, 2 accepted; by source: code.ds 2, prompt 1; "
    assert summary_line(counted.totals(), 2) == expected + "2 sessions; 2.00 ms a step"
    counted.count_error("source", "late")
    counted.count("remembered_documents", 4)
    expected += "1 session; 2.00 ms a step; 4 outputs remembered; errors: source 1"
    assert summary_line(counted.totals(), 1) == expected
    assert summary_line(Counter(), 2) == "0 draft tokens, 0 accepted; 2 sessions; 0.00 ms a step"


def test_lines_come_in_the_engines_rhythm_with_what_is_new(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 0.0
    caplog.set_level(logging.INFO)
    counted = EngineMetrics(SOURCES, LOG, 10.0, clock=lambda: now)
    for now in range(1, 51):
        if now in (5, 15, 16):
            add(counted, ([1], [0]))
        counted.publish(sessions=2)
    assert [record.getMessage()[:27] for record in caplog.records] == [
        "rest-store: 1 draft token, ",
        "rest-store: 2 draft tokens,",
    ]


@pytest.fixture
def registry() -> Iterator[CollectorRegistry]:
    """The process's registry, which is left as it was."""
    yield REGISTRY
    counters, sessions = engine_metrics._metrics(("engine",))
    for metric in (*counters.values(), sessions):
        REGISTRY.unregister(metric)
    engine_metrics._metrics.cache_clear()


def test_metrics_are_exported(registry: CollectorRegistry) -> None:
    """Figures of engines that run one after the other add up."""
    for _ in range(2):
        counted = EngineMetrics(SOURCES, LOG, labels={"engine": "0"})
        for sessions in (1, 7):
            add(counted, ([0b01, 0b11], [0, 1]), ([0b10], []))
            counted.count_error("source", "late")
            counted.publish(sessions)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"rest_store_engine_{name}", {"engine": "0", **labels})

    assert value("draft_tokens_total") == 12
    assert value("accepted_tokens_total") == 8
    assert value("source_accepted_tokens_total", source="code.ds") == 8
    assert value("errors_total", where="source") == 4
    assert value("steps_total") == 4
    assert value("sessions") == 7
