"""The metrics of a service, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rest_store.live.live_info import LiveInfo
from rest_store.service.server.catalog import HostedDatastore

# Upper bounds of buckets in seconds.
_SECONDS = (
    *(20e-6, 50e-6, 100e-6, 200e-6, 500e-6),
    *(1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0),
)

_WORK = {
    "in_flight": "Requests in flight.",
    "streams": "Open streams.",
    "sessions": "Open draft sessions.",
    "session_bytes": "Memory reserved for draft sessions.",
}


class Metrics:
    """All metrics of a service.

    Args:
        methods: names of the methods of DatastoreService.
        version: of rest-store.

    Attributes:
        registry: all metrics that are published.
        reloads: counts reloads of datastores.
    """

    def __init__(self, methods: Iterable[str], version: str) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        Gauge("rest_store_build_info", "Version; always 1.", ["version"], registry=registry).labels(
            version
        ).set(1)
        self._requests = requests = Counter(
            "rest_store_requests",
            "Requests (of sessions: messages), by gRPC status.",
            ["method", "code"],
            registry=registry,
        )
        seconds = Histogram(
            "rest_store_request_seconds",
            "Seconds from a request's arrival to its answer.",
            ["method"],
            buckets=_SECONDS,
            registry=registry,
        )
        trees = Counter("rest_store_trees", "Draft trees.", ["method"], registry=registry)
        nodes = Counter(
            "rest_store_nodes", "Nodes of all draft trees.", ["method"], registry=registry
        )
        self._answered = {
            method: (requests.labels(method, "OK"), seconds.labels(method)) for method in methods
        }
        self._trees = {
            method: (trees.labels(method), nodes.labels(method))
            for method in ("Draft", "DraftSession")
        }
        self._steps = Counter(
            "rest_store_session_steps",
            "Forward passes of models whose tokens were appended to sessions.",
            registry=registry,
        )
        self._tokens = Counter(
            "rest_store_session_tokens", "Tokens appended to sessions.", registry=registry
        )
        self.reloads = Counter(
            "rest_store_reloads",
            "Reloads of a datastore, by outcome.",
            ["outcome"],
            registry=registry,
        )

    def answered(self, method: str, seconds: float) -> None:
        """Count an answered request, and the seconds from its arrival to its answer."""
        requests, histogram = self._answered[method]
        requests.inc()
        histogram.observe(seconds)

    def ended(self, method: str, code: str) -> None:
        """Count a request to DatastoreService that ended with the gRPC status `code`."""
        if method in self._answered:
            self._requests.labels(method, code).inc()

    def count_trees(self, method: str, trees: int, nodes: int) -> None:
        """Count draft trees that a method returned, and their nodes."""
        tree_counter, node_counter = self._trees[method]
        tree_counter.inc(trees)
        node_counter.inc(nodes)

    def count_step(self, tokens: int) -> None:
        """Count a forward pass of a model, and the tokens that it appended to a session."""
        self._steps.inc()
        self._tokens.inc(tokens)

    def show(
        self, served: Callable[[], Iterable[HostedDatastore]], **work: Callable[[], float]
    ) -> None:
        """Publish gauges, whose values are read when metrics are asked for, in another thread.

        Args:
            served: returns the datastores.
            work: for each gauge of `_WORK`, a function that returns its value.
        """
        for name, meaning in _WORK.items():
            Gauge(f"rest_store_{name}", meaning, registry=self.registry).set_function(work[name])
        self.registry.register(_DatastoreCollector(served))


_DATASTORE_GAUGES = {
    "tokens": "Tokens of the datastore.",
    "documents": "Documents of the datastore.",
    "shards": "Shards, or segments of a live datastore.",
    "size_bytes": "Bytes of the datastore's files.",
    "readable": "1 while the datastore's files can be read.",
    "failing": "Of a live datastore: 1 while merging or writing segments fails.",
}


class _DatastoreCollector(Collector):
    def __init__(self, served: Callable[[], Iterable[HostedDatastore]]) -> None:
        self._served = served

    def collect(self) -> Iterator[Metric]:
        gauges = {}
        for name, meaning in _DATASTORE_GAUGES.items():
            gauges[name] = GaugeMetricFamily(
                f"rest_store_datastore_{name}", meaning, labels=["datastore"]
            )
        for datastore in self._served():
            info = datastore.store.info()
            labels = [datastore.name]
            gauges["tokens"].add_metric(labels, info.token_count)
            gauges["documents"].add_metric(labels, info.document_count)
            gauges["shards"].add_metric(labels, info.shard_count)
            gauges["size_bytes"].add_metric(labels, info.size)
            gauges["readable"].add_metric(labels, datastore.is_readable)
            if isinstance(info, LiveInfo):
                gauges["failing"].add_metric(labels, info.failure is not None)
        yield from gauges.values()
