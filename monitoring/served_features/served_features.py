"""The comparison of one monitoring run: selects the requests, and combines the comparisons of all versions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

import polars as pl

from monitoring.served_features.comparison import ServedModelFiles, VersionComparison, comparable_masks, compare_version
from monitoring.served_features.record import ServedColumn, ServedFeaturesReport
from monitoring.windows.answered_requests import ROWS
from monitoring.windows.feature_sample import select_readable
from shortlist.contracts import ShortlistError
from shortlist.features.stored_views.view_index import ViewIndex
from shortlist.spec.monitoring import ServedFeaturesLimits
from shortlist.spec.text.durations import parse_duration

_MAX_WINDOWS: Final = 7
_MAX_ROWS: Final = 50_000


@dataclass(frozen=True)
class PublishedViews:
    """The views that servers look up at present, with the values at every earlier moment."""

    folder: Path
    until: datetime
    """The moment up to which they are complete."""


def compare_served_features(
    spec: str, windows: Iterable[pl.DataFrame], version: Callable[[int], ServedModelFiles], views: PublishedViews,
    limits: ServedFeaturesLimits, now: datetime,
) -> ServedFeaturesReport:  # fmt: skip
    """Return the comparison of the newest comparable requests' feature values with the feature table.

    Windows are read from the newest backwards until enough rows are compared, so that a fixed fault stops counting
    after one window with enough rows.

    Args:
        spec: Name of the spec.
        windows: Requests of each window that hold feature values, the newest window first, with the columns of the
            prediction log and `ROWS`.
        version: Returns the files of a registered version.
        views: The published views.
        limits: The declared limits.
        now: Time of the comparison.
    """
    tiles = ViewIndex.read(views.folder).tiles
    max_age = None if limits.max_age is None else parse_duration(limits.max_age)
    comparisons: list[tuple[int, VersionComparison]] = []
    waiting = ahead = degraded = window_count = 0
    problems: dict[str, None] = {}
    for window in windows:
        rows = window[ROWS]
        is_comparable, is_ahead = comparable_masks(window, tiles, views.until)
        is_degraded = window["degraded"].fill_null(value=False)
        ahead += int(rows.filter(is_ahead).sum())
        waiting += int(rows.filter(~is_comparable & ~is_ahead).sum())
        degraded += int(rows.filter(is_comparable & is_degraded).sum())
        comparable_requests = window.filter(is_comparable & ~is_degraded)
        compared_rows = 0
        for (number,), requests in comparable_requests.group_by("version", maintain_order=True):
            try:
                files = version(int(number))
                readable_requests = select_readable(requests, files.signature)
                readable_requests = readable_requests.filter(pl.col(ROWS).cum_sum() <= _MAX_ROWS)
                comparison = compare_version(readable_requests, files, views.folder, max_age)
            except ShortlistError as problem:
                problems[f"version {number}: {problem}"] = None
                continue
            if readable_requests.height < requests.height and readable_requests[ROWS].sum() < _MAX_ROWS // 2:
                problems[
                    f"version {number}: {requests.height - readable_requests.height} requests hold other columns"
                ] = None
            comparisons.append((int(number), comparison))
            compared_rows += comparison.rows
        window_count += 1
        if compared_rows >= limits.min_rows or window_count >= _MAX_WINDOWS:
            break
    return _combine(spec, now, comparisons, limits).model_copy(
        update={"waiting": waiting, "ahead": ahead, "degraded": degraded, "problems": tuple(problems)}
    )


def _combine(
    spec: str, now: datetime, comparisons: list[tuple[int, VersionComparison]], limits: ServedFeaturesLimits
) -> ServedFeaturesReport:  # fmt: skip
    versions: dict[int, int] = {}
    columns: dict[str, ServedColumn] = {}
    for version, comparison in comparisons:
        versions[version] = versions.get(version, 0) + comparison.rows
        for place, column in comparison.columns.items():
            columns[place] = _add_columns(columns[place], column) if place in columns else column
    firsts = [comparison.first for _, comparison in comparisons if comparison.first is not None]
    lasts = [comparison.last for _, comparison in comparisons if comparison.last is not None]
    return ServedFeaturesReport(
        spec=spec, made=now, first=min(firsts, default=None), last=max(lasts, default=None),
        requests=sum(comparison.requests for _, comparison in comparisons),
        rows=sum(comparison.rows for _, comparison in comparisons), versions=versions,
        max_unequal=limits.max_unequal, min_rows=limits.min_rows, columns=columns,
    )  # fmt: skip


def _add_columns(first: ServedColumn, second: ServedColumn) -> ServedColumn:
    """Return the sum of a column's two comparisons; the cause is that of the one with more unequal rows."""
    worse = max(first, second, key=lambda column: column.compared - column.equal)
    distances = [column.largest_difference for column in (first, second) if column.largest_difference is not None]
    return ServedColumn(
        compared=first.compared + second.compared, equal=first.equal + second.equal, stale=first.stale + second.stale,
        counted=first.counted + second.counted, largest_difference=max(distances, default=None), cause=worse.cause,
        reason=worse.reason,
    )  # fmt: skip
