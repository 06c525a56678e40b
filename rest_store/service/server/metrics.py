"""The counters of a service, as plain numbers, and their exposition for Prometheus."""

from __future__ import annotations

import platform
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from rest_store.service.server.hosted_live_datastore import HostedLiveDatastore

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from rest_store.live.live_info import LiveInfo, WriterCounts
    from rest_store.service.server.hosted_datastore import HostedDatastore
    from rest_store.service.server.sessions import Sessions

# Upper bounds of buckets in seconds; a last bucket has no bound.
SECONDS = (
    *(10e-6, 20e-6, 50e-6, 100e-6, 200e-6, 500e-6),
    *(1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0),
)
MATCH_LENGTHS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


class MethodCounts:
    """Counts of one RPC method. Only its service's event loop writes; any thread may read."""

    def __init__(self) -> None:
        self.codes: dict[str, int] = {}
        self.seconds = [0] * (len(SECONDS) + 1)
        self.seconds_sum = 0.0
        self.bytes_received = 0
        self.bytes_sent = 0

    def answered(self, seconds: float, received: int, sent: int) -> None:
        """Count one request that was answered: its time in the service, and the sizes of its two messages in bytes."""
        codes = self.codes
        codes["OK"] = codes.get("OK", 0) + 1
        self.seconds[bisect_left(SECONDS, seconds)] += 1
        self.seconds_sum += seconds
        self.bytes_received += received
        self.bytes_sent += sent

    def ended(self, code: str) -> None:
        """Count one request that ended with the gRPC status `code`."""
        self.codes[code] = self.codes.get(code, 0) + 1


