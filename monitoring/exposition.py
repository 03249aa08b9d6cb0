"""Prometheus metrics of a monitoring store: the newest window, decisions, retrainings and alerts."""

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

from monitoring.alerts.alert_records import AlertRecords
from monitoring.store.monitoring_store import MonitoringStore, RetrainingState
from monitoring.windows.records import RetrainAction, RetrainDecision, Verdict, WindowReport
from shortlist.contracts import ShortlistError
from shortlist.storage.artefacts import write_text

_PREFIX: Final = "shortlist_monitoring_"
_HOST: Final = "127.0.0.1"
Values = Iterable[tuple[tuple[str, ...], float]]
"""Pairs of label values and the number."""


class MonitoringCollector(Collector):
    """Reads the monitoring store again on every scrape.

    Args:
        monitoring_store: The store of one spec; the spec's name becomes a label of every metric.
    """

    def __init__(self, monitoring_store: MonitoringStore) -> None:
        self._store = monitoring_store

    def collect(self) -> Iterator[Metric]:
        """Return every metric; one that cannot be read is left out, and `store_broken` is 1."""
        is_broken = False
        for collect_group in (
            self._last_run,
            self._window,
            self._served_features,
            self._decisions,
            self._retrainings,
            self._alerts,
        ):
            try:
                yield from list(collect_group())
            except ShortlistError:
                is_broken = True
        yield self._gauge("store_broken", "1 while a file of the monitoring store cannot be read", float(is_broken))

    def _last_run(self) -> Iterator[Metric]:
        if (last_run := self._store.last_run_time()) is not None:
            yield self._gauge("last_run_timestamp_seconds", "End of the last monitoring run", last_run.timestamp())

    def _window(self) -> Iterator[Metric]:
        for report in self._store.reports(newest=1):
            yield from self._window_numbers(report)
            yield from self._drift(report)
            yield from self._quality(report)
            yield from self._slates(report)

    def _window_numbers(self, report: WindowReport) -> Iterator[Metric]:
        for name, help_text, field in _WINDOW_GAUGES:
            if (value := getattr(report, field)) is not None:
                value = value.timestamp() if isinstance(value, datetime) else value
                yield self._gauge(name, f"{help_text}, in the newest window", value)
        verdicts = (((verdict,), float(verdict == report.verdict)) for verdict in get_args(Verdict))
        yield self._gauges("verdict", "1 for the newest window's verdict", ("verdict",), verdicts)
        versions = (((str(version),), float(rows)) for version, rows in report.versions.items())
        yield self._gauges("version_rows", "Rows of the newest window by version", ("version",), versions)
        yield self._gauge("early_warnings", "Signs of trouble that needed no outcomes", float(len(report.warnings)))
        problems = Counter((problem.kind, problem.column or "") for problem in report.problems)
        yield self._gauges("problems", "Reasons not to trust the newest window", ("kind", "column"), problems.items())

    def _drift(self, report: WindowReport) -> Iterator[Metric]:
        for name, help_text, field in (
            ("drift_effect", "How far a column has moved; population stability index, share or AUC by kind", "effect"),
            ("drift_critical", "The effect from which on it counts", "critical"),
            ("drifted", "1 where a column has drifted", "drifted"),
        ):
            values = (((finding.column, finding.kind), float(getattr(finding, field))) for finding in report.findings)
            yield self._gauges(name, help_text, ("column", "kind"), values)

    def _quality(self, report: WindowReport) -> Iterator[Metric]:
        for name, help_text, field in (
            ("quality", "A measure of a version in the newest window", "value"),
            ("quality_reference", "The same on the version's own test days", "reference"),
            ("quality_limit", "The value past which it is too bad", "limit"),
            ("quality_breached", "1 where the whole interval is past the limit", "breached"),
        ):
            values = (
                ((str(quality.version), quality.slice, measure.name), float(value))
                for quality in report.quality
                for measure in quality.measures
                if (value := getattr(measure, field)) is not None
            )
            yield self._gauges(name, help_text, ("version", "slice", "measure"), values)

    def _slates(self, report: WindowReport) -> Iterator[Metric]:
        for name, help_text, field in _SLATE_GAUGES:
            values = (
                ((str(traffic.version),), float(value))
                for traffic in report.slates
                if (value := getattr(traffic, field)) is not None
            )
            yield self._gauges(name, f"{help_text}, in the newest window", ("version",), values)
        for name, help_text, field in (
            ("slate_given_up", "Expected label that drawn places gave up per slate", "per_slate"),
            ("slate_exploration_cost_ratio", "The same as a share of the expected label in the best order", "share"),
            ("slate_exploration_cost_limit", "Largest share that the spec declares", "limit"),
        ):
            costs = (
                ((str(traffic.version),), float(value))
                for traffic in report.slates
                if traffic.exploration is not None and (value := getattr(traffic.exploration, field)) is not None
            )
            yield self._gauges(name, f"{help_text}, in the newest window", ("version",), costs)
        for name, help_text, label, field in (
            ("slate_source_ratio", "Share of the candidates that a source ranked highest", "source", "sources"),
            ("slate_removed_ratio", "Share of the candidates that a filter removed first", "filter", "removed"),
        ):
            shares = (
                ((str(traffic.version), stage_name), share)
                for traffic in report.slates
                for stage_name, share in getattr(traffic, field).items()
            )
            yield self._gauges(name, f"{help_text}, in the newest window", ("version", label), shares)

    def _served_features(self) -> Iterator[Metric]:
        comparison = self._store.served_features()
        if comparison is None:
            return
        limit = (
            comparison.max_unequal
            if comparison.max_unequal is not None and comparison.rows >= comparison.min_rows
            else float("inf")
        )
        yield self._gauge(
            "served_rows", "Rows whose feature values were compared with the table's", float(comparison.rows)
        )
        limits = (((column,), limit) for column in comparison.columns)
        yield self._gauges(
            "served_max_unequal_ratio", "The declared limit of that; infinite where none applies", ("column",), limits
        )
        for name, help_text, field in (
            ("served_compared", "Compared values of a column", "compared"),
            ("served_equal", "Those that equal the feature table's", "equal"),
            ("served_stale", "Those of an older snapshot", "stale"),
            ("served_unequal_ratio", "Share of the values that count for the limit", "unequal_share"),
            ("served_largest_difference", "Largest difference between two numbers", "largest_difference"),
        ):
            values = (
                ((column,), float(value))
                for column, served_column in comparison.columns.items()
                if (value := getattr(served_column, field)) is not None
            )
            yield self._gauges(name, f"{help_text}, in the newest comparison", ("column",), values)

    def _decisions(self) -> Iterator[Metric]:
        decisions = self._store.decisions()
        counts = Counter[str](decision.action for decision in decisions)
        counters = (((action,), counts[action]) for action in get_args(RetrainAction))
        yield self._counters("decisions", "Decisions by action", ("action",), counters)
        if newest := _newest_drift_decision(decisions):
            yield self._gauge("alarm", "1 while the alarm is raised", float(newest.alarm))
            actions = (((action,), float(action == newest.action)) for action in get_args(RetrainAction))
            yield self._gauges("decision", "1 for the newest decision's action", ("action",), actions)

    def _retrainings(self) -> Iterator[Metric]:
        states = Counter[str](retraining.state for retraining in self._store.retrainings())
        counters = (((state,), states[state]) for state in get_args(RetrainingState))
        yield self._counters("retrainings", "Retrainings by how they ended", ("state",), counters)
        yield self._gauge("retraining_running", "Retrainings that run now", float(states["running"]))

    def _alerts(self) -> Iterator[Metric]:
        waiting = sum(len(record.waiting) for record in AlertRecords(self._store.records).read().values())
        yield self._gauge("alerts_waiting", "Deliveries of alerts that no destination has accepted yet", float(waiting))

    def _gauge(self, name: str, help_text: str, value: float) -> Metric:
        return self._gauges(name, help_text, (), [((), value)])

    def _gauges(self, name: str, help_text: str, labels: tuple[str, ...], values: Values) -> Metric:
        return self._fill(GaugeMetricFamily(_PREFIX + name, help_text, labels=["spec", *labels]), values)

    def _counters(self, name: str, help_text: str, labels: tuple[str, ...], values: Values) -> Metric:
        # Every series starts at 0: otherwise Prometheus would not see the first event as an increase.
        return self._fill(CounterMetricFamily(_PREFIX + name, help_text, labels=["spec", *labels]), values)

    def _fill(self, family: GaugeMetricFamily | CounterMetricFamily, values: Values) -> Metric:
        for labels, value in values:
            family.add_metric([self._store.spec, *labels], value)
        return family


