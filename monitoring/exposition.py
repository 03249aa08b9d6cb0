"""The monitoring store as Prometheus reads it: the newest window, decisions, retrainings and the outbox in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Final, get_args

from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from monitoring.alerts.alert_queue import AlertQueue
from monitoring.store.monitoring_store import MonitoringStore, RetrainingState
from monitoring.windows.records import RetrainAction, RetrainDecision, Verdict, WindowReport
from shortlist.contracts import ShortlistError
from shortlist.storage.artefacts import write_text

_PREFIX: Final = "shortlist_monitoring_"
_HOST: Final = "127.0.0.1"
Values = Iterable[tuple[tuple[str, ...], float]]
"""Labels' values, and the number."""


class MonitoringCollector(Collector):
    """Reads the monitoring store anew whenever somebody asks.

    Args:
        monitoring_store: Of one spec, which becomes a label of everything.
    """

    def __init__(self, monitoring_store: MonitoringStore) -> None:
        self._store = monitoring_store

    def collect(self) -> Iterator[Metric]:
        """Return every number; what cannot be read is left out, and `store_broken` says so."""
        is_broken = False
        for part in (self._last_run, self._window, self._served, self._decisions, self._retrainings, self._outbox):
            try:
                yield from list(part())
            except ShortlistError:
                is_broken = True
        yield self._gauge("store_broken", "1 while a file of the monitoring store cannot be read", float(is_broken))

    def _last_run(self) -> Iterator[Metric]:
        if (last_run := self._store.last_run_time()) is not None:
            yield self._gauge("last_run_timestamp_seconds", "End of the last monitoring run", last_run.timestamp())

    def _window(self) -> Iterator[Metric]:
        for report in self._store.reports(newest=1):
            yield from self._numbers(report)
            yield from self._drift(report)
            yield from self._quality(report)
            yield from self._slates(report)

    def _numbers(self, report: WindowReport) -> Iterator[Metric]:
        for name, says, number in _NUMBERS:
            if (value := getattr(report, number)) is not None:
                value = value.timestamp() if isinstance(value, datetime) else value
                yield self._gauge(name, f"{says}, in the newest window", value)
        verdicts = (((one,), float(one == report.verdict)) for one in get_args(Verdict))
        yield self._gauges("verdict", "1 for the newest window's verdict", ("verdict",), verdicts)
        versions = (((str(version),), float(rows)) for version, rows in report.versions.items())
        yield self._gauges("version_rows", "Rows of the newest window by version", ("version",), versions)
        yield self._gauge("early_warnings", "Signs of trouble that needed no outcomes", float(len(report.warnings)))
        problems = Counter((one.kind, one.column or "") for one in report.problems)
        yield self._gauges("problems", "Reasons not to trust the newest window", ("kind", "column"), problems.items())

    def _drift(self, report: WindowReport) -> Iterator[Metric]:
        for name, says, number in (
            ("drift_effect", "How far a column has moved; index, share or AUC by kind", "effect"),
            ("drift_critical", "The effect from which on it counts", "critical"),
            ("drifted", "1 where a column has drifted", "drifted"),
        ):
            values = (((one.column, one.kind), float(getattr(one, number))) for one in report.findings)
            yield self._gauges(name, says, ("column", "kind"), values)

    def _quality(self, report: WindowReport) -> Iterator[Metric]:
        for name, says, number in (
            ("quality", "A measure of a version in the newest window", "value"),
            ("quality_reference", "The same on the version's own test days", "reference"),
            ("quality_limit", "The value past which it is too bad", "limit"),
            ("quality_breached", "1 where the whole interval is past the limit", "breached"),
        ):
            values = (
                ((str(one.version), one.slice, measure.name), float(value))
                for one in report.quality
                for measure in one.measures
                if (value := getattr(measure, number)) is not None
            )
            yield self._gauges(name, says, ("version", "slice", "measure"), values)

    def _slates(self, report: WindowReport) -> Iterator[Metric]:
        for name, says, number in _SLATES:
            values = (
                ((str(one.version),), float(value))
                for one in report.slates
                if (value := getattr(one, number)) is not None
            )
            yield self._gauges(name, f"{says}, in the newest window", ("version",), values)
        for name, says, label, number in (
            ("slate_source_ratio", "Share of the candidates that a source ranked highest", "source", "sources"),
            ("slate_removed_ratio", "Share of the candidates that a filter removed first", "filter", "removed"),
        ):
            shares = (
                ((str(one.version), which), share)
                for one in report.slates
                for which, share in getattr(one, number).items()
            )
            yield self._gauges(name, f"{says}, in the newest window", ("version", label), shares)

    def _served(self) -> Iterator[Metric]:
        found = self._store.served_features()
        if found is None:
            return
        limit = found.max_unequal if found.max_unequal is not None and found.rows >= found.min_rows else float("inf")
        yield self._gauge("served_rows", "Rows whose feature values were compared with the table's", float(found.rows))
        limits = (((column,), limit) for column in found.columns)
        yield self._gauges(
            "served_max_unequal_ratio", "The declared limit of that; infinite where none applies", ("column",), limits
        )
        for name, says, number in (
            ("served_compared", "Compared values of a column", "compared"),
            ("served_equal", "Those that equal the feature table's", "equal"),
            ("served_stale", "Those of an older snapshot", "stale"),
            ("served_unequal_ratio", "Share of the values that count for the limit", "unequal_share"),
            ("served_largest_difference", "Largest difference between two numbers", "largest_difference"),
        ):
            values = (
                ((column,), float(value))
                for column, one in found.columns.items()
                if (value := getattr(one, number)) is not None
            )
            yield self._gauges(name, f"{says}, in the newest comparison", ("column",), values)

    def _decisions(self) -> Iterator[Metric]:
        decisions = self._store.decisions()
        counts = Counter[str](one.action for one in decisions)
        counters = (((one,), counts[one]) for one in get_args(RetrainAction))
        yield self._counters("decisions", "Decisions by action", ("action",), counters)
        if newest := _newest(decisions):
            yield self._gauge("alarm", "1 while the alarm is raised", float(newest.alarm))
            actions = (((one,), float(one == newest.action)) for one in get_args(RetrainAction))
            yield self._gauges("decision", "1 for the newest decision's action", ("action",), actions)

    def _retrainings(self) -> Iterator[Metric]:
        states = Counter[str](one.state for one in self._store.retrainings())
        counters = (((one,), states[one]) for one in get_args(RetrainingState))
        yield self._counters("retrainings", "Retrainings by how they ended", ("state",), counters)
        yield self._gauge("retraining_running", "Retrainings that run now", float(states["running"]))

    def _outbox(self) -> Iterator[Metric]:
        outbox = AlertQueue(self._store.records)
        yield self._gauge("outbox_waiting", "Alerts that no endpoint has taken yet", float(outbox.count("waiting")))
        yield self._counters("outbox_sent", "Alerts that an endpoint took", (), [((), outbox.count("sent"))])
        yield self._counters("outbox_lost", "Alerts that were given up", (), [((), outbox.count("lost"))])

    def _gauge(self, name: str, says: str, value: float) -> Metric:
        return self._gauges(name, says, (), [((), value)])

    def _gauges(self, name: str, says: str, labels: tuple[str, ...], values: Values) -> Metric:
        return self._filled(GaugeMetricFamily(_PREFIX + name, says, labels=["spec", *labels]), values)

    def _counters(self, name: str, says: str, labels: tuple[str, ...], values: Values) -> Metric:
        # Every series is there from the start, at nought, or Prometheus would not see the first one as an increase.
        return self._filled(CounterMetricFamily(_PREFIX + name, says, labels=["spec", *labels]), values)

    def _filled(self, family: GaugeMetricFamily | CounterMetricFamily, values: Values) -> Metric:
        for labels, value in values:
            family.add_metric([self._store.spec, *labels], value)
        return family


