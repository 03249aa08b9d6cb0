"""Requests of the prediction log unfolded into rows: who was shown what, the inputs as sent, the outcome."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import polars as pl

from monitoring.windows.answered import REQUEST, ROWS, weight
from monitoring.windows.known_columns import SLATE_SIZE, log_columns
from shortlist.contracts import Columns, label_column, score_column
from shortlist.recommending.candidate_columns import type_of
from shortlist.serving.log.logs import logged_name
from shortlist.spec.data import Data

Ints = npt.NDArray[np.int64]


class RowExploder:
    """Makes rows of requests.

    Args:
        data: The log's declaration.
        skew_minutes: Rows later than their own answer by more than this are left out.
        sampling: Share of the answers that the log takes, for answers that do not say it.
    """

    def __init__(self, data: Data, skew_minutes: float, sampling: float) -> None:
        self._data, self._sampling = data, sampling
        self._skew = pl.duration(microseconds=round(skew_minutes * 60e6))

    def rows(self, requests: pl.DataFrame, shown: pl.DataFrame) -> pl.DataFrame:
        """Return rows whose outcome is known; see `LiveWindow.rows`, without the side tables' columns.

        Args:
            requests: Columns of the prediction log, and request and rows; each request once.
            shown: request, row, label, and the further labels that are declared.
        """
        picked = requests.select(REQUEST, ROWS).with_row_index("place").join(shown, on=REQUEST).sort("place", "row")
        places = picked["place"].cast(pl.Int64).to_numpy()
        unfold = Unfold(places, picked["row"].cast(pl.Int64).to_numpy(), picked[ROWS].to_numpy())
        own = requests.select("request_id", "user", "version", "track", "time", weight(self._sampling))[places]
        said = dict(self._said(requests, unfold))
        scores = (unfold(requests[name]).alias(name) for name in map(score_column, self._data.labels))
        further = [*(picked[name] for name in map(label_column, self._data.labels)), *scores]
        rows = own.with_columns(
            picked["row"].cast(pl.Int32),
            unfold(requests["scores"]).alias("score"),
            picked[Columns.LABEL].cast(pl.Int8),
            unfold(requests[Columns.TIME]).fill_null(own["time"]).alias(Columns.TIME),
            *(values.alias(name) for name, values in said.items()),
            *further,
        )
        user = said.get(self._data.user or "")
        if user is not None:  # of a header, or where every row has one of its own, as an input
            rows = rows.with_columns(pl.coalesce(Columns.USER, user.cast(pl.String)).alias(Columns.USER))
        of_row = ("request_id", "row", Columns.USER, "version", "track", "score", Columns.LABEL)
        first = (*of_row, Columns.TIME, Columns.WEIGHT)
        return rows.filter(pl.col(Columns.TIME) <= pl.col("time") + self._skew).select(
            *first, *said, *(one.name for one in further)
        )

    def _said(self, requests: pl.DataFrame, unfold: Unfold) -> Iterator[tuple[str, pl.Series]]:
        """Yield the declared columns, and how many candidates were ranked where slates are declared."""
        for name, column in log_columns(self._data).items():
            values = requests["items" if name == self._data.item else logged_name(name)]
            yield name, unfold(values).cast(type_of(column))
        if self._data.slate is not None:
            yield SLATE_SIZE, pl.Series(requests[ROWS].cast(pl.Float64))[unfold.places]


class Unfold:
    """Takes the values of some rows out of lists that hold one value per row of a request, or one for all of them."""

    def __init__(self, places: Ints, rows: Ints, lengths: Ints) -> None:
        """Name the rows: the place of their request, their own place in it, and how many there are in it."""
        self.places, self._rows, self._lengths = places, rows, lengths

    def __call__(self, lists: pl.Series) -> pl.Series:
        """Return the values of the rows; null where a list has another length, or is null."""
        lengths = lists.list.len().fill_null(0).cast(pl.Int64).to_numpy()
        starts = np.cumsum(lengths) - lengths
        there, start = lengths[self.places], starts[self.places]
        whole, single = there == self._lengths, there == 1
        at = np.where(whole, start + self._rows, start)
        wanted = pl.Series(at, dtype=pl.Int64).set(pl.Series(~(whole | single)), None)
        return lists.explode(empty_as_null=False, keep_nulls=False).gather(wanted)
