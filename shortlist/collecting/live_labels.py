"""The labels of rows of requests, from outcomes that may be unordered and repeated."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import polars as pl

from monitoring.windows.answered_requests import REQUEST, ROWS, request_hash
from shortlist.contracts import Columns, DataError
from shortlist.serving.log.logs import EVENT_ID, RECEIVED, SEEN, outcome_columns, outcome_name
from shortlist.serving.log.serving_log import ServingLog
from shortlist.spec.data import Data
from shortlist.spec.text.durations import parse_duration

_RECEIVED_EARLIER: Final = timedelta(hours=1)
"""Longest time by which the clock of who receives an outcome may be behind that of the answer."""
_RECEIVED_LATER: Final = timedelta(hours=1)
"""Time after `data.live.settle` in which the clock of who receives outcomes may differ."""
_ANSWER: Final = ":answer"
_ITEM: Final = ":item"


@dataclass(frozen=True)
class OutcomeLabels:
    """The labels of requests' rows, and counts of irregular outcomes."""

    frame: pl.DataFrame
    """request, row, label, and the columns known after the impression, of rows with an outcome in time."""
    late: int
    early: int
    earliest: timedelta
    """Longest time by which an early outcome precedes its answer."""
    ahead: int
    """Outcomes later than their receipt, by more than the allowed clock skew."""
    furthest: timedelta
    """Longest time by which an outcome counted in `ahead` is later."""
    repeated: int
    foreign: int
    matched: int
    """All outcomes of the requests, including late, early, repeated and foreign ones."""
    unmatched: pl.Series
    """Ids of other requests whose outcomes happened while these requests were answered."""
    seen: pl.DataFrame
    """request, row of rows that an event says the user saw, with an outcome or without."""


def read_labels(log: ServingLog, requests: pl.DataFrame, data: Data) -> OutcomeLabels:
    """Return the labels of requests.

    An outcome counts when it happened within `data.outcome_delay` after the answer, by the times in both logs, so that
    labels do not depend on when they are read; outcomes that are received after `data.live.settle` are not read. The
    last outcome of a row counts, and an event that was appended twice counts once.

    Args:
        log: The outcome log.
        requests: Requests with time, request_id, request (hash of the id), rows, items; each once, at least one.
        data: The log's declaration.

    Raises:
        ShortlistError: The outcome log cannot be read.
    """
    outcome_only_columns = outcome_columns(data)
    delay, skew = parse_duration(data.live_outcome_delay or "0s"), parse_duration(data.live.max_clock_skew)
    first, last = requests["time"].min(), requests["time"].max()
    assert isinstance(first, datetime) and isinstance(last, datetime)
    matched_pieces, unmatched_ids = [], [pl.Series("request_id", [], dtype=pl.String)]
    answers = requests.select(REQUEST, ROWS, pl.col("time").alias(_ANSWER))
    columns = log.declared.names
    until = last + delay + parse_duration(data.live.settle) + skew + _RECEIVED_LATER
    for piece in log.read(columns, first - skew - _RECEIVED_EARLIER, until):
        reported = piece.filter(pl.col("label").is_not_null() | pl.col(SEEN), pl.col("request_id").is_not_null())
        labelled = reported.with_columns(request_hash())
        joined = labelled.join(answers, on=REQUEST, how="left", maintain_order="left")
        of_other_requests = joined.filter(pl.col(_ANSWER).is_null(), pl.col("time").is_between(first, last))
        unmatched_ids.append(of_other_requests["request_id"].unique())
        matched_pieces.append(joined.filter(pl.col(_ANSWER).is_not_null()))
    if log.unreadable:
        raise DataError("; ".join(log.unreadable.values()))  # its rows would become negatives
    matched = pl.concat(matched_pieces) if matched_pieces else _empty_outcomes(log.empty(columns))
    matched = matched.filter(pl.col(EVENT_ID).is_null() | pl.col(EVENT_ID).is_first_distinct())
    rows = _match_rows(matched, requests)
    row_outcomes = rows.filter(pl.col("label").is_not_null())
    is_late = row_outcomes["time"] > row_outcomes[_ANSWER] + delay
    is_early = row_outcomes["time"] < row_outcomes[_ANSWER] - skew
    is_ahead = row_outcomes["time"] > row_outcomes[RECEIVED] + skew
    in_time = row_outcomes.filter(~is_late, ~is_early).with_columns((pl.col("label") > 0).cast(pl.Int8))
    # Of two outcomes at the same moment the positive one counts, so that the order of files does not matter.
    ordered = in_time.sort("time", "label", maintain_order=True)
    newest_outcomes = ordered.unique([REQUEST, "row"], keep="last", maintain_order=True)
    outcome_values = [pl.col(outcome_name(name)).alias(name) for name in outcome_only_columns]
    return OutcomeLabels(
        frame=newest_outcomes.select(REQUEST, "row", Columns.LABEL, *outcome_values), late=int(is_late.sum()),
        early=int(is_early.sum()), earliest=_longest(row_outcomes[_ANSWER] - row_outcomes["time"], is_early),
        ahead=int(is_ahead.sum()), furthest=_longest(row_outcomes["time"] - row_outcomes[RECEIVED], is_ahead),
        repeated=in_time.height - newest_outcomes.height, foreign=matched.height - rows.height,
        matched=matched.height, unmatched=pl.concat(unmatched_ids).unique(),
        seen=rows.filter(pl.col(SEEN)).select(REQUEST, "row").unique(),
    )  # fmt: skip


def _match_rows(outcomes: pl.DataFrame, requests: pl.DataFrame) -> pl.DataFrame:
    """Return the outcomes of existing rows, without those that name another item than the answered one.

    The row of an outcome that names an item alone is the item's first one.
    """
    in_range = _find_rows(outcomes, requests).filter(pl.col("row").is_between(0, pl.col(ROWS), closed="left"))
    items = requests.select(REQUEST, "items")
    item = pl.col("items").list.get(pl.col("row"), null_on_oob=True)
    with_items = in_range.join(items, on=REQUEST, how="left", maintain_order="left").with_columns(item.alias(_ITEM))
    return with_items.filter((pl.col("item") == pl.col(_ITEM)).fill_null(True)).drop("items", _ITEM)


def _find_rows(outcomes: pl.DataFrame, requests: pl.DataFrame) -> pl.DataFrame:
    is_nameless = pl.col("row").is_null() & pl.col("item").is_not_null()
    nameless = outcomes.filter(is_nameless)
    if nameless.is_empty():
        return outcomes
    answers = requests.join(nameless.select(REQUEST).unique(), on=REQUEST, how="semi").select(REQUEST, "items")
    answers = answers.with_columns(row=pl.int_ranges(pl.col("items").list.len(), dtype=pl.Int32))
    first_rows = (
        answers.explode("items", "row").rename({"items": "item"})
        .unique([REQUEST, "item"], keep="first", maintain_order=True)
    )  # fmt: skip
    placed = nameless.drop("row").join(first_rows, on=[REQUEST, "item"], how="left", maintain_order="left")
    return pl.concat([outcomes.filter(~is_nameless), placed.select(outcomes.columns)])


def _longest(durations: pl.Series, mask: pl.Series) -> timedelta:
    longest = durations.filter(mask).max()
    return longest if isinstance(longest, timedelta) else timedelta()


def _empty_outcomes(outcomes: pl.DataFrame) -> pl.DataFrame:
    answer = pl.lit(None, pl.Datetime("us", "UTC")).alias(_ANSWER)
    return outcomes.with_columns(request_hash(), pl.lit(None, pl.Int64).alias(ROWS), answer)
