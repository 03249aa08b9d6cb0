"""Answered requests and their outcomes as rows of the log."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import numpy as np
import polars as pl

from monitoring.windows.answered import REQUEST, ROWS, weight
from monitoring.windows.known_columns import empty_as_null
from monitoring.windows.live_rows import Ints, Unfold
from shortlist.collecting.live_labels import Labels
from shortlist.collecting.live_log import LINE, PART
from shortlist.contracts import Columns
from shortlist.data.clock import event_days
from shortlist.data.collected import ANSWERED
from shortlist.features.hashing import codes_of
from shortlist.recommending.candidate_columns import type_of
from shortlist.serving.log.logs import logged_name
from shortlist.spec.data import Data, EventClock

_OWN_IDS: Final = np.uint64(1) << np.uint64(62)
"""Ids of collected impressions begin here, far above those that people number impressions with."""
_ODD: Final = np.uint64(0x9E3779B97F4A7C15)


class LiveRows:
    """The rows of some requests.

    Args:
        data: The log's declaration.
        sampling: Share of the answers that the log takes, for answers that do not say it.
    """

    def __init__(self, data: Data, sampling: float) -> None:
        assert isinstance(data.clock, EventClock)
        self._data, self._clock, self._sampling = data, data.clock, sampling
        self.without_outcome = 0
        self.before_since = 0

    def rows(self, requests: pl.DataFrame, labels: Labels) -> pl.DataFrame:
        """Return the rows, whether they keep the rules of the log or not.

        Args:
            requests: Columns of the prediction log and request, rows, `PART`, `LINE`; each request once.
            labels: Their outcomes.
        """
        unfolded = self._unfolded(requests)
        known = unfolded.join(labels.frame, on=[REQUEST, "row"], how="left", maintain_order="left")
        self.without_outcome = known[Columns.LABEL].null_count()
        if self._data.live.missing_outcome == "negative":
            known = known.with_columns(pl.col(Columns.LABEL).fill_null(0))
        else:
            known = known.filter(pl.col(Columns.LABEL).is_not_null())
        since = self._data.live.since
        if since is not None:
            kept = known.filter(pl.col(Columns.TIME) >= since)
            self.before_since, known = known.height - kept.height, kept
        return known.select(self.columns)

    @property
    def columns(self) -> list[str]:
        """Columns of the rows: those of the raw log, and `ANSWERED`."""
        own = [Columns.SOURCE_FILE, Columns.SOURCE_LINE, Columns.TIME, Columns.DAY, Columns.IMPRESSION, Columns.LABEL]
        roles = (self._data.label, self._data.impression)
        declared = [column.name for column in self._data.columns if column.name not in roles]
        served = [Columns.SERVED_VERSION, Columns.SERVED_TRACK, Columns.COUNTS_DELAY]
        return [*own, *declared, *served, Columns.WEIGHT, ANSWERED]

    def _unfolded(self, requests: pl.DataFrame) -> pl.DataFrame:
        lengths = requests[ROWS].to_numpy()
        places = np.repeat(np.arange(requests.height), lengths)
        row = np.arange(len(places)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        unfold = Unfold(places, row, lengths[places])
        answer = requests["time"][places]
        times = unfold(requests[Columns.TIME]).fill_null(answer).alias(Columns.TIME)
        return empty_as_null(
            pl.DataFrame(
                [
                    requests[PART][places].alias(Columns.SOURCE_FILE),
                    requests[LINE][places].alias(Columns.SOURCE_LINE),
                    times,
                    event_days(times, self._clock),
                    _impressions(requests, places, row),
                    *self._declared(requests, unfold),
                    requests["version"][places].cast(pl.Int64).alias(Columns.SERVED_VERSION),
                    requests["track"][places].alias(Columns.SERVED_TRACK),
                    requests["counts_delay_ms"][places].alias(Columns.COUNTS_DELAY),
                    requests.select(weight(self._sampling)).to_series()[places],
                    answer.alias(ANSWERED),
                    requests[REQUEST][places],
                    pl.Series("row", row, dtype=pl.Int32),
                ]
            )
        )

    def _declared(self, requests: pl.DataFrame, unfold: Unfold) -> list[pl.Series]:
        roles = (self._data.label, self._data.impression)
        found = []
        for column in self._data.columns:
            if column.name == self._data.request:  # no input: it is the request itself
                ids = requests["request_id"] if column.type == "string" else codes_of(requests["request_id"])
                found.append(ids[unfold.places].alias(column.name))
            elif column.name not in roles and column.known == "before":
                values = requests["items" if column.name == self._data.item else logged_name(column.name)]
                found.append(unfold(values).cast(type_of(column)).alias(column.name))
        return found


def _impressions(requests: pl.DataFrame, places: Ints, row: Ints) -> pl.Series:
    """Return an id per row, the same whoever collects it: of the request's id, its time and the row."""
    codes = codes_of(requests["request_id"]).to_numpy().view(np.uint64)
    moments = requests["time"].to_physical().to_numpy().view(np.uint64)
    mixed = (codes ^ (moments * _ODD))[places] + row.astype(np.uint64) * _ODD
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(32)
    return pl.Series(Columns.IMPRESSION, ((mixed >> np.uint64(2)) | _OWN_IDS).astype(np.int64))


def span_of_times(times: pl.Series) -> tuple[datetime | None, datetime | None]:
    """Return the first and the last of some times; None for both where there are none."""
    first, last = times.min(), times.max()
    return (first, last) if isinstance(first, datetime) and isinstance(last, datetime) else (None, None)
