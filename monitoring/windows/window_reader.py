"""One window of live traffic, read piece by piece: its requests, their outcomes, the rows of a sample."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import polars as pl

from monitoring.windows import answered as log
from monitoring.windows import live_outcomes
from monitoring.windows.answered import MOMENT, REQUEST, ROWS, answered, future_rows
from monitoring.windows.known_columns import empty_as_null, with_side_columns
from monitoring.windows.live_outcomes import LiveOutcomes
from monitoring.windows.live_rows import RowExploder
from monitoring.windows.live_window import LiveWindow
from monitoring.windows.part_index import PartIndex
from monitoring.windows.spans import Span
from shortlist.contracts import Columns
from shortlist.serving.log.log_writer import is_sampled
from shortlist.spec.data import Data, GeneratedSource
from shortlist.spec.monitoring import Monitoring

_BEFORE: Final = timedelta(hours=1)
"""By how much an outcome may seem to come before its answer: clocks of two machines."""
_LONGEST: Final = timedelta(days=1)
"""Requests answered so long before an outcome, or longer in long windows, are looked for before it is an orphan."""


@dataclass(frozen=True)
class WindowReader:
    """Where live traffic is written down, and how it is read."""

    data: Data
    log: Path
    """Folder of the valid log, for its side tables."""
    settings: Monitoring
    predictions: PartIndex
    outcomes: PartIndex
    sampling: float
    """Share of the answers that the prediction log takes, for answers that do not say it."""

    def read(self, span: Span) -> LiveWindow:
        """Return what is in a stretch of time.

        Raises:
            ShortlistError: A side table cannot be read.
        """
        requests, future = self._requests(span)
        mature = span.end + timedelta(hours=self.settings.window.maturity_hours)
        joined = LiveOutcomes(requests, mature, self.settings.window.max_rows, self.data.labels)
        began, ended = requests["time"].min(), requests["time"].max()
        orphans = 0
        if isinstance(began, datetime) and isinstance(ended, datetime):
            wanted = live_outcomes.read_columns(self.data)
            for piece in self.outcomes.read(self.outcomes.written(began - _BEFORE), wanted):
                joined.add(piece)
            before = max(_LONGEST, mature - span.start)
            orphans = joined.out_of_range_outcomes + self._orphans(
                joined.unmatched_outcomes, began - before, ended + _BEFORE
            )
        rows, scored = self._rows(span, joined.shown(), self._sample(requests))
        return LiveWindow(
            start=span.start, end=span.end, requests=requests.height, rows=rows, coverage=joined.coverage,
            late=joined.late, duplicates=joined.duplicates, orphans=orphans, future=future, scored=scored,
            unreadable=(*self.predictions.unreadable, *self.outcomes.unreadable),
        )  # fmt: skip

    def _answered(self, span: Span, columns: tuple[str, ...] | None) -> Iterator[pl.DataFrame]:
        inside = pl.col(MOMENT).is_between(*span, closed="left")
        for piece in self.predictions.read(self.predictions.about(*span), columns):
            yield answered(piece, max_age_hours(self.settings, self.data)).filter(inside)

    def _requests(self, span: Span) -> tuple[pl.DataFrame, int]:
        """Return time, request, moment and rows of all requests, each id once, and how many rows are in the future."""
        found, future = [answered(self.predictions.empty()).select("time", REQUEST, MOMENT, ROWS)], 0
        for piece in self._answered(span, log.READ):
            future += future_rows(piece, self.settings.checks.max_clock_skew_minutes)
            found.append(piece.select("time", REQUEST, MOMENT, ROWS))
        return pl.concat(found).unique(REQUEST, keep="first", maintain_order=True), future

    def _sample(self, requests: pl.DataFrame) -> pl.Series:
        """Return requests of which all scores are kept, those with the smallest hashes, as many as fit."""
        ordered = requests.filter(pl.col(ROWS) > 0).sort(REQUEST)
        return ordered.filter(pl.col(ROWS).cum_sum() <= self.settings.window.max_rows)[REQUEST]

    def _rows(self, span: Span, shown: pl.DataFrame, sample: pl.Series) -> tuple[pl.DataFrame, pl.DataFrame]:
        unfolder = RowExploder(self.data, self.settings.checks.max_clock_skew_minutes, self.sampling)
        rows, scored, seen = [], [], pl.Series(REQUEST, dtype=pl.UInt64)
        for piece in (answered(self.predictions.empty()), *self._answered(span, None)):
            # A request that broke off and was sent to another replica may be in the logs of both.
            requests = piece.unique(REQUEST, keep="first", maintain_order=True)
            requests = requests.filter(~pl.col(REQUEST).is_in(seen.implode()))
            seen = pl.concat([seen, requests[REQUEST]])
            rows.append(unfolder.rows(requests, shown))
            some = requests.filter(pl.col(REQUEST).is_in(sample.implode()))
            shares = some.select("version", log.weight(self.sampling), score="scores")
            scored.append(shares.explode("score", empty_as_null=False))
        every = pl.concat(rows).unique(["request_id", "row"], keep="first").sort(Columns.TIME, "request_id", "row")
        return empty_as_null(with_side_columns(every, self.data, self.log)), pl.concat(scored)

    def _orphans(self, unmatched_outcomes: pl.DataFrame, since: datetime, until: datetime) -> int:
        """Return how many outcomes belong to no request that was answered in a stretch of time, or refused."""
        if unmatched_outcomes.height and self.sampling < 1:
            sampled = [is_sampled(name, self.sampling) for name in unmatched_outcomes["request_id"]]
            unmatched_outcomes = unmatched_outcomes.filter(pl.Series(sampled, dtype=pl.Boolean))
        if unmatched_outcomes.height:
            for piece in self.predictions.read(self.predictions.written(since, until), ("request_id",)):
                unmatched_outcomes = unmatched_outcomes.join(piece, on="request_id", how="anti")
        return int(unmatched_outcomes["outcomes"].sum())


def max_age_hours(settings: Monitoring, data: Data) -> float | None:
    """Return how long before its answer the moment of a request may lie; None: any time."""
    return None if isinstance(data.source, GeneratedSource) else settings.window.max_age_hours
