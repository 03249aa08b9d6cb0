"""Windows of live traffic: which are there, which of them are mature, and what is in one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

import polars as pl

from monitoring.windows import answered, live_outcomes
from monitoring.windows.feature_sample import sampled
from monitoring.windows.live_window import LiveWindow
from monitoring.windows.part_index import QUARTER, PartIndex
from monitoring.windows.slates import READ
from monitoring.windows.spans import Span, span_of
from monitoring.windows.window_reader import WindowReader, max_age_hours
from shortlist.contracts import ShortlistError
from shortlist.features.columns import DeclaredColumns
from shortlist.serving.log.logs import item_type, outcome_columns, outcome_schema, prediction_schema
from shortlist.serving.paths import ServingPaths
from shortlist.spec.data import Data
from shortlist.spec.monitoring import Monitoring

__all__ = ["Found", "LiveWindow", "Span", "Windows"]

_INDEX: Final = "log_index"
"""Folder, beside the logs, of what is known of their parts. The number in its files' names is that of their meaning."""


@dataclass(frozen=True)
class Found:
    """The windows that live traffic has."""

    mature: tuple[Span, ...]
    """Those that can be judged, in order; one without any answered request is not there."""
    waiting: str
    """What cannot be judged yet, or not at all, in one line; empty when there is nothing such."""


class Windows:
    """A spec's live traffic, cut into windows.

    Windows follow the moments that requests are about (`event_time` as sent, else the time of the answer) on the wall
    clock of the log's timezone. The logs may be any length: they are read part by part, and of parts that were looked
    into before only those that a window needs.

    Args:
        paths: Where the spec's logs are.
        data: Declaration of the log.
        log: Folder of the valid log; its side tables are looked up.
        settings: The spec's section.
        now: The present moment.
        sampling: Share of the answers that the prediction log takes; outcomes of the others are no orphans.
    """

    def __init__(
        self, paths: ServingPaths, data: Data, log: Path, settings: Monitoring, now: datetime, sampling: float = 1.0
    ) -> None:
        self._paths, self._data, self._log = paths, data, log
        self._settings, self._now, self._sampling = settings, now, sampling
        self._maturity = timedelta(hours=settings.window.maturity_hours)

    def find(self) -> Found:
        """Return the windows that there are.

        Raises:
            ShortlistError: There is no prediction log, or nothing of it can be read.
        """
        requests = self._count()
        mature = [span for span in requests if span.end + self._maturity <= self._now]
        said = [self._not_ready(span, count) for span, count in requests.items() if span not in mature][-1:]
        problems = self._predictions.unreadable
        if problems:
            said.append(f"{len(problems)} file(s) of the prediction log cannot be read: {problems[0]}")
        return Found(tuple(mature), "; ".join(said))

    def read(self, span: Span) -> LiveWindow:
        """Return what is in a window; see `LiveWindow`.

        Raises:
            ShortlistError: A side table cannot be read.
        """
        reader = WindowReader(
            self._data, self._log, self._settings, self._predictions, self._outcomes, self._sampling
        )  # fmt: skip
        return reader.read(span)

    def sampled(self, span: Span) -> pl.DataFrame:
        """Return the answered requests of a window that keep their feature values, each once."""
        age = max_age_hours(self._settings, self._data)
        inside = pl.col(answered.MOMENT).is_between(*span, closed="left")
        pieces = self._predictions.read(self._predictions.about(*span))
        found = (answered.answered(sampled(piece), age) for piece in (self._predictions.empty(), *pieces))
        requests = pl.concat(one.filter(inside, pl.col(answered.ROWS) > 0) for one in found)
        return requests.unique(answered.REQUEST, keep="first", maintain_order=True)

    def slates(self, span: Span) -> pl.DataFrame:
        """Return the answered requests of a window as `monitoring.windows.slates` reads them, each once."""
        age = max_age_hours(self._settings, self._data)
        inside = pl.col(answered.MOMENT).is_between(*span, closed="left")
        pieces = self._predictions.read(self._predictions.about(*span), tuple(dict.fromkeys((*answered.READ, *READ))))
        some = [answered.answered(piece, age).filter(inside).select(answered.REQUEST, *READ) for piece in pieces]
        empty = answered.answered(self._predictions.empty(), age).select(answered.REQUEST, *READ)
        return pl.concat([empty, *some]).unique(answered.REQUEST, keep="first", maintain_order=True)

    @cached_property
    def _predictions(self) -> PartIndex:
        age = max_age_hours(self._settings, self._data)
        schema, summary = prediction_schema(self._data), partial(answered.summary_of_answers, max_age_hours=age)
        kept = self._paths.root / _INDEX / f"predictions-2-{age or 'any'}.parquet"  # moments depend on the bound
        return PartIndex(self._paths.predictions, schema, answered.READ, summary, kept).refreshed()

    @cached_property
    def _outcomes(self) -> PartIndex:
        known = outcome_columns(self._data)
        further = {label.column: known[label.column] for label in self._data.labels.values()}
        schema, summary = outcome_schema(item_type(self._data), further), answered.summary_of_outcomes
        kept = self._paths.root / _INDEX / "outcomes-1.parquet"
        return PartIndex(self._paths.outcomes, schema, live_outcomes.READ, summary, kept).refreshed()

    def _count(self) -> dict[Span, int]:
        """Return how many requests each window has, in order of time."""
        index = self._predictions
        if index.known.is_empty():
            if index.unreadable:
                raise ShortlistError(
                    f"no file of the prediction log can be read; the first of them: {index.unreadable[0]}"
                )
            raise ShortlistError(
                f"{self._paths.predictions}: there is no prediction log yet, so there is no live traffic to evaluate;"
                " serve the spec (make serve) and send it requests"
            )
        zone = ZoneInfo(DeclaredColumns(self._data).timezone)
        about = index.known.filter(pl.col("requests") > 0).group_by(QUARTER).agg(pl.col("requests").sum())
        counts: dict[Span, int] = {}
        for quarter, requests in about.sort(QUARTER).iter_rows():
            span = span_of(quarter, self._settings.window.hours, zone)
            counts[span] = counts.get(span, 0) + requests
        return counts

    def _not_ready(self, span: Span, requests: int) -> str:
        mature = span.end + self._maturity
        return (
            f"the window from {span.start:%Y-%m-%d %H:%M} to {span.end:%Y-%m-%d %H:%M} UTC has {requests:,} requests so"
            f" far and is judged from {mature:%Y-%m-%d %H:%M} on"
        )
