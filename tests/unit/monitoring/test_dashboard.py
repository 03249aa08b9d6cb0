"""Every metric that a rule or a panel reads is exported by monitoring or by the servers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from monitoring.exposition import metrics_text
from monitoring.served_features.record import ServedColumn, ServedFeaturesReport
from monitoring.store.monitoring_store import MonitoringStore
from monitoring.windows.records import Finding, Measure, Problem, Quality, RetrainDecision, SlateTraffic, WindowReport
from shortlist.serving.log.committer import LogCommitter
from shortlist.serving.server.runtime.metrics import Metrics
from shortlist.serving.server.server import ServerComponents
from shortlist.spec.serving import Serving

DEPLOY = Path(__file__).parents[3] / "deploy" / "monitoring"
RULES = yaml.safe_load((DEPLOY / "alert_rules.yaml").read_text())
PROMETHEUS = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text())
DASHBOARD = json.loads((DEPLOY / "grafana_dashboard.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]

FIRST = datetime(2026, 1, 19, tzinfo=UTC)
BY_THE_SCRAPE = {"instance", "job"}
PROMQL_KEYWORDS = {"and", "or", "unless", "offset", "bool", "on", "ignoring", "group_left", "group_right", "inf", "nan"}

LabelValuesByMetric = dict[str, dict[str, set[str]]]
"""Possible label values by metric and label; an empty set means any value."""


def alert_rules() -> list[dict[str, Any]]:
    return [rule for group in RULES["groups"] for rule in group["rules"]]


def expressions() -> Iterator[tuple[str, str]]:
    """Return the title and the expression of each query."""
    for rule in alert_rules():
        yield rule["alert"], rule["expr"]
    for panel in PANELS:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for annotation in DASHBOARD["annotations"]["list"]:
        yield annotation["name"], annotation["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"]


def samples(text: str) -> LabelValuesByMetric:
    metrics: LabelValuesByMetric = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = metrics.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                labels.setdefault(label, set()).add(value)
    return metrics


def told_by_the_watcher(folder: Path) -> LabelValuesByMetric:
    """Return the metrics of a store with every kind of record."""
    store = MonitoringStore(folder / "demo")
    finding = Finding(column="price", kind="numeric", effect=0.5, critical=0.2, p_value=0, drifted=True, reason="moved")
    measures = tuple(
        Measure(name=name, value=0.5, low=0.4, high=0.6, reference=0.5, limit=0.4)
        for name in get_args(Measure.model_fields["name"].annotation)
    )
    slates = SlateTraffic(
        version=1, slates=9, sources={"near": 1.0}, removed={"seen": 0.5}, short=0.1, fallback=0.1, explored=0.1,
        items=5, judged=9, hit_rate=0.5, clicks=0.7, overlap=0.9,
    )  # fmt: skip
    report = WindowReport(
        spec="demo",
        start=FIRST,
        end=FIRST + timedelta(days=1),
        made=FIRST,
        champion=1,
        versions={1: 1_000},
        requests=100,
        rows=1_000,
        coverage=1.0,
        volume_ratio=1.0,
        problems=(Problem(kind="nulls", column="price", reason="nulls"),),
        findings=(finding,),
        quality=(Quality(version=1, slice="all", rows=1_000, users=100, measures=measures),),
        slates=(slates,),
    )
    decision = RetrainDecision(
        spec="demo",
        action="hold",
        trigger="drift",
        key="0" * 16,
        window=FIRST,
        until=FIRST,
        reasons=(),
        made=FIRST,
    )
    store.add_report(report)
    store.claim(decision)
    store.record_run_time()
    column = ServedColumn(compared=10, equal=9, counted=1, largest_difference=1.0, cause="default", reason="it differs")
    store.set_served_features(
        ServedFeaturesReport(spec="demo", made=FIRST, first=FIRST, last=FIRST, rows=10, columns={"price": column})
    )
    return samples(metrics_text(store))


def told_by_a_server() -> LabelValuesByMetric:
    """Return the metrics of a server; its scrape adds the labels spec and version."""
    metrics = Metrics()
    metrics.count("http", 200, 0.001)
    metrics.candidates.labels("near").inc()
    metrics.removed.labels("seen").inc()
    parts: Any = object.__new__(ServerComponents)  # only its names and numbers are wanted, not the server behind them
    parts.log = SimpleNamespace(dropped=0, written=0, waiting=0, waiting_bytes=0, problem=None)
    parts.refresh = SimpleNamespace(published=0.0, counted_until=0.0, problem=None)
    parts.users = None
    parts.events = SimpleNamespace(problem=None)
    parts.counts = SimpleNamespace(
        counted=0, too_late=0, delay_seconds=0.0, max_delay_seconds=0.5, problem=None, sessions_bytes=0, dropped=0,
        uncounted=0, beyond_share=0, bytes=0,
    )  # fmt: skip
    parts.user_items = SimpleNamespace(problem=None, items=0, forgotten=0)
    settings = SimpleNamespace(serving=Serving())
    parts.service = SimpleNamespace(admission=SimpleNamespace(waiting=0, refused=0), settings=settings)
    parts.service.recommending, parts.release = SimpleNamespace(index_age_seconds=0.0), None
    parts._add_gauges(metrics)
    samples_by_name = samples(metrics.text().decode())
    return {
        name: {label: set[str]() for label in {*labels, "spec", "version", *BY_THE_SCRAPE}}
        for name, labels in samples_by_name.items()
    }


def told_by_a_log_committer() -> LabelValuesByMetric:
    """Return the metrics of the log committer; its scrape adds the labels spec and pod."""
    registry = CollectorRegistry()
    registry.register(LogCommitter([]))
    metrics = samples(generate_latest(registry).decode())
    return {name: {label: set[str]() for label in {*labels, "spec", "pod"}} for name, labels in metrics.items()}


@pytest.fixture(scope="module")
def exported_metrics(tmp_path_factory: pytest.TempPathFactory) -> LabelValuesByMetric:
    folder = tmp_path_factory.mktemp("store")
    return {**told_by_the_watcher(folder), **told_by_a_server(), **told_by_a_log_committer()}


def queried_metrics(expression: str) -> list[tuple[str, dict[str, str]]]:
    """Return the metrics in an expression, each with its matchers: label to operator and value."""
    plain = re.sub(r"\b(by|without|on|ignoring)\s*\([^)]*\)", " ", expression)
    plain = re.sub(r"\[[^\]]*\]", " ", plain)
    plain = re.sub(r"^label_values\((.*),\s*\w+\)$", r"\1", plain)
    queries = []
    for match in re.finditer(r"(?<![\w$.])([a-zA-Z_:][\w:]*)\s*(\{[^}]*\}|\()?", plain):
        name, selector = match[1], match[2] or ""
        if selector == "(" or name in PROMQL_KEYWORDS:
            continue
        matchers = re.findall(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"', selector)
        queries.append((name, {label: operator + value for label, operator, value in matchers}))
    return queries


def complaints(expression: str, exported_metrics: LabelValuesByMetric) -> list[str]:
    """Return the metrics, labels and values of an expression that are not exported."""
    problems = []
    metrics = queried_metrics(expression)
    for name, matchers in metrics:
        if name not in exported_metrics:
            problems.append(f"nobody tells {name}")
            continue
        for label, pattern in matchers.items():
            if label not in exported_metrics[name]:
                problems.append(f"{name} has no label {label}")
            elif pattern.startswith(("=", "!=")) and not pattern.startswith("=~") and exported_metrics[name][label]:
                value = pattern.lstrip("!=")
                if not value.startswith("$") and value not in exported_metrics[name][label]:
                    problems.append(f"{name} is never told with {label}={value}")
    labels = {label for name, _ in metrics for label in exported_metrics.get(name, {})}
    for group in re.findall(r"\bby\s*\(([^)]*)\)", expression):
        wrong = {label.strip() for label in group.split(",")} - labels
        problems += [f"there is no label {label} to group by" for label in sorted(wrong)]
    return problems


@pytest.mark.parametrize(("title", "expression"), list(expressions()), ids=lambda text: text[:60])
def test_queried_metrics_and_labels_are_exported(
    exported_metrics: LabelValuesByMetric, title: str, expression: str
) -> None:
    assert queried_metrics(expression), f"{title} asks for nothing"
    assert complaints(expression, exported_metrics) == []


@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        ("shortlist_monitoring_window_row == 1", "nobody tells shortlist_monitoring_window_row"),
        ("rate(shortlist_gone_total[5m]) > 0", "nobody tells shortlist_gone_total"),
        ("sum(rate(shortlist_request[$__rate_interval]))", "nobody tells shortlist_request"),
        ('shortlist_monitoring_verdict{verdict="ill"}', "shortlist_monitoring_verdict is never told with verdict=ill"),
        ('shortlist_monitoring_alarm{column="a"}', "shortlist_monitoring_alarm has no label column"),
        ("sum by (shop) (shortlist_monitoring_alarm)", "there is no label shop to group by"),
        ("time() - shortlist_monitoring_last_run > 1", "nobody tells shortlist_monitoring_last_run"),
        ("label_values(shortlist_monitoring_gone, spec)", "nobody tells shortlist_monitoring_gone"),
        ("absent(shortlist_gone)", "nobody tells shortlist_gone"),
        ("shortlist_log_broken == 1 or shortlist_gone == 1", "nobody tells shortlist_gone"),
    ],
)
def test_an_unknown_metric_or_label_is_reported(
    exported_metrics: LabelValuesByMetric, expression: str, complaint: str
) -> None:
    assert complaints(expression, exported_metrics) == [complaint]


@pytest.mark.parametrize("rule", alert_rules(), ids=lambda rule: rule["alert"])
def test_a_rule_has_severity_and_annotations_with_existing_labels(
    exported_metrics: LabelValuesByMetric, rule: dict[str, Any]
) -> None:
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in {"info", "warning", "critical"}
    assert set(rule["annotations"]) == {"summary", "description"}
    used_labels = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
    groups = re.findall(r"\bby\s*\(([^)]*)\)", rule["expr"])
    if groups:
        grouped_labels = {label.strip() for label in groups[0].split(",")}
    elif rule["expr"].startswith("absent("):
        grouped_labels = set()
    else:
        grouped_labels = set.intersection(*(set(exported_metrics[name]) for name, _ in queried_metrics(rule["expr"])))
    assert used_labels <= grouped_labels


def test_rule_names_are_unique_and_loaded_by_the_example() -> None:
    names = [rule["alert"] for rule in alert_rules()]
    assert len(set(names)) == len(names)
    assert all((DEPLOY / name).is_file() for name in PROMETHEUS["rule_files"])


def test_the_example_scrapes_localhost_and_labels_servers() -> None:
    jobs = {job["job_name"]: job["static_configs"] for job in PROMETHEUS["scrape_configs"]}
    targets = [target for configs in jobs.values() for config in configs for target in config["targets"]]
    assert targets
    assert all(target.startswith("127.0.0.1:") for target in targets)
    assert all({"spec", "version"} <= set(config["labels"]) for config in jobs["shortlist-server"])


def test_the_dashboard_has_the_fields_required_by_grafana() -> None:
    assert {"uid", "title", "panels", "templating", "time", "schemaVersion"} <= set(DASHBOARD)
    assert DASHBOARD["schemaVersion"] >= 36  # before, data sources had no uid
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    used_variables = set(re.findall(r"\$\{?([a-z]\w*)\}?", json.dumps(DASHBOARD)))
    assert used_variables == variables


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_every_panel_is_valid(panel: dict[str, Any]) -> None:
    assert panel["type"] in {"stat", "timeseries", "table", "status-history"}
    assert panel["title"]
    assert panel["description"]
    assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert set(panel["fieldConfig"]) == {"defaults", "overrides"}
    references = [target["refId"] for target in panel["targets"]]
    assert references
    assert len(set(references)) == len(references)
    assert all(target["datasource"] == panel["datasource"] for target in panel["targets"])


@pytest.mark.parametrize(
    "metric",
    [
        "shortlist_candidates_total", "shortlist_removed_candidates_total", "shortlist_index_age_seconds",
        *(f"shortlist_monitoring_slate_{suffix}" for suffix in ("short_ratio", "fallback_ratio", "source_ratio",
          "removed_ratio", "hit_ratio", "clicks", "items", "overlap_ratio")),
    ],
)  # fmt: skip
def test_the_dashboard_shows_every_stage_of_slates(metric: str) -> None:
    assert any(metric == name for _, expression in expressions() for name, _ in queried_metrics(expression))


def test_panels_do_not_overlap() -> None:
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    assert all(place["x"] >= 0 and place["x"] + place["w"] <= 24 for place in places)
    for place, next_place in combinations(places, 2):
        beside = place["x"] + place["w"] <= next_place["x"] or next_place["x"] + next_place["w"] <= place["x"]
        is_above = place["y"] + place["h"] <= next_place["y"] or next_place["y"] + next_place["h"] <= place["y"]
        assert beside or is_above, (place, next_place)
