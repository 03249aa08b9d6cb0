"""The books of several specs as Prometheus reads them: one family of numbers per name, a spec a label."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from monitoring.exposition import MonitoringCollector
from monitoring.monitoring_store import MonitoringStore


class StoresCollector(Collector):
    """Reads the books anew whenever somebody asks.

    Args:
        books: Of one spec each.
    """

    def __init__(self, books: Iterable[MonitoringStore]) -> None:
        self._collectors = [MonitoringCollector(book) for book in books]

    def describe(self) -> Iterator[Metric]:
        """Return nothing: no book is read only because a registry learns of this collector."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Return every number; Prometheus' text format wants those of one name together."""
        families: dict[str, Metric] = {}
        for collector in self._collectors:
            for metric in collector.collect():
                families.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type)).samples.extend(
                    metric.samples
                )
        yield from families.values()
