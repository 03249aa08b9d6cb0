"""Answered requests of the prediction log, each with the moment that it counts at."""

from __future__ import annotations

from typing import Final

import polars as pl

from monitoring.windows.log_index import QUARTER
from shortlist.contracts import Columns
from shortlist.data.rules.contributions import BY_REQUEST, BY_SENDER, BY_USER
from shortlist.spec.serving import Serving
from shortlist.system.sender_networks import sender_networks

REQUEST: Final = "request"
"""UInt64 hash of a request's id and sender: another sender's request with the same id is another one, because clients
choose ids. Polars promises the same hash within one version of itself."""
REQUEST_ID: Final = "request_id:hash"
"""UInt64 hash of a request's id, by which outcomes name it."""
MOMENT: Final = "moment"
ROWS: Final = "rows"
ANSWER_COLUMNS: Final = ("time", "request_id", "sender", "track", "status", "scores", Columns.TIME)
"""Columns of the prediction log that `select_answered` needs."""


def select_answered(log: pl.DataFrame, max_age_hours: float | None = None, key: str = "") -> pl.DataFrame:
    """Return the answered requests of users in a part of the log, with all its columns, their hashes, moment and rows.

    Requests of users come through Envoy, which sets the track; those of a load test do not.

    A request counts at the first of its rows' moments. Without one, or with a moment later than the answer (a clock
    that is ahead) or too long before it, it counts at the time of the answer: clients set the moments, and each old
    moment would open a window of its own.

    Args:
        log: A part of the prediction log.
        max_age_hours: How long before the answer a moment may lie; None: any time.
        key: Secret of the hash that samples requests, without which a client could choose ids that are in a sample.
    """
    moment = pl.min_horizontal("time", pl.col(Columns.TIME).list.min())
    if max_age_hours is not None:
        oldest = pl.col("time") - pl.duration(microseconds=round(max_age_hours * 3_600e6))
        moment = pl.when(moment < oldest).then("time").otherwise(moment)
    conditions = pl.col("status") == 200, pl.col("request_id").is_not_null(), pl.col("track").is_not_null()
    return log.filter(*conditions).with_columns(
        _request_hash(key),
        request_id_hash(),
        moment.alias(MOMENT),
        pl.col("scores").list.len().fill_null(0).cast(pl.Int64).alias(ROWS),
    )


def request_id_hash() -> pl.Expr:
    """Return the hash of a request's id, as an expression."""
    return pl.col("request_id").hash(seed=0).alias(REQUEST_ID)


def _request_hash(key: str) -> pl.Expr:
    parts = pl.lit(key), "request_id", pl.col("sender").fill_null("")
    return pl.concat_str(parts, separator="\n").hash(seed=0).alias(REQUEST)


def impression_weight(sampling: float) -> pl.Expr:
    """Return the number of impressions that a row stands for, as an expression: the inverse of the logged share.

    Args:
        sampling: The logged share of answers that do not record it.
    """
    return (1 / pl.col("sampling").fill_null(sampling)).cast(pl.Float32).alias(Columns.WEIGHT)


def list_contributors(requests: pl.DataFrame, serving: Serving) -> list[pl.Series]:
    """Return `CONTRIBUTORS` of requests; the sender is null where it vouches for its users, and empty where unknown.

    Args:
        requests: Requests with request, user, sender.
        serving: Says who vouches.
    """
    senders = requests["sender"].fill_null("")
    vouching = [name for name in senders.unique() if serving.vouches_for_users(name)]
    senders = sender_networks(senders.set(senders.is_in(vouching), None))
    return [requests[REQUEST].alias(BY_REQUEST), requests["user"].alias(BY_USER), senders.alias(BY_SENDER)]


def summarize_answers(log: pl.DataFrame, max_age_hours: float | None = None) -> pl.DataFrame:
    """Return the summary of rows of the prediction log; see `log_index.SUMMARY`."""
    answered = select_answered(log, max_age_hours)
    return answered.group_by(pl.col(MOMENT).dt.truncate("15m").alias(QUARTER)).agg(
        pl.len().alias("requests"), pl.col(ROWS).sum().alias("rows"), pl.col("time").min().alias("first"),
        pl.col("time").max().alias("last"),
    )  # fmt: skip


def future_rows(skew_minutes: float) -> pl.Expr:
    """Return how many rows of a request are later than its answer by more than the clock skew, as an expression.

    Args:
        skew_minutes: The allowed clock skew.
    """
    times = pl.col(Columns.TIME).cast(pl.List(pl.Int64))  # microseconds: polars does not subtract from lists of times
    latest_time = pl.col("time").cast(pl.Int64) + round(skew_minutes * 60e6)
    ahead = (times - latest_time).list.eval(pl.element() > 0).list.sum().cast(pl.Int64)
    return pl.when(times.list.len() == 1).then(ahead * ROWS).otherwise(ahead).fill_null(0)
