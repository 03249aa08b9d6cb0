"""The comparison of one monitoring run: which requests are compared, and what all versions have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

import polars as pl

from monitoring.served_features.comparison import Comparison, ServedModelFiles, comparable, compare
from monitoring.served_features.record import ServedColumn, ServedFeatures
from monitoring.windows.answered_requests import ROWS
from monitoring.windows.feature_sample import select_readable
from shortlist.contracts import ShortlistError
from shortlist.features.view_index import ViewIndex
from shortlist.spec.durations import parse_duration
from shortlist.spec.monitoring import ServedFeaturesLimits

_MOST_WINDOWS: Final = 7
_MOST_ROWS: Final = 50_000


@dataclass(frozen=True)
class PublishedViews:
    """The statistics that servers look up at present; they hold the values of every moment before."""

    folder: Path
    until: datetime
    """The moment up to which they hold everything."""


def compare_served(
    spec: str, windows: Iterable[pl.DataFrame], version: Callable[[int], ServedModelFiles], views: PublishedViews,
    limits: ServedFeaturesLimits, now: datetime,
) -> ServedFeatures:  # fmt: skip
    """Return how the feature values of the newest comparable requests agree with the feature table's.

    Windows are read from the newest backwards until enough rows were compared: what was mended counts no more once a
    whole window of rows is sound.

    Args:
        spec: Name of the spec.
        windows: Requests of each window that keep their feature values, the newest window first; columns of the
            prediction log and `ROWS`.
        version: Gives the files of a registered version.
        views: As they are published.
        limits: As declared.
        now: When it is made.
    """
    tiles = ViewIndex.read(views.folder).tiles
    max_age = None if limits.max_age is None else parse_duration(limits.max_age)
    found: list[tuple[int, Comparison]] = []
    waiting = ahead = degraded = seen = 0
    problems: dict[str, None] = {}
    for window in windows:
        rows = window[ROWS]
        is_comparable, is_ahead = comparable(window, tiles, views.until)
        is_degraded = window["degraded"].fill_null(value=False)
        ahead += int(rows.filter(is_ahead).sum())
        waiting += int(rows.filter(~is_comparable & ~is_ahead).sum())
        degraded += int(rows.filter(is_comparable & is_degraded).sum())
        chosen = window.filter(is_comparable & ~is_degraded)
        compared = 0
        for (number,), requests in chosen.group_by("version", maintain_order=True):
            try:
                files = version(int(number))
                own = select_readable(requests, files.signature)
                own = own.filter(pl.col(ROWS).cum_sum() <= _MOST_ROWS)
                comparison = compare(own, files, views.folder, max_age)
            except ShortlistError as problem:
                problems[f"version {number}: {problem}"] = None
                continue
            if own.height < requests.height and own[ROWS].sum() < _MOST_ROWS // 2:
                problems[f"version {number}: {requests.height - own.height} requests hold other columns"] = None
            found.append((int(number), comparison))
            compared += comparison.rows
        seen += 1
        if compared >= limits.min_rows or seen >= _MOST_WINDOWS:
            break
    return _joined(spec, now, found, limits).model_copy(
        update={"waiting": waiting, "ahead": ahead, "degraded": degraded, "problems": tuple(problems)}
    )


def _joined(
    spec: str, now: datetime, found: list[tuple[int, Comparison]], limits: ServedFeaturesLimits
) -> ServedFeatures:  # fmt: skip
    versions: dict[int, int] = {}
    columns: dict[str, ServedColumn] = {}
    for version, one in found:
        versions[version] = versions.get(version, 0) + one.rows
        for place, column in one.columns.items():
            columns[place] = _sum(columns[place], column) if place in columns else column
    firsts = [one.first for _, one in found if one.first is not None]
    lasts = [one.last for _, one in found if one.last is not None]
    return ServedFeatures(
        spec=spec, made=now, first=min(firsts, default=None), last=max(lasts, default=None),
        requests=sum(one.requests for _, one in found), rows=sum(one.rows for _, one in found), versions=versions,
        max_unequal=limits.max_unequal, min_rows=limits.min_rows, columns=columns,
    )  # fmt: skip


def _sum(one: ServedColumn, other: ServedColumn) -> ServedColumn:
    """Return a column of two comparisons; the cause is that of the one with more unequal rows."""
    worse = max(one, other, key=lambda each: each.compared - each.equal)
    distances = [each.largest_difference for each in (one, other) if each.largest_difference is not None]
    return ServedColumn(
        compared=one.compared + other.compared, equal=one.equal + other.equal, stale=one.stale + other.stale,
        counted=one.counted + other.counted, largest_difference=max(distances, default=None), cause=worse.cause,
        reason=worse.reason,
    )  # fmt: skip
