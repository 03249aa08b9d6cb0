"""The windows of live traffic: which exist, which are mature, and their content."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

import polars as pl

from monitoring.windows.answered_requests import (
    ANSWER_COLUMNS,
    REQUEST,
    ROWS,
    select_answered,
    summarize_answers,
)
from monitoring.windows.feature_sample import select_sampled
from monitoring.windows.live_window import LiveWindow
from monitoring.windows.log_index import QUARTER, LogIndex
from monitoring.windows.slates import SLATE_COLUMNS
from monitoring.windows.spans import Span, window_span
from monitoring.windows.window_reader import WindowReader, max_age_hours
from shortlist.contracts import ShortlistError
from shortlist.features.values.columns import DeclaredColumns
from shortlist.serving.log.logs import item_type, outcome_columns, outcome_schema, prediction_schema
from shortlist.serving.log.serving_log import ServingLog
from shortlist.serving.paths import ServingPaths
from shortlist.serving.stack_secrets import sampling_key
from shortlist.spec.data import Data
from shortlist.spec.monitoring import Monitoring
from shortlist.spec.serving import Serving

__all__ = ["AvailableWindows", "LiveWindow", "Span", "Windows"]

_INDEX_FOLDER: Final = "log_index"
"""Folder of the index of the prediction log, beside the log. The number in a file's name is its format version."""


@dataclass(frozen=True)
class AvailableWindows:
    """The windows of live traffic, as far as they can be judged."""

    mature: tuple[Span, ...]
    """Spans of the windows that can be judged, in order; a window without answered requests is left out."""
    waiting: str
    """One line about what cannot be judged yet, or cannot be read; may be empty."""


class Windows:
    """A spec's live traffic, cut into windows.

    Windows are made by the moments of requests (`event_time` as sent, else the time of the answer) on the wall clock of
    the log's timezone. The logs may have any length: a bounded number of rows is read at once, and only new rows and
    those that a window needs are read.

    Args:
        paths: Folders of the spec's logs.
        data: Declaration of the log.
        log: Folder of the valid log, whose side tables are joined.
        settings: The spec's `monitoring` section.
        now: The present moment.
        serving: The spec's `serving` section: the share of the answers that are logged (outcomes of the others are no
            orphans), and who vouches for users.
    """

    def __init__(
        self, paths: ServingPaths, data: Data, log: Path, settings: Monitoring, now: datetime,
        serving: Serving | None = None,
    ) -> None:  # fmt: skip
        self._paths, self._data, self._log = paths, data, log
        self._settings, self._now, self._serving = settings, now, serving or Serving()
        self._maturity = timedelta(hours=settings.window.maturity_hours)

    def find(self) -> AvailableWindows:
        """Return the available windows.

        Raises:
            ShortlistError: There is no prediction log, or no file of it can be read.
        """
        requests = self._count_requests()
        mature = [span for span in requests if span.end + self._maturity <= self._now]
        waiting = [self._waiting_message(span, count) for span, count in requests.items() if span not in mature][-1:]
        problems = [*self._predictions.log.problems]
        if problems:
            waiting.append(f"{len(problems)} file(s) or record(s) of the prediction log are left out: {problems[0]}")
        return AvailableWindows(tuple(mature), "; ".join(waiting))

    def read(self, span: Span) -> LiveWindow:
        """Return the window of a span.

        Raises:
            ShortlistError: A side table cannot be read.
        """
        return self._reader.read(span)

    def sampled_requests(self, span: Span) -> pl.DataFrame:
        """Return the answered requests of a window that hold feature values, each once."""
        pieces = self._reader.iter_answered(span, None)
        empty = select_answered(self._predictions.log.empty(self._predictions.log.declared.names))
        requests = pl.concat(select_sampled(piece).filter(pl.col(ROWS) > 0) for piece in (empty, *pieces))
        return requests.unique(REQUEST, keep="first", maintain_order=True)

    def slate_requests(self, span: Span) -> pl.DataFrame:
        """Return the answered requests of a window with the columns that `measure_slate_traffic` needs, each once."""
        columns = tuple(dict.fromkeys((*ANSWER_COLUMNS, *SLATE_COLUMNS)))
        pieces = select_answered(self._predictions.log.empty(columns)), *self._reader.iter_answered(span, columns)
        frames = (piece.select(REQUEST, *SLATE_COLUMNS) for piece in pieces)
        return pl.concat(frames).unique(REQUEST, keep="first", maintain_order=True)

    @cached_property
    def _reader(self) -> WindowReader:
        return WindowReader(
            self._data, self._log, self._settings, self._predictions, self._outcomes, self._serving,
            sampling_key(self._paths.secrets),
        )  # fmt: skip

    @cached_property
    def _predictions(self) -> LogIndex:
        max_hours = max_age_hours(self._settings, self._data)
        log = ServingLog.of_spec(self._paths, "predictions", prediction_schema(self._data))
        # Moments depend on the bound.
        index_file = self._paths.root / _INDEX_FOLDER / f"predictions-3-{max_hours or 'any'}.json"
        index = LogIndex(log, ANSWER_COLUMNS, partial(summarize_answers, max_age_hours=max_hours), index_file)
        index.refresh()
        return index

    @cached_property
    def _outcomes(self) -> ServingLog:
        columns = outcome_columns(self._data)
        further_columns = {label.column: columns[label.column] for label in self._data.labels.values()}
        schema = outcome_schema(item_type(self._data), further_columns)
        log = ServingLog.of_spec(self._paths, "outcomes", schema)
        log.commit()
        return log

    def _count_requests(self) -> dict[Span, int]:
        """Return the number of requests of each window, in order of time."""
        index = self._predictions
        if index.quarters.is_empty():
            if index.log.unreadable:
                first = next(iter(index.log.unreadable.values()))
                raise ShortlistError(f"no file of the prediction log can be read; the first of them: {first}")
            raise ShortlistError(
                f"{index.log.address}: there is no prediction log yet, so there is no live traffic to evaluate;"
                " serve the spec and send it requests"
            )
        zone = ZoneInfo(DeclaredColumns(self._data).timezone)
        counts: dict[Span, int] = {}
        quarters = index.quarters
        if max_age_hours(self._settings, self._data) is not None:
            # Clients say which moment a request is about: none opens a window before anything was answered.
            quarters = quarters.filter(pl.col(QUARTER) >= quarters["first"].dt.truncate("15m").min())
        for quarter, requests in quarters.select(QUARTER, "requests").iter_rows():
            span = window_span(quarter, self._settings.window.hours, zone)
            counts[span] = counts.get(span, 0) + requests
        return counts

    def _waiting_message(self, span: Span, requests: int) -> str:
        mature = span.end + self._maturity
        return (
            f"the window from {span.start:%Y-%m-%d %H:%M} to {span.end:%Y-%m-%d %H:%M} UTC has {requests:,} requests so"
            f" far and is judged from {mature:%Y-%m-%d %H:%M} on, if {self._settings.window.min_rows:,} rows have an"
            " outcome by then"
        )
