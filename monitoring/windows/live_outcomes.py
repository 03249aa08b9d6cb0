"""The outcomes of a window's requests, joined piece by piece; they may be unordered and repeated."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from monitoring.windows.answered_requests import MOMENT, REQUEST, REQUEST_ID, ROWS, request_id_hash
from monitoring.windows.group_sample import GroupSample
from shortlist.contracts import label_column
from shortlist.serving.log.logs import EVENT_ID, outcome_name
from shortlist.spec.data import Data
from shortlist.spec.log_shape import FurtherLabel
from shortlist.storage.positive_rows import is_further_positive

OUTCOME_COLUMNS: Final = ("time", "request_id", "item", "row", "label", EVENT_ID)
"""Columns of the outcome log that are needed."""
_PAIR: Final = "pair"
_OUTCOME: Final = "outcome"
_SAMPLE_SCHEMA: Final = {REQUEST: pl.UInt64(), "row": pl.Int32(), "time": pl.Datetime("us", "UTC"), "label": pl.Int8()}


class LiveOutcomes:
    """Outcomes of a window's requests: a sample of them, and counts of all."""

    def __init__(
        self, requests: pl.DataFrame, mature: datetime, max_rows: int, labels: Mapping[str, FurtherLabel] | None = None
    ) -> None:  # fmt: skip
        """Start without outcomes.

        Args:
            requests: The requests: request, hash of its id, time, moment, rows; each request once. An outcome of an id
                that several have is one of each that has its row, and counted for the newest of them.
            mature: The moment at which the window is mature.
            max_rows: Most rows whose outcomes are kept, from a sample of whole requests.
            labels: Further labels by name; null in an outcome that was sent without their column.
        """
        self._labels = {label_column(name): label for name, label in (labels or {}).items()}
        # Lateness is measured from the time of the answer, since moments of a replayed log lie in the past.
        allowed_delay = pl.lit(mature) - pl.col(MOMENT)
        ordered = requests.sort(REQUEST_ID, "time")
        self._requests = ordered.select(REQUEST, ROWS, answer="time", allowed=allowed_delay)
        self._ids = ordered[REQUEST_ID].to_numpy()
        self._has_outcome = np.zeros(ordered.height, np.bool_)
        self._first_answer, self._last_answer = requests["time"].min(), requests["time"].max()
        self._sample = GroupSample(REQUEST, max_rows, _newest_outcomes)
        self._sample.add(pl.DataFrame(schema=_SAMPLE_SCHEMA | dict.fromkeys(self._labels, pl.Int8())))
        self._row_hashes: list[pl.Series] = []
        self._event_hashes: list[pl.Series] = []
        self._unmatched: list[pl.DataFrame] = []
        self._out_of_range = 0
        self._without_event_id = 0
        self.late = 0
        """Outcomes that came after the window was mature."""

    def add(self, outcomes: pl.DataFrame) -> None:
        """Add a piece of the outcome log; an outcome without a label is ignored.

        The look-up of the requests takes no longer, however many pieces were added before.
        """
        labelled = outcomes.filter(pl.col("label").is_not_null(), pl.col("request_id").is_not_null())
        labelled = labelled.with_columns(request_id_hash()).with_row_index(_OUTCOME)
        matched_outcomes, places = self._matches(labelled[REQUEST_ID])
        matched = labelled[matched_outcomes].hstack(self._requests[places])
        in_range = pl.col("row").is_between(0, pl.col(ROWS), closed="left").fill_null(value=False)
        is_in_range = matched.select(in_range).to_series()
        in_range_outcomes = matched.filter(is_in_range)
        counted_outcomes = in_range_outcomes.unique(_OUTCOME, keep="last", maintain_order=True)
        self._out_of_range += matched[_OUTCOME].n_unique() - counted_outcomes.height
        self._count_unmatched(labelled.filter(~pl.col(_OUTCOME).is_in(matched[_OUTCOME].implode())))
        event_ids = counted_outcomes[EVENT_ID].drop_nulls()
        self._event_hashes.append(event_ids.hash(seed=0))
        self._without_event_id += counted_outcomes.height - event_ids.len()
        is_late = pl.col("time") - pl.col("answer") > pl.col("allowed")
        self.late += counted_outcomes.filter(is_late).height
        self._row_hashes.append(
            counted_outcomes.select(pl.struct(REQUEST_ID, "row").hash(seed=0).alias(_PAIR)).to_series()
        )
        self._has_outcome[places[is_in_range.to_numpy()]] = True
        further_labels = (_is_further_positive(label).cast(pl.Int8).alias(name) for name, label in self._labels.items())
        columns = REQUEST, "row", "time", (pl.col("label") > 0).cast(pl.Int8).alias("label")
        self._sample.add(in_range_outcomes.select(*columns, *further_labels))

    @property
    def coverage(self) -> float:
        """Share of the requests with rows that have an outcome; 0 without requests."""
        request_count = self._requests.filter(pl.col(ROWS) > 0).height
        return int(self._has_outcome.sum()) / request_count if request_count else 0.0

    @property
    def duplicates(self) -> int:
        """Outcomes of a row that had one already; an event that was appended twice counts once."""
        events = pl.concat([pl.Series(dtype=pl.UInt64), *self._event_hashes]).n_unique()
        rows = pl.concat([pl.Series(dtype=pl.UInt64), *self._row_hashes]).n_unique()
        return self._without_event_id + events - rows

    @property
    def unmatched_outcomes(self) -> pl.DataFrame:
        """Number of outcomes by request_id of other requests, written while the window's requests were answered."""
        counts = pl.concat([pl.DataFrame(schema={"request_id": pl.String, "outcomes": pl.Int64}), *self._unmatched])
        return counts.group_by("request_id").agg(pl.col("outcomes").sum())

    @property
    def out_of_range_outcomes(self) -> int:
        """Outcomes of a row that the request does not have."""
        return self._out_of_range

    def sample_rows(self) -> pl.DataFrame:
        """Return request, row, label (0 or 1) and further labels of the sample; the last outcome of a row counts."""
        return self._sample.rows().select(REQUEST, "row", "label", *self._labels)

    def _count_unmatched(self, outcomes: pl.DataFrame) -> None:
        in_window = outcomes.filter(pl.col("time").is_between(self._first_answer, self._last_answer))
        self._unmatched.append(in_window.group_by("request_id").agg(pl.len().cast(pl.Int64).alias("outcomes")))

    def _matches(self, ids: pl.Series) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return pairs of an outcome and a request of its id: the places of both, the requests in order of time."""
        values = ids.to_numpy()
        first, last = (np.searchsorted(self._ids, values, side) for side in ("left", "right"))
        counts = last - first
        outcomes = np.repeat(np.arange(len(values)), counts)
        steps = np.arange(len(outcomes)) - np.repeat(np.cumsum(counts) - counts, counts)
        return outcomes, first[outcomes] + steps


def outcome_log_columns(data: Data) -> tuple[str, ...]:
    """Return the columns of the outcome log that are needed, those of further labels among them."""
    return (*OUTCOME_COLUMNS, *dict.fromkeys(outcome_name(label.column) for label in data.labels.values()))


def _is_further_positive(label: FurtherLabel) -> pl.Expr:
    return is_further_positive(pl.col(outcome_name(label.column)), label)


def _newest_outcomes(outcomes: pl.DataFrame) -> pl.DataFrame:
    ordered = outcomes.sort("time", maintain_order=True, nulls_last=False)
    return ordered.unique([REQUEST, "row"], keep="last", maintain_order=True)