class Metrics:
    """All counters of a service; `collect` yields them under their public names."""

    def __init__(self, methods: Iterable[str], version: str, kernel: str) -> None:
        self.methods = {method: MethodCounts() for method in methods}
        self.build = {"version": version, "kernel": kernel, "python": platform.python_version()}
        self.match_lengths = [0] * 65
        self.trees = 0
        self.nodes = 0
        self.evidence_rows = 0
        self.session_trees = 0
        self.session_steps = 0
        self.session_tokens = 0
        self.rejected: dict[str, int] = {}
        self.reloads = {"reloaded": 0, "refused": 0}

    def reject(self, reason: str) -> None:
        """Count one request that was refused before its message was read."""
        self.rejected[reason] = self.rejected.get(reason, 0) + 1

    def collect(
        self, in_flight: int, streams: int, draining: bool, served: Iterable[HostedDatastore], sessions: Sessions | None
    ) -> Iterator[Metric]:
        """Yield all counters, and gauges as they are now, as Prometheus metrics."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        build = GaugeMetricFamily("rest_store_build_info", "Version and build; always 1.", labels=list(self.build))
        build.add_metric(list(self.build.values()), 1)
        yield build
        yield from self._of_requests()
        yield from self._of_answers()
        for name, meaning, label, counts in (
            ("rest_store_rejected", "Requests refused before they were read, by reason.", "reason", self.rejected),
            ("rest_store_reloads", "Reloads of a datastore, by outcome.", "outcome", self.reloads),
        ):
            counter = CounterMetricFamily(name, meaning, labels=[label])
            for value, count in list(counts.items()):
                counter.add_metric([value], count)
            yield counter
        yield GaugeMetricFamily("rest_store_in_flight", "Requests in flight.", value=in_flight)
        yield GaugeMetricFamily("rest_store_streams", "Open streams.", value=streams)
        if sessions is not None:
            yield GaugeMetricFamily("rest_store_sessions", "Open draft sessions.", value=len(sessions.open))
            yield GaugeMetricFamily("rest_store_session_bytes", "Memory reserved for them.", value=sessions.memory)
        yield GaugeMetricFamily("rest_store_draining", "1 while the service is shutting down.", value=int(draining))
        datastores = list(served)
        yield from _of_datastores(datastores)
        yield from _of_live([one for one in datastores if isinstance(one, HostedLiveDatastore)])

    def _of_requests(self) -> Iterator[Metric]:
        """Yield the counters of each method."""
        from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

        requests = CounterMetricFamily(
            "rest_store_requests", "Requests (on streams: messages), by gRPC status.", labels=["method", "code"]
        )
        received = CounterMetricFamily("rest_store_received_bytes", "Bytes of answered requests.", labels=["method"])
        sent = CounterMetricFamily("rest_store_sent_bytes", "Bytes of answers.", labels=["method"])
        seconds = HistogramMetricFamily(
            "rest_store_request_seconds", "Seconds from a request's arrival to its answer.", labels=["method"]
        )
        for method, counts in self.methods.items():
            for code, count in list(counts.codes.items()):
                requests.add_metric([method, code], count)
            received.add_metric([method], counts.bytes_received)
            sent.add_metric([method], counts.bytes_sent)
            seconds.add_metric([method], _cumulative(SECONDS, counts.seconds), counts.seconds_sum)
        yield from (requests, received, sent, seconds)

    def _of_answers(self) -> Iterator[Metric]:
        """Yield the counters of answers: draft trees, evidence, and the trees of sessions."""
        from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

        lengths = [0] * (len(MATCH_LENGTHS) + 1)
        for length, count in enumerate(self.match_lengths):
            lengths[bisect_left(MATCH_LENGTHS, length)] += count
        matches = HistogramMetricFamily(
            "rest_store_match_length_tokens", "Length of the longest suffix match of each draft tree."
        )
        total = sum(length * count for length, count in enumerate(self.match_lengths))
        matches.add_metric([], _cumulative(MATCH_LENGTHS, lengths), total)
        yield matches
        for name, meaning, count in (
            ("trees", "Draft trees sent.", self.trees),
            ("nodes", "Nodes of all draft trees sent.", self.nodes),
            ("evidence_rows", "Paths along which evidence was sent.", self.evidence_rows),
            ("session_trees", "Trees that sessions drafted.", self.session_trees),
            ("session_steps", "Forward passes of models that sessions were told of.", self.session_steps),
            ("session_tokens", "Tokens that these produced.", self.session_tokens),
        ):
            yield CounterMetricFamily(f"rest_store_{name}", meaning, value=count)


def _of_datastores(datastores: Sequence[HostedDatastore]) -> Iterator[Metric]:
    """Yield the metrics of every datastore."""
    from prometheus_client.core import GaugeMetricFamily

    gauges: dict[str, tuple[str, Callable[[HostedDatastore], int]]] = {
        "tokens": ("Tokens of the datastore.", lambda datastore: datastore.info().token_count),
        "size_bytes": ("Bytes of the datastore's files.", lambda datastore: datastore.info().size),
        "generation": ("1, and one more for each reload.", lambda datastore: datastore.generation),
        "readable": ("1 while the datastore's files can be read.", lambda datastore: int(datastore.readable)),
    }
    for name, (meaning, value_of) in gauges.items():
        gauge = GaugeMetricFamily(f"rest_store_datastore_{name}", meaning, labels=["datastore"])
        for datastore in datastores:
            gauge.add_metric([datastore.name], value_of(datastore))
        yield gauge
    number = GaugeMetricFamily(
        "rest_store_datastore_part", "Number of the part that is served.", labels=["datastore", "parts", "build"]
    )
    for datastore in datastores:
        if (part := datastore.part_served) is not None:
            number.add_metric([datastore.name, str(part.parts), part.build], part.number)
    yield number


def _of_live(live: Iterable[HostedLiveDatastore]) -> Iterator[Metric]:
    """Yield the metrics that only live datastores have."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    infos = {datastore: datastore.info() for datastore in live}
    gauges: dict[str, tuple[str, Callable[[LiveInfo], int]]] = {
        "documents": ("Documents of the datastore.", lambda info: info.document_count),
        "segments": ("Segments of the datastore.", lambda info: info.shard_count),
        "memory_bytes": ("Bytes of the segments in memory.", lambda info: info.memory_size),
        "failing": ("1 while merging or writing segments fails.", lambda info: int(info.failure is not None)),
    }
    for name, (meaning, value_of) in gauges.items():
        gauge = GaugeMetricFamily(f"rest_store_live_{name}", meaning, labels=["datastore"])
        for datastore, info in infos.items():
            gauge.add_metric([datastore.name], value_of(info))
        yield gauge
    counters: dict[str, tuple[str, Callable[[HostedLiveDatastore, WriterCounts], int]]] = {
        "added_documents": ("Documents that were added.", lambda _, counts: counts.added),
        "added_tokens": ("Tokens of these.", lambda _, counts: counts.added_tokens),
        "deleted_documents": ("Documents that were deleted.", lambda _, counts: counts.deleted),
        "evicted_documents": ("Documents that were too much or too old.", lambda _, counts: counts.evicted),
        "remembered": ("Documents that were added at the end of a session.", lambda datastore, _: datastore.remembered),
        "dropped": ("Documents of sessions that were not added.", lambda datastore, _: datastore.dropped),
        "failures": ("Additions and deletions that could not be written.", lambda datastore, _: datastore.failures),
    }
    for name, (meaning, count_of) in counters.items():
        counter = CounterMetricFamily(f"rest_store_live_{name}", meaning, labels=["datastore"])
        for datastore, info in infos.items():
            assert info.counts is not None  # this process writes it
            counter.add_metric([datastore.name], count_of(datastore, info.counts))
        yield counter


def _cumulative(bounds: Iterable[float], counts: list[int]) -> list[tuple[str, float]]:
    """Return (upper bound, number up to it) for each bucket, the last one without bound."""
    rows: list[tuple[str, float]] = []
    total = 0
    for bound, count in zip([*map(str, bounds), "+Inf"], counts, strict=True):
        total += count
        rows.append((bound, total))
    return rows