def metrics_text(monitoring_store: MonitoringStore) -> str:
    """Return all metrics in Prometheus' text format."""
    return generate_latest(_registry(monitoring_store)).decode()


def write_metrics(monitoring_store: MonitoringStore, path: Path) -> None:
    """Write all metrics atomically to a file for the node exporter's textfile collector; its name ends in `.prom`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, metrics_text(monitoring_store))


@contextmanager
def serve_metrics(monitoring_store: MonitoringStore, port: int) -> Iterator[int]:
    """Serve `/metrics` on this machine's loopback while the block runs; yield the port.

    Args:
        monitoring_store: The store whose metrics are served; it is read again on every scrape.
        port: The port; 0 for a free one.

    Raises:
        ShortlistError: Another process listens on the port.
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


_WINDOW_GAUGES: Final = (
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
"""Metric name, help text and field of the report; a field that is None is left out."""

_SLATE_GAUGES: Final = (
    ("slates", "Slates that were answered", "slates"),
    ("slate_short_ratio", "Share of the slates with fewer items than were asked for", "short"),
    ("slate_fallback_ratio", "Share of the slates for which sources were asked for more", "fallback"),
    ("slate_explored_ratio", "Share of the slates whose places were drawn", "explored"),
    ("slate_items", "Different items that were shown", "items"),
    ("slate_hit_ratio", "Share of the slates with an outcome that have a positive one", "hit_rate"),
    ("slate_clicks", "Positive outcomes per slate with an outcome", "clicks"),
    ("slate_overlap_ratio", "Overlap with the items that the version of most rows showed", "overlap"),
)
"""Metric name, help text and field of a version's slate traffic."""


def _registry(monitoring_store: MonitoringStore) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(MonitoringCollector(monitoring_store))
    return registry


def _newest_drift_decision(decisions: tuple[RetrainDecision, ...]) -> RetrainDecision | None:
    """Return the newest decision about live traffic; decisions of a schedule do not carry the alarm."""
    return next((decision for decision in reversed(decisions) if decision.trigger == "drift"), None)
