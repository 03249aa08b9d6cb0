"""Answered requests of the prediction log, and the moment that each is about."""

from __future__ import annotations

from typing import Final

import polars as pl

from monitoring.windows.part_index import QUARTER
from shortlist.contracts import Columns

REQUEST: Final = "request"
"""UInt64 hash of a request's id; polars promises the same one within one version of itself."""
MOMENT: Final = "moment"
ROWS: Final = "rows"
READ: Final = ("time", "request_id", "track", "status", "scores", Columns.TIME)
"""Columns of the log that `answered` needs."""


def answered(log: pl.DataFrame, max_age_hours: float | None = None) -> pl.DataFrame:
    """Return the answered requests of users in a part of the log, all its columns and request, moment, rows.

    Users come through Envoy, which marks the track; a load test does not.

    A request is about the first of its rows' moments. Rows without one, and clocks that are ahead, are about the time
    of the answer: nothing is known before it happens. So are requests whose moment lies too far back: clients name it,
    and each moment of theirs would be a window of its own.

    Args:
        log: A part of the prediction log.
        max_age_hours: How long before the answer a moment may lie; None: any time.
    """
    moment = pl.min_horizontal("time", pl.col(Columns.TIME).list.min())
    if max_age_hours is not None:
        oldest = pl.col("time") - pl.duration(microseconds=round(max_age_hours * 3_600e6))
        moment = pl.when(moment < oldest).then("time").otherwise(moment)
    of_users = pl.col("status") == 200, pl.col("request_id").is_not_null(), pl.col("track").is_not_null()
    return log.filter(*of_users).with_columns(
        hashed(),
        moment.alias(MOMENT),
        pl.col("scores").list.len().fill_null(0).cast(pl.Int64).alias(ROWS),
    )


def hashed() -> pl.Expr:
    """Return the hash of a request's id."""
    return pl.col("request_id").hash(seed=0).alias(REQUEST)


def weight(sampling: float) -> pl.Expr:
    """Return for how many impressions a row of an answer stands: the inverse of the share that was logged.

    Args:
        sampling: That share for answers that do not say it.
    """
    return (1 / pl.col("sampling").fill_null(sampling)).cast(pl.Float32).alias(Columns.WEIGHT)


def summary_of_answers(log: pl.DataFrame, max_age_hours: float | None = None) -> pl.DataFrame:
    """Return what a part of the prediction log is about; see `answered` and `part_index.SUMMARY`."""
    return _summary(answered(log, max_age_hours), pl.col(MOMENT), pl.col(ROWS).sum())


def summary_of_outcomes(log: pl.DataFrame) -> pl.DataFrame:
    """Return when the outcomes of a part were written; see `part_index.SUMMARY`."""
    return _summary(log, pl.col("time"), pl.lit(0).sum())


def future_rows(requests: pl.DataFrame, skew_minutes: float) -> int:
    """Return how many rows lie later than their own answer by more than clocks may differ.

    Args:
        requests: What `answered` gave.
        skew_minutes: By how much they may.
    """
    latest = pl.col("time") + pl.duration(microseconds=round(skew_minutes * 60e6))
    ahead = requests.filter(pl.col(Columns.TIME).list.max() > latest)
    if ahead.is_empty():
        return 0
    once = pl.when(pl.col(Columns.TIME).list.len() == 1).then(ROWS).otherwise(1).alias("counts")
    single = ahead.select("time", Columns.TIME, once).explode(Columns.TIME)
    return int(single.filter(pl.col(Columns.TIME) > latest)["counts"].sum())


def _summary(rows: pl.DataFrame, moment: pl.Expr, count: pl.Expr) -> pl.DataFrame:
    return rows.group_by(moment.dt.truncate("15m").alias(QUARTER)).agg(
        pl.len().alias("requests"), count.alias("rows"), pl.col("time").min().alias("first"),
        pl.col("time").max().alias("last"),
    )  # fmt: skip
