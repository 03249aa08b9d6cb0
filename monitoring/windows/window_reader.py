"""Reads one window of live traffic piece by piece: its requests, their outcomes, and the rows of a sample."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import polars as pl

from monitoring.windows.answered_requests import (
    ANSWER_COLUMNS,
    MOMENT,
    REQUEST,
    ROWS,
    future_rows,
    impression_weight,
    select_answered,
)
from monitoring.windows.known_columns import empty_as_null, with_side_columns
from monitoring.windows.live_outcomes import LiveOutcomes, outcome_log_columns
from monitoring.windows.live_rows import RowExploder
from monitoring.windows.live_window import LiveWindow
from monitoring.windows.part_index import PartIndex
from monitoring.windows.spans import Span
from shortlist.contracts import Columns
from shortlist.serving.log.log_writer import is_sampled
from shortlist.spec.data import Data, GeneratedSource
from shortlist.spec.monitoring import Monitoring

_MAX_CLOCK_DIFFERENCE: Final = timedelta(hours=1)
"""Longest time by which an outcome may precede its answer, because the clocks of two machines differ."""
_FUTURE: Final = ":future"
_MIN_LOOKBACK: Final = timedelta(days=1)
"""Requests answered up to this long before an outcome (longer in long windows) are searched before it is an orphan."""


@dataclass(frozen=True)
class WindowReader:
    """Reads windows from the prediction log and the outcome log."""

    data: Data
    log: Path
    """Folder of the valid log, for its side tables."""
    settings: Monitoring
    predictions: PartIndex
    outcomes: PartIndex
    sampling: float
    """The logged share of answers that do not record it."""

    def read(self, span: Span) -> LiveWindow:
        """Return the window of a span of time.

        Raises:
            ShortlistError: A side table cannot be read.
        """
        requests, future = self._requests(span)
        mature = span.end + timedelta(hours=self.settings.window.maturity_hours)
        outcomes = LiveOutcomes(requests, mature, self.settings.window.max_rows, self.data.labels)
        first_answer, last_answer = requests["time"].min(), requests["time"].max()
        orphans = 0
        if isinstance(first_answer, datetime) and isinstance(last_answer, datetime):
            columns = outcome_log_columns(self.data)
            for piece in self.outcomes.read(self.outcomes.written(first_answer - _MAX_CLOCK_DIFFERENCE), columns):
                outcomes.add(piece)
            lookback = max(_MIN_LOOKBACK, mature - span.start)
            orphans = outcomes.out_of_range_outcomes + self._count_orphans(
                outcomes.unmatched_outcomes, first_answer - lookback, last_answer + _MAX_CLOCK_DIFFERENCE
            )
        rows, scored = self._rows(span, outcomes.sample_rows(), self._sample(requests))
        return LiveWindow(
            start=span.start, end=span.end, requests=requests.height, rows=rows, coverage=outcomes.coverage,
            late=outcomes.late, duplicates=outcomes.duplicates, orphans=orphans, future=future, scored=scored,
            unreadable=(*self.predictions.unreadable, *self.outcomes.unreadable),
            answered_rows=int(requests[ROWS].sum()),
        )  # fmt: skip

    def _iter_answered(self, span: Span, columns: tuple[str, ...] | None) -> Iterator[pl.DataFrame]:
        in_span = pl.col(MOMENT).is_between(*span, closed="left")
        for piece in self.predictions.read(self.predictions.about(*span), columns):
            yield select_answered(piece, max_age_hours(self.settings, self.data)).filter(in_span)

    def _requests(self, span: Span) -> tuple[pl.DataFrame, int]:
        """Return time, request, moment and rows of all requests, each id once, and the number of rows in the future."""
        future = future_rows(self.settings.checks.max_clock_skew_minutes).alias(_FUTURE)
        pieces = [
            piece.select("time", REQUEST, MOMENT, ROWS, future)
            for piece in (select_answered(self.predictions.empty()), *self._iter_answered(span, ANSWER_COLUMNS))
        ]
        requests = pl.concat(pieces).unique(REQUEST, keep="first", maintain_order=True)
        return requests.drop(_FUTURE), int(requests[_FUTURE].sum())

    def _sample(self, requests: pl.DataFrame) -> pl.Series:
        """Return the requests whose scores are all kept: those with the smallest hashes, as many as fit."""
        ordered = requests.filter(pl.col(ROWS) > 0).sort(REQUEST)
        return ordered.filter(pl.col(ROWS).cum_sum() <= self.settings.window.max_rows)[REQUEST]

    def _rows(self, span: Span, outcomes: pl.DataFrame, sample: pl.Series) -> tuple[pl.DataFrame, pl.DataFrame]:
        exploder = RowExploder(self.data, self.settings.checks.max_clock_skew_minutes, self.sampling)
        rows, scored, read_requests = [], [], pl.Series(REQUEST, dtype=pl.UInt64)
        for piece in (select_answered(self.predictions.empty()), *self._iter_answered(span, None)):
            # A request that was interrupted and sent again to another replica may be in the logs of both.
            requests = piece.unique(REQUEST, keep="first", maintain_order=True)
            requests = requests.filter(~pl.col(REQUEST).is_in(read_requests.implode()))
            read_requests = pl.concat([read_requests, requests[REQUEST]])
            rows.append(exploder.explode(requests, outcomes))
            sampled = requests.filter(pl.col(REQUEST).is_in(sample.implode()))
            sampled_scores = sampled.select("version", impression_weight(self.sampling), score="scores")
            scored.append(sampled_scores.explode("score", empty_as_null=False))
        all_rows = pl.concat(rows).unique(["request_id", "row"], keep="first").sort(Columns.TIME, "request_id", "row")
        return empty_as_null(with_side_columns(all_rows, self.data, self.log)), pl.concat(scored)

    def _count_orphans(self, unmatched_outcomes: pl.DataFrame, since: datetime, until: datetime) -> int:
        """Return how many outcomes belong to no logged request of a span of time."""
        if unmatched_outcomes.height and self.sampling < 1:
            is_logged = [is_sampled(name, self.sampling) for name in unmatched_outcomes["request_id"]]
            unmatched_outcomes = unmatched_outcomes.filter(pl.Series(is_logged, dtype=pl.Boolean))
        if unmatched_outcomes.height:
            for piece in self.predictions.read(self.predictions.written(since, until), ("request_id",)):
                unmatched_outcomes = unmatched_outcomes.join(piece, on="request_id", how="anti")
        return int(unmatched_outcomes["outcomes"].sum())


def max_age_hours(settings: Monitoring, data: Data) -> float | None:
    """Return how long before its answer the moment of a request may lie; None: any time."""
    return None if isinstance(data.source, GeneratedSource) else settings.window.max_age_hours
