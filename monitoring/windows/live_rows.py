"""Requests of the prediction log exploded into rows: user, item, inputs as sent, and outcome."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import polars as pl

from monitoring.windows.answered_requests import REQUEST, ROWS, impression_weight
from monitoring.windows.known_columns import SLATE_SIZE, log_columns
from shortlist.contracts import Columns, label_column, score_column
from shortlist.serving.log.logs import logged_name
from shortlist.spec.data import Data

Ints = npt.NDArray[np.int64]


class RowExploder:
    """Explodes requests into rows.

    Args:
        data: The log's declaration.
        skew_minutes: Rows later than their own answer by more than this are left out; others count at the answer.
        sampling: The logged share of answers that do not record it.
    """

    def __init__(self, data: Data, skew_minutes: float, sampling: float) -> None:
        self._data, self._sampling = data, sampling
        self._skew = pl.duration(microseconds=round(skew_minutes * 60e6))

    def explode(self, requests: pl.DataFrame, outcomes: pl.DataFrame) -> pl.DataFrame:
        """Return rows whose outcome is known; see `LiveWindow.rows`, without the side tables' columns.

        Args:
            requests: Requests with the columns of the prediction log, request and rows; each request once.
            outcomes: Outcomes: request, row, label, and the declared further labels.
        """
        outcome_rows = (
            requests.select(REQUEST, ROWS).with_row_index("place").join(outcomes, on=REQUEST).sort("place", "row")
        )
        request_index = outcome_rows["place"].cast(pl.Int64).to_numpy()
        unfold = ListUnfolder(
            request_index, outcome_rows["row"].cast(pl.Int64).to_numpy(), outcome_rows[ROWS].to_numpy()
        )
        request_columns = requests.select(
            "request_id", "user", "version", "track", "time", impression_weight(self._sampling)
        )[request_index]
        inputs = dict(self._declared_inputs(requests, unfold))
        further_scores = (unfold(requests[name]).alias(name) for name in map(score_column, self._data.labels))
        further_columns = [*(outcome_rows[name] for name in map(label_column, self._data.labels)), *further_scores]
        rows = request_columns.with_columns(
            outcome_rows["row"].cast(pl.Int32),
            unfold(requests["scores"]).alias("score"),
            outcome_rows[Columns.LABEL].cast(pl.Int8),
            unfold(requests[Columns.TIME]).fill_null(request_columns["time"]).alias(Columns.TIME),
            *(values.alias(name) for name, values in inputs.items()),
            *further_columns,
        )
        user = inputs.get(self._data.user or "")
        if user is not None:  # the user of the header, or the one that a row has as an input
            rows = rows.with_columns(pl.coalesce(Columns.USER, user.cast(pl.String)).alias(Columns.USER))
        row_columns = ("request_id", "row", Columns.USER, "version", "track", "score", Columns.LABEL)
        leading_columns = (*row_columns, Columns.TIME, Columns.WEIGHT)
        rows = rows.filter(pl.col(Columns.TIME) <= pl.col("time") + self._skew)
        return rows.with_columns(pl.min_horizontal("time", Columns.TIME).alias(Columns.TIME)).select(
            *leading_columns, *inputs, *(column.name for column in further_columns)
        )

    def _declared_inputs(self, requests: pl.DataFrame, unfold: ListUnfolder) -> Iterator[tuple[str, pl.Series]]:
        """Yield the declared columns, and how many candidates were ranked where slates are declared."""
        for name, column in log_columns(self._data).items():
            values = requests["items" if name == self._data.item else logged_name(name)]
            yield name, unfold(values).cast(column.polars_type)
        if self._data.slate is not None:
            yield SLATE_SIZE, pl.Series(requests[ROWS].cast(pl.Float64))[unfold.request_index]


class ListUnfolder:
    """Reads the values of rows from lists that hold one value per row of a request, or one for all its rows."""

    def __init__(self, request_index: Ints, rows: Ints, lengths: Ints) -> None:
        """Set the rows: the index of each row's request, its row number in it, and the number of rows in it."""
        self.request_index, self._rows, self._lengths = request_index, rows, lengths

    def __call__(self, lists: pl.Series) -> pl.Series:
        """Return the values of the rows; null where a list is null or has another length."""
        lengths = lists.list.len().fill_null(0).cast(pl.Int64).to_numpy()
        starts = np.cumsum(lengths) - lengths
        list_lengths, start = lengths[self.request_index], starts[self.request_index]
        is_per_row, is_shared = list_lengths == self._lengths, list_lengths == 1
        positions = np.where(is_per_row, start + self._rows, start)
        value_indices = pl.Series(positions, dtype=pl.Int64).set(pl.Series(~(is_per_row | is_shared)), None)
        return lists.explode(empty_as_null=False, keep_nulls=False).gather(value_indices)
