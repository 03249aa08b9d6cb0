"""Answered requests and their outcomes as rows of the log."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import numpy as np
import polars as pl

from monitoring.windows.answered_requests import REQUEST, ROWS, impression_weight, list_contributors
from monitoring.windows.known_columns import empty_as_null
from monitoring.windows.live_rows import Ints, ListUnfolder
from shortlist.collecting.live_labels import OutcomeLabels
from shortlist.collecting.live_log import PART, PART_LINE
from shortlist.contracts import Columns
from shortlist.data.collected import ANSWERED
from shortlist.data.reading.clock import event_days
from shortlist.data.rules.contributions import BY_USER, CONTRIBUTORS
from shortlist.features.values.hashing import codes_of
from shortlist.serving.log.logs import logged_name
from shortlist.spec.data import Data, EventClock
from shortlist.spec.serving import Serving

_FIRST_COLLECTED_ID: Final = np.uint64(1) << np.uint64(62)
"""Smallest id of a collected impression, far above the numbers in any source log."""
_ODD_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)


class LiveRows:
    """Makes rows of the log from answered requests, and counts rows that are left out.

    Args:
        data: The log's declaration.
        serving: The spec's `serving` section.
    """

    def __init__(self, data: Data, serving: Serving) -> None:
        assert isinstance(data.clock, EventClock)
        self._data, self._clock, self._serving = data, data.clock, serving
        self.without_outcome = 0
        self.before_since = 0

    def rows(self, requests: pl.DataFrame, labels: OutcomeLabels) -> pl.DataFrame:
        """Return the rows of requests, before the rules of the log are checked.

        Args:
            requests: Requests with the columns of the prediction log and request, rows, `PART`, `PART_LINE`; each once.
            labels: Labels of their rows.
        """
        impressions = self._unfold(requests)
        labelled = impressions.join(labels.frame, on=[REQUEST, "row"], how="left", maintain_order="left")
        is_unseen = labels.unseen.with_columns(is_unseen=pl.lit(True))
        labelled = labelled.join(is_unseen, on=[REQUEST, "row"], how="left", maintain_order="left")
        # Servers that count live have counted every candidate; training counts what they did.
        counts_live = pl.col(Columns.COUNTS_DELAY).is_not_null()
        labelled = labelled.filter(pl.col(Columns.LABEL).is_not_null() | pl.col("is_unseen").is_null() | counts_live)
        self.without_outcome = labelled[Columns.LABEL].null_count()
        missing_outcome = self._data.live.missing_outcome
        if missing_outcome == "negative":
            labelled = labelled.with_columns(pl.col(Columns.LABEL).fill_null(0))
        elif missing_outcome == "negative_if_seen":
            seen = labels.seen.with_columns(seen=pl.lit(0, pl.Int8()))
            labelled = labelled.join(seen, on=[REQUEST, "row"], how="left", maintain_order="left")
            labelled = labelled.with_columns(pl.coalesce(Columns.LABEL, "seen").alias(Columns.LABEL))
        labelled = labelled.filter(pl.col(Columns.LABEL).is_not_null())
        since = self._data.live.since
        if since is not None:
            since_rows = labelled.filter(pl.col(Columns.TIME) >= since)
            self.before_since, labelled = labelled.height - since_rows.height, since_rows
        return labelled.select(collected_columns(self._data))

    def _unfold(self, requests: pl.DataFrame) -> pl.DataFrame:
        lengths = requests[ROWS].to_numpy()
        request_index = np.repeat(np.arange(requests.height), lengths)
        row = np.arange(len(request_index)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        unfold = ListUnfolder(request_index, row, lengths[request_index])
        answer = requests["time"][request_index]
        times = unfold(requests[Columns.TIME]).fill_null(answer).alias(Columns.TIME)
        return empty_as_null(
            pl.DataFrame(
                [
                    requests[PART][request_index].alias(Columns.SOURCE_FILE),
                    requests[PART_LINE][request_index].alias(Columns.SOURCE_LINE),
                    times,
                    event_days(times, self._clock),
                    _impression_ids(requests, request_index, row),
                    *self._declared_inputs(requests, unfold),
                    *self._placement(requests, unfold, row),
                    requests["version"][request_index].cast(pl.Int64).alias(Columns.SERVED_VERSION),
                    requests["track"][request_index].alias(Columns.SERVED_TRACK),
                    requests["counts_delay_ms"][request_index].alias(Columns.COUNTS_DELAY),
                    _uncounted(requests["uncounted_rows"], np.cumsum(lengths) - lengths, row),
                    requests.select(impression_weight(self._serving.log.sampling)).to_series()[request_index],
                    answer.alias(ANSWERED),
                    *self._contributors(requests, unfold),
                    requests[REQUEST][request_index],
                    pl.Series("row", row, dtype=pl.Int32),
                ]
            )
        )

    def _contributors(self, requests: pl.DataFrame, unfold: ListUnfolder) -> list[pl.Series]:
        """Return `CONTRIBUTORS` of each row."""
        request, user, sender = (values[unfold.request_index] for values in list_contributors(requests, self._serving))
        if self._data.user is not None:  # which is learnt from, whatever the header says
            user = unfold(requests[logged_name(self._data.user)]).cast(pl.String).fill_null(user).alias(BY_USER)
        return [request, user, sender]

    def _declared_inputs(self, requests: pl.DataFrame, unfold: ListUnfolder) -> list[pl.Series]:
        roles = (self._data.label, self._data.impression)
        inputs = []
        for column in self._data.columns:
            if column.name == self._data.request:  # the request's id, which is no input
                ids = requests["request_id"] if column.type == "string" else codes_of(requests["request_id"])
                inputs.append(ids[unfold.request_index].alias(column.name))
            elif column.name not in roles and column.known == "before":
                values = requests["items" if column.name == self._data.item else logged_name(column.name)]
                inputs.append(unfold(values).cast(column.polars_type).alias(column.name))
        return inputs

    def _placement(self, requests: pl.DataFrame, unfold: ListUnfolder, row: Ints) -> list[pl.Series]:
        """Return how each row was shown; null in rows of requests that brought their candidates."""
        request_index = unfold.request_index
        of_slate = requests["slate:release"].is_not_null()[request_index]
        columns = {
            "position": pl.Series(row + 1, dtype=pl.Int64),
            "propensity": unfold(requests["slate:place_propensities"]).cast(pl.Float64),
            "policy": requests["version"][request_index].cast(pl.String),
            "randomized": requests["slate:explored"][request_index].cast(pl.Int64),
        }
        return [columns[role].set(~of_slate, None).alias(name) for role, name in self._data.placement.items()]


def collected_columns(data: Data) -> list[str]:
    """Return the columns of collected rows: those of the raw log, `ANSWERED` and `CONTRIBUTORS`."""
    source = [Columns.SOURCE_FILE, Columns.SOURCE_LINE]
    row = [Columns.TIME, Columns.DAY, Columns.IMPRESSION, Columns.LABEL]
    declared = [column.name for column in data.columns if column.name not in (data.label, data.impression)]
    served = [Columns.SERVED_VERSION, Columns.SERVED_TRACK, Columns.COUNTS_DELAY, Columns.UNCOUNTED]
    return [*source, *row, *declared, *served, Columns.WEIGHT, ANSWERED, *CONTRIBUTORS]


def _uncounted(rows_by_request: pl.Series, starts: Ints, row: Ints) -> pl.Series:
    """Return which rows live counts lack, given the numbers of such rows in each request, and where its rows start."""
    places = pl.DataFrame({"row": rows_by_request, "start": starts}).explode("row").drop_nulls()
    is_uncounted = np.zeros(len(row), np.bool_)
    is_uncounted[(places["start"] + places["row"]).to_numpy()] = True
    return pl.Series(Columns.UNCOUNTED, is_uncounted)


def _impression_ids(requests: pl.DataFrame, request_index: Ints, row: Ints) -> pl.Series:
    """Return the id of every row, a hash of the request's id, its time and the row, so that any collector gives it."""
    codes = codes_of(requests["request_id"]).to_numpy().view(np.uint64)
    moments = requests["time"].to_physical().to_numpy().view(np.uint64)
    mixed = (codes ^ (moments * _ODD_MULTIPLIER))[request_index] + row.astype(np.uint64) * _ODD_MULTIPLIER
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(32)
    return pl.Series(Columns.IMPRESSION, ((mixed >> np.uint64(2)) | _FIRST_COLLECTED_ID).astype(np.int64))


def span_of_times(times: pl.Series) -> tuple[datetime | None, datetime | None]:
    """Return the first and the last of some times; both None where there are none."""
    first, last = times.min(), times.max()
    return (first, last) if isinstance(first, datetime) and isinstance(last, datetime) else (None, None)
