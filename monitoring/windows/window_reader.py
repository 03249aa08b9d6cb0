"""Reads one window of live traffic piece by piece: its requests, their outcomes, and the rows of a sample."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from monitoring.windows.answered_requests import (
    ANSWER_COLUMNS,
    MOMENT,
    REQUEST,
    REQUEST_ID,
    ROWS,
    future_rows,
    impression_weight,
    list_contributors,
    request_id_hash,
    select_answered,
)
from monitoring.windows.known_columns import empty_as_null, with_side_columns
from monitoring.windows.live_outcomes import LiveOutcomes, outcome_log_columns
from monitoring.windows.live_rows import RowExploder
from monitoring.windows.live_window import LiveWindow
from monitoring.windows.log_index import LogIndex
from monitoring.windows.spans import Span
from shortlist.contracts import Columns
from shortlist.data.rules.contributions import AMOUNT, CONTRIBUTORS, ROW_ID, find_excesses
from shortlist.serving.log.log_writer import is_sampled
from shortlist.serving.log.outcome_rows import find_rows, names_item_alone
from shortlist.serving.log.serving_log import ServingLog
from shortlist.spec.data import Data, GeneratedSource
from shortlist.spec.monitoring import Monitoring
from shortlist.spec.serving import Serving

_MAX_CLOCK_DIFFERENCE: Final = timedelta(hours=1)
"""Longest time by which an outcome may precede its answer, because the clocks of two machines differ."""
_LATEST: Final = timedelta(days=1)
"""Longest time after a window is mature that its outcomes are read, so that its labels do not depend on when it is."""
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
    predictions: LogIndex
    outcomes: ServingLog
    serving: Serving
    """The spec's section: the logged share of answers that do not record it, and who vouches for users."""
    sampling_key: str = ""
    """Key of the hash that chose the logged answers."""

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
            latest = max(mature, last_answer + (mature - span.start)) + _LATEST
            nameless = []
            for piece in self.outcomes.read(columns, first_answer - _MAX_CLOCK_DIFFERENCE, latest):
                nameless.append(piece.filter(names_item_alone()))
                outcomes.add(piece.filter(~names_item_alone()))
            outcomes.add(self._find_rows(span, pl.concat(nameless)) if nameless else self.outcomes.empty(columns))
            lookback = max(_MIN_LOOKBACK, mature - span.start)
            orphans = outcomes.out_of_range_outcomes + self._count_orphans(
                outcomes.unmatched_outcomes, first_answer - lookback, last_answer + _MAX_CLOCK_DIFFERENCE
            )
        rows, scored = self._rows(span, outcomes.sample_rows(), requests)
        return LiveWindow(
            start=span.start, end=span.end, requests=requests.height, rows=rows, coverage=outcomes.coverage,
            late=outcomes.late, duplicates=outcomes.duplicates, orphans=orphans, future=future, scored=scored,
            unreadable=(*self.predictions.log.unreadable.values(), *self.outcomes.unreadable.values()),
            answered_rows=int(requests[ROWS].sum()),
        )  # fmt: skip

    def iter_answered(self, span: Span, columns: tuple[str, ...] | None) -> Iterator[pl.DataFrame]:
        """Yield the answered requests of a span, a bounded number at once; see `select_answered`.

        Args:
            span: The span of time that the requests are about.
            columns: Columns of the prediction log; None for all.
        """
        in_span = pl.col(MOMENT).is_between(*span, closed="left")
        received = self.predictions.received(*span)
        if received is not None:
            log = self.predictions.log
            for piece in log.read(columns or log.declared.names, *received):
                hours = max_age_hours(self.settings, self.data)
                yield select_answered(piece, hours, self.sampling_key).filter(in_span)

    def _requests(self, span: Span) -> tuple[pl.DataFrame, int]:
        """Return time, request, moment and rows of all requests, each once, and the number of rows in the future.

        Requests beyond the share of their user or sender are left out: nobody alone decides what a window says.
        """
        future = future_rows(self.settings.checks.max_clock_skew_minutes).alias(_FUTURE)
        columns = (*ANSWER_COLUMNS, "user")
        empty = select_answered(self.predictions.log.empty(columns))
        pieces = [
            piece.select("time", REQUEST, REQUEST_ID, MOMENT, ROWS, future, *list_contributors(piece, self.serving))
            for piece in (empty, *self.iter_answered(span, columns))
        ]
        requests = pl.concat(pieces).unique(REQUEST, keep="first", maintain_order=True)
        shared = requests.with_columns(pl.max_horizontal(ROWS, 1).alias(AMOUNT), pl.col(REQUEST).alias(ROW_ID))
        requests = requests.filter(find_excesses(shared, self.data.live.max_share).is_null()).drop(*CONTRIBUTORS)
        return requests.drop(_FUTURE), int(requests[_FUTURE].sum())

    def _find_rows(self, span: Span, nameless: pl.DataFrame) -> pl.DataFrame:
        """Return outcomes that name an item alone with its row in the answer of their id, null where it has none."""
        if nameless.is_empty():
            return nameless
        ids = nameless["request_id"].unique().implode()
        columns = tuple(dict.fromkeys((*ANSWER_COLUMNS, "items")))
        answers = [
            piece.filter(pl.col("request_id").is_in(ids)).select(pl.col("request_id").alias(REQUEST), "items")
            for piece in self.iter_answered(span, columns)
        ]
        if not answers:
            return nameless
        first_answers = pl.concat(answers).unique(REQUEST, keep="first", maintain_order=True)
        return find_rows(nameless.with_columns(pl.col("request_id").alias(REQUEST)), first_answers).drop(REQUEST)

    def _sample(self, requests: pl.DataFrame) -> pl.Series:
        """Return the requests whose scores are all kept: those with the smallest hashes, as many as fit."""
        ordered = requests.filter(pl.col(ROWS) > 0).sort(REQUEST)
        return ordered.filter(pl.col(ROWS).cum_sum() <= self.settings.window.max_rows)[REQUEST]

    def _rows(self, span: Span, outcomes: pl.DataFrame, requests: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        exploder = RowExploder(self.data, self.settings.checks.max_clock_skew_minutes, self.serving.log.sampling)
        sample, unread = self._sample(requests), UnreadRequests(requests[REQUEST])
        rows, scored = [], []
        empty = select_answered(self.predictions.log.empty(self.predictions.log.declared.names))
        for piece in (empty, *self.iter_answered(span, None)):
            # A request that was interrupted and sent again to another replica may be in the logs of both.
            unique = piece.unique(REQUEST, keep="first", maintain_order=True)
            new_requests = unique.filter(unread.take(unique[REQUEST]))
            rows.append(exploder.explode(new_requests, outcomes))
            sampled = new_requests.filter(pl.col(REQUEST).is_in(sample.implode()))
            sampled_scores = sampled.select("version", impression_weight(self.serving.log.sampling), score="scores")
            scored.append(sampled_scores.explode("score", empty_as_null=False))
        all_rows = pl.concat(rows).sort(Columns.TIME, "request_id", "row")
        return empty_as_null(with_side_columns(all_rows, self.data, self.log)), pl.concat(scored)

    def _count_orphans(self, unmatched_outcomes: pl.DataFrame, since: datetime, until: datetime) -> int:
        """Return how many outcomes belong to no logged request of a span of time."""
        if unmatched_outcomes.height and self.serving.log.sampling < 1:
            share, key = self.serving.log.sampling, self.sampling_key
            is_logged = [is_sampled(name, share, key) for name in unmatched_outcomes["request_id"]]
            unmatched_outcomes = unmatched_outcomes.filter(pl.Series(is_logged, dtype=pl.Boolean))
        if unmatched_outcomes.height:
            hashed = unmatched_outcomes.select(request_id_hash(), "outcomes")
            unlogged = UnreadRequests(hashed[REQUEST_ID])
            for piece in self.predictions.log.read(("request_id",), since, until):
                unlogged.take(piece.select(request_id_hash()).to_series())
            unmatched_outcomes = hashed.filter(unlogged.take(hashed[REQUEST_ID]))
        return int(unmatched_outcomes["outcomes"].sum())


class UnreadRequests:
    """Which of some requests were not read before; a look-up does not take longer, however many were read.

    Args:
        requests: Hashes of the requests, each once.
    """

    def __init__(self, requests: pl.Series) -> None:
        self._hashes = np.sort(requests.to_numpy())
        self._is_unread = np.ones(len(self._hashes), np.bool_)

    def take(self, requests: pl.Series) -> pl.Series:
        """Return which of these requests are among them and were not taken before; they are taken now."""
        values = requests.to_numpy()
        if not len(self._hashes):
            return pl.Series(np.zeros(len(values), np.bool_))
        places = np.searchsorted(self._hashes, values).clip(max=len(self._hashes) - 1)
        is_taken = (self._hashes[places] == values) & self._is_unread[places]
        self._is_unread[places[is_taken]] = False
        return pl.Series(is_taken)


def max_age_hours(settings: Monitoring, data: Data) -> float | None:
    """Return how long before its answer the moment of a request may lie; None: any time."""
    return None if isinstance(data.source, GeneratedSource) else settings.window.max_age_hours