def metrics_text(monitoring_store: MonitoringStore) -> str:
    """Return everything in Prometheus' text format."""
    return generate_latest(_registry(monitoring_store)).decode()


def write_metrics(monitoring_store: MonitoringStore, path: Path) -> None:
    """Write everything to a file for the node exporter's textfile collector, whole; its name ends in `.prom`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, metrics_text(monitoring_store))


@contextmanager
def serve_metrics(monitoring_store: MonitoringStore, port: int) -> Iterator[int]:
    """Answer Prometheus on this machine's loopback at `/metrics` while the block runs; give the port.

    Args:
        monitoring_store: What to tell of; it is read anew for every question.
        port: 0 for a free one.

    Raises:
        ShortlistError: Somebody else listens on the port.
    """
    try:
        server, thread = start_http_server(port, _HOST, _registry(monitoring_store))
    except OSError as error:
        raise ShortlistError(f"metrics cannot be served on {_HOST}:{port} ({error}); choose another port") from None
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


_NUMBERS: Final = (
    ("window_start_timestamp_seconds", "When it begins", "start"),
    ("window_end_timestamp_seconds", "When it ends", "end"),
    ("window_requests", "Answered requests", "requests"),
    ("window_rows", "Shown rows whose outcome is known", "rows"),
    ("coverage_ratio", "Share of the answered requests with an outcome", "coverage"),
    ("volume_ratio", "Requests against the median of the windows before", "volume_ratio"),
    ("late_outcomes", "Outcomes that came too late", "late"),
    ("duplicate_outcomes", "Outcomes of rows that had one", "duplicates"),
    ("orphan_outcomes", "Outcomes of unknown requests", "orphans"),
    ("champion_version", "The version of most of its rows", "champion"),
)
"""Names, what they say, and the report's field; a number that is not known is left out."""

_SLATES: Final = (
    ("slates", "Slates that were answered", "slates"),
    ("slate_short_ratio", "Share of the slates with fewer items than were asked for", "short"),
    ("slate_fallback_ratio", "Share of the slates for which sources were asked for more", "fallback"),
    ("slate_explored_ratio", "Share of the slates whose places were drawn", "explored"),
    ("slate_items", "Different items that were shown", "items"),
    ("slate_hit_ratio", "Share of the slates with an outcome that have a positive one", "hit_rate"),
    ("slate_clicks", "Positive outcomes per slate with an outcome", "clicks"),
    ("slate_overlap_ratio", "Overlap with the items that the version of most rows showed", "overlap"),
)
"""Likewise, of the slates of a version."""


def _registry(monitoring_store: MonitoringStore) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(MonitoringCollector(monitoring_store))
    return registry


def _newest(decisions: tuple[RetrainDecision, ...]) -> RetrainDecision | None:
    """Return what was decided last about live traffic; a schedule knows nothing of the alarm."""
    return next((one for one in reversed(decisions) if one.trigger == "drift"), None)
