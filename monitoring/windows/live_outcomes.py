"""The outcomes of a window's requests, joined piece by piece, whatever their order and however often they come."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

import polars as pl

from monitoring.windows.answered import MOMENT, REQUEST, ROWS, hashed
from monitoring.windows.group_sample import GroupSample
from shortlist.contracts import label_column
from shortlist.serving.log.logs import outcome_name
from shortlist.spec.data import Data
from shortlist.spec.log_shape import FurtherLabel
from shortlist.storage.positive_rows import is_further_positive

READ: Final = ("time", "request_id", "row", "label")
"""Columns of the outcome log that are needed."""
_PAIR: Final = "pair"
_KEPT: Final = {REQUEST: pl.UInt64(), "row": pl.Int32(), "time": pl.Datetime("us", "UTC"), "label": pl.Int8()}


class LiveOutcomes:
    """What became of requests."""

    def __init__(
        self, requests: pl.DataFrame, mature: datetime, most: int, labels: Mapping[str, FurtherLabel] | None = None
    ) -> None:  # fmt: skip
        """Begin with no outcome.

        Args:
            requests: request, time, moment, rows; each request once.
            mature: When the window is.
            most: Rows whose outcomes are kept: those of a sample of whole requests.
            labels: Further labels by name; null in an outcome that was sent without their column.
        """
        self._labels = {label_column(name): label for name, label in (labels or {}).items()}
        # Late is told on the answer's clock, which is not that of the moments when a log is replayed.
        allowed = pl.lit(mature) - pl.col(MOMENT)
        self._requests = requests.select(REQUEST, ROWS, answer="time", allowed=allowed)
        self._began, self._ended = requests["time"].min(), requests["time"].max()
        self._sample = GroupSample(REQUEST, most, _last_ones)
        self._sample.add(pl.DataFrame(schema=_KEPT | dict.fromkeys(self._labels, pl.Int8())))
        self._pairs = pl.Series(_PAIR, dtype=pl.UInt64)
        self._with_outcomes = pl.Series(REQUEST, dtype=pl.UInt64)
        self._strangers = pl.DataFrame(schema={"request_id": pl.String, "outcomes": pl.Int64})
        self._outside = 0
        self._known = 0
        self.late = 0
        """Outcomes that came after the window was mature."""

    def add(self, outcomes: pl.DataFrame) -> None:
        """Take a piece of the outcome log; an outcome without a label is none."""
        labelled = outcomes.filter(pl.col("label").is_not_null(), pl.col("request_id").is_not_null())
        joined = labelled.with_columns(hashed()).join(self._requests, on=REQUEST, how="left", maintain_order="left")
        ours = joined.filter(pl.col("answer").is_not_null())
        inside = ours.filter(pl.col("row").is_between(0, pl.col(ROWS), closed="left"))
        self._outside += ours.height - inside.height
        self._note_strangers(joined.filter(pl.col("answer").is_null()))
        self._known += inside.height
        self.late += inside.filter(pl.col("time") - pl.col("answer") > pl.col("allowed")).height
        self._pairs = pl.concat([self._pairs, inside.select(pl.struct(REQUEST, "row").hash(seed=0)).to_series()])
        self._with_outcomes = pl.concat([self._with_outcomes, inside[REQUEST]]).unique()
        further = (_further(label).cast(pl.Int8).alias(name) for name, label in self._labels.items())
        kept = REQUEST, "row", "time", (pl.col("label") > 0).cast(pl.Int8).alias("label")
        self._sample.add(inside.select(*kept, *further))

    @property
    def coverage(self) -> float:
        """Share of the requests, those with rows, that have an outcome; 0 without requests."""
        asked = self._requests.filter(pl.col(ROWS) > 0).height
        return self._with_outcomes.len() / asked if asked else 0.0

    @property
    def duplicates(self) -> int:
        """Outcomes of a row that had one already."""
        return self._known - self._pairs.n_unique()

    @property
    def unmatched_outcomes(self) -> pl.DataFrame:
        """Outcomes, by request_id, of requests that are not the window's, written while the window's were answered."""
        return self._strangers

    @property
    def out_of_range_outcomes(self) -> int:
        """Outcomes of a row that the request does not have."""
        return self._outside

    def shown(self) -> pl.DataFrame:
        """Return request, row, label (0 or 1) and further labels of the sample; of several outcomes, the last one."""
        return self._sample.rows().select(REQUEST, "row", "label", *self._labels)

    def _note_strangers(self, outcomes: pl.DataFrame) -> None:
        now = outcomes.filter(pl.col("time").is_between(self._began, self._ended))
        counted = now.group_by("request_id").agg(pl.len().cast(pl.Int64).alias("outcomes"))
        both = pl.concat([self._strangers, counted])
        self._strangers = both.group_by("request_id").agg(pl.col("outcomes").sum())


def read_columns(data: Data) -> tuple[str, ...]:
    """Return the columns of the outcome log that are needed, those of further labels among them."""
    return (*READ, *dict.fromkeys(outcome_name(label.column) for label in data.labels.values()))


def _further(label: FurtherLabel) -> pl.Expr:
    return is_further_positive(pl.col(outcome_name(label.column)), label)


def _last_ones(outcomes: pl.DataFrame) -> pl.DataFrame:
    ordered = outcomes.sort("time", maintain_order=True, nulls_last=False)
    return ordered.unique([REQUEST, "row"], keep="last", maintain_order=True)
