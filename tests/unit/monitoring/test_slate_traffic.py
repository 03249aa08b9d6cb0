"""Statistics of a window's slates, checked by hand."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from monitoring.exposition import metrics_text
from monitoring.store.monitoring_store import MonitoringStore
from monitoring.windows.records import WindowReport
from monitoring.windows.slates import (
    SLATE_COLUMNS,
    measure_exploration_cost,
    measure_slate_traffic,
    versions_of_slates,
)

SCHEMA: dict[str, Any] = {
    "request_id": pl.String(),
    "version": pl.Int64(),
    "items": pl.List(pl.Int64()),
    "scores": pl.List(pl.Float32()),
    "slate:asked": pl.Int32(),
    "slate:retrieved": pl.Int32(),
    "slate:source_names": pl.List(pl.String()),
    "slate:source_counts": pl.List(pl.Int64()),
    "slate:filter_names": pl.List(pl.String()),
    "slate:filter_counts": pl.List(pl.Int64()),
    "slate:fallback": pl.List(pl.String()),
    "slate:explored": pl.Boolean(),
    "slate:given_up": pl.Float64(),
}


def requests(*rows: tuple[Any, ...]) -> pl.DataFrame:
    assert tuple(SCHEMA) == SLATE_COLUMNS
    return pl.DataFrame(list(rows), schema=SCHEMA, orient="row")


SLATES = requests(
    ("a", 1, [10, 20], [0.5, 0.25], 2, 10, ["near", "popular"], [2, 6], ["seen"], [2], [], False, 0.0),
    ("b", 1, [10], [0.25], 2, 10, ["popular"], [2], ["seen"], [8], ["popular"], True, 0.25),
    ("c", 2, [10, 30], [0.5, 0.5], 2, 10, ["near"], [10], ["seen"], [0], [], False, 0.0),
    ("rank", 1, [10, 20, 30], None, None, None, None, None, None, None, None, None, None),  # a client's candidates
)
OUTCOMES = pl.DataFrame({"request_id": ["a", "a", "b", "rank"], "label": [1, 1, 0, 1]})


def test_slate_traffic_has_shares_per_version() -> None:
    first, second = measure_slate_traffic(SLATES, OUTCOMES, 1, max_cost=None, confidence=0.99)
    assert (first.version, first.slates, second.version, second.slates) == (1, 2, 2, 1)
    assert first.sources == {"near": 2 / 10, "popular": 8 / 10}  # of the candidates after filters
    assert first.removed == {"seen": 10 / 20}  # of those before
    assert (first.short, first.fallback, first.explored, first.items) == (1 / 2, 1 / 2, 1 / 2, 2)
    assert (first.judged, first.hit_rate, first.clicks) == (2, 1 / 2, 1.0)
    assert (second.judged, second.hit_rate, second.clicks) == (0, None, None)
    # Version 1 showed 10 in two of three places, version 2 in one of two.
    assert (first.overlap, second.overlap) == (None, pytest.approx(1 / 2))


def test_slate_traffic_is_empty_without_slates() -> None:
    limits = {"max_cost": None, "confidence": 0.99}
    assert measure_slate_traffic(SLATES.filter(pl.col("request_id") == "rank"), OUTCOMES, 1, **limits) == ()
    assert measure_slate_traffic(requests(), OUTCOMES, None, **limits) == ()


def test_the_cost_of_exploration_is_measured_against_the_declared_limit() -> None:
    first, second = measure_slate_traffic(SLATES, OUTCOMES, 1, max_cost=0.1, confidence=0.99)
    assert first.exploration is not None and second.exploration is None  # version 2 drew nothing
    # In the best order the two slates would expect 0.75 and 0.5; the second gave up 0.25.
    assert (first.exploration.per_slate, first.exploration.share) == (0.25 / 2, pytest.approx(0.25 / 1.25))
    # Two slates do not show that 20 % are above 10 %; 200 of each do.
    assert first.exploration.low < 0 and not first.exploration.exceeded
    many = pl.concat([SLATES] * 200)
    for max_cost, is_exceeded in ((0.1, True), (0.2, False), (None, False)):
        cost = measure_exploration_cost(many.filter(pl.col("version") == 1), max_cost, 0.99)
        assert cost is not None and cost.exceeded == is_exceeded
    # The residuals of a pair are -0.15 and 0.15.
    assert cost.low == pytest.approx(0.2 - 2.5758 * (400 * 0.15**2) ** 0.5 / (200 * 1.25), abs=1e-4)


def test_a_log_without_the_cost_has_none() -> None:
    silent = SLATES.with_columns(pl.lit(None, pl.Float64()).alias("slate:given_up"))
    first, _ = measure_slate_traffic(silent, OUTCOMES, 1, max_cost=0.1, confidence=0.99)
    assert first.exploration is None


def test_versions_that_rank_the_candidates_of_clients_make_no_slates() -> None:
    assert versions_of_slates(SLATES) == {1, 2}  # two of the three requests of version 1, and the one of version 2
    assert versions_of_slates(SLATES.filter(pl.col("request_id").is_in(["a", "rank"]))) == frozenset()
    assert versions_of_slates(requests()) == frozenset()


def test_slate_traffic_is_exported_to_prometheus(tmp_path: Path) -> None:
    store, start = MonitoringStore(tmp_path / "demo"), datetime(2026, 3, 1, tzinfo=UTC)
    store.add_report(
        WindowReport(spec="demo", start=start, end=start.replace(day=2), made=start, champion=1, versions={1: 3},
                     requests=3, rows=3, coverage=1.0,
                     slates=measure_slate_traffic(SLATES, OUTCOMES, 1, max_cost=0.1, confidence=0.99))
    )  # fmt: skip
    text = metrics_text(store)
    for line in (
        'shortlist_monitoring_slate_source_ratio{source="near",spec="demo",version="1"} 0.2',
        'shortlist_monitoring_slate_removed_ratio{filter="seen",spec="demo",version="1"} 0.5',
        'shortlist_monitoring_slate_hit_ratio{spec="demo",version="1"} 0.5',
        'shortlist_monitoring_slate_overlap_ratio{spec="demo",version="2"} 0.5',
        'shortlist_monitoring_slate_given_up{spec="demo",version="1"} 0.125',
        'shortlist_monitoring_slate_exploration_cost_ratio{spec="demo",version="1"} 0.2',
        'shortlist_monitoring_slate_exploration_cost_limit{spec="demo",version="1"} 0.1',
    ):
        assert line in text
    assert 'slate_hit_ratio{spec="demo",version="2"}' not in text  # not known
