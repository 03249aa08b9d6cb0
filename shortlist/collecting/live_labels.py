"""The labels of rows of requests, from outcomes that may be unordered and repeated."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from typing import Final

import polars as pl

from monitoring.windows.answered_requests import REQUEST, ROWS
from shortlist.contracts import Columns, DataError
from shortlist.serving.log.log_rows import DAY
from shortlist.serving.log.log_tables import file_column
from shortlist.serving.log.logs import EVENT_ID, RECEIVED, SEEN, outcome_columns, outcome_name
from shortlist.serving.log.outcome_rows import find_rows
from shortlist.serving.log.serving_log import ServingLog
from shortlist.spec.data import Data
from shortlist.spec.text.durations import parse_duration
from shortlist.system.sender_networks import sender_networks

_RECEIVED_EARLIER: Final = timedelta(hours=1)
"""Longest time by which the clock of who receives an outcome may be behind that of the answer."""
_RECEIVED_LATER: Final = timedelta(hours=1)
"""Time after `data.live.settle` in which the clock of who receives outcomes may differ."""
_REQUESTS_OF_ID: Final = 10
"""Requests of one sender with the same id that an outcome of this id may be of: each outcome is joined with each."""
_ANSWER: Final = ":answer"
_ITEM: Final = ":item"


@dataclass(frozen=True)
class OutcomeLabels:
    """The labels of requests' rows, and counts of irregular outcomes."""

    frame: pl.DataFrame
    """request, row, label, and the columns known after the impression, of rows with an outcome in time."""
    late: int
    early: int
    repeated: int
    foreign: int
    matched: int
    """All outcomes of the requests, including late, early, repeated and foreign ones."""
    unmatched: pl.Series
    """Ids of other requests whose outcomes happened while these requests were answered."""
    seen: pl.DataFrame
    """request, row of rows that an event says the user saw, with an outcome or without."""
    unseen: pl.DataFrame
    """request, row of rows that events say the user did not see, and none that the user did."""


class UnreadableOutcomesError(DataError):
    """Outcomes of some requests cannot be read."""


def read_labels(
    log: ServingLog, requests: pl.DataFrame, data: Data, passed_over: Collection[str] = ()
) -> OutcomeLabels:
    """Return the labels of requests.

    An outcome counts when it happened within `data.outcome_delay` after the answer, by the times in both logs, so that
    labels do not depend on when they are read; outcomes that are received after `data.live.settle` are not read.
    Clients say when it happened: neither before the answer nor after its receipt, which our clocks tell. The last
    outcome of a row counts, and an event that was appended twice counts once.

    Args:
        log: The outcome log.
        requests: Requests with time, request_id, sender, request (which differs between all), rows, items; at least
            one. An outcome of an id that several have is one of each that has its item, of ten of a sender at most.
        data: The log's declaration.
        passed_over: Files that hold no outcome of the requests, and need not be read.

    Raises:
        UnreadableOutcomesError: Another file of the outcome log cannot be read.
        ShortlistError: The outcome log cannot be read.
    """
    delay, skew = parse_duration(data.live_outcome_delay or "0s"), parse_duration(data.live.max_clock_skew)
    first, last = requests["time"].min(), requests["time"].max()
    assert isinstance(first, datetime) and isinstance(last, datetime)
    until = last + delay + parse_duration(data.live.settle) + skew + _RECEIVED_LATER
    pieces = log.read(log.declared.names, first - skew - _RECEIVED_EARLIER, until)
    labels = match_labels(pieces, requests, data, log.empty(log.declared.names))
    if log.unreadable.keys() - passed_over:
        raise UnreadableOutcomesError("; ".join(log.unreadable.values()))  # its rows would become negatives
    return labels


def match_labels(
    pieces: Iterable[pl.DataFrame], requests: pl.DataFrame, declared: Data, no_outcomes: pl.DataFrame
) -> OutcomeLabels:
    """Return the labels of requests from the outcomes that may be theirs; see `read_labels`.

    Args:
        pieces: Rows of the outcome log, with all its columns.
        requests: As of `read_labels`.
        declared: The log's declaration.
        no_outcomes: The outcome log without rows.
    """
    outcome_only_columns = outcome_columns(declared)
    delay, skew = parse_duration(declared.live_outcome_delay or "0s"), parse_duration(declared.live.max_clock_skew)
    first, last = requests["time"].min(), requests["time"].max()
    matched_pieces, unmatched_ids = [], [pl.Series("request_id", [], dtype=pl.String)]
    is_early_of_id = pl.int_range(pl.len()).over("request_id", sender_networks(requests["sender"])) < _REQUESTS_OF_ID
    answers = requests.filter(is_early_of_id).select("request_id", REQUEST, ROWS, pl.col("time").alias(_ANSWER))
    tells = pl.col("label").is_not_null() | pl.col(SEEN).is_not_null()
    for piece in pieces:
        reported = piece.filter(tells, pl.col("request_id").is_not_null())
        joined = reported.join(answers, on="request_id", how="left", maintain_order="left")
        of_other_requests = joined.filter(pl.col(_ANSWER).is_null(), pl.col("time").is_between(first, last))
        unmatched_ids.append(of_other_requests["request_id"].unique())
        matched_pieces.append(joined.filter(pl.col(_ANSWER).is_not_null()))
    matched = pl.concat(matched_pieces) if matched_pieces else _empty_outcomes(no_outcomes)
    is_first = pl.struct(REQUEST, EVENT_ID).is_first_distinct()
    matched = matched.filter(pl.col(EVENT_ID).is_null() | is_first)
    rows = _match_rows(matched, requests)
    # Our own clocks differ by less; who reports an outcome before the answer has guessed the request's id.
    is_early = (rows[RECEIVED] < rows[_ANSWER] - skew).fill_null(False)
    event_time = pl.max_horizontal(pl.min_horizontal("time", RECEIVED), _ANSWER)
    rows = rows.with_columns(event_time.alias("time"))
    is_late = rows["time"] > rows[_ANSWER] + delay
    has_outcome = rows["label"].is_not_null()
    counted = rows.filter(~is_late, ~is_early)
    seen, unseen = (
        counted.filter(pl.col(SEEN) == was_seen).select(REQUEST, "row").unique() for was_seen in (True, False)
    )
    in_time = counted.filter(pl.col("label").is_not_null()).with_columns((pl.col("label") > 0).cast(pl.Int8))
    # Of two outcomes at the same moment the positive one counts, so that the order of files does not matter.
    ordered = in_time.sort("time", "label", maintain_order=True)
    newest_outcomes = ordered.unique([REQUEST, "row"], keep="last", maintain_order=True)
    outcome_values = [pl.col(outcome_name(name)).alias(name) for name in outcome_only_columns]
    return OutcomeLabels(
        frame=newest_outcomes.select(REQUEST, "row", Columns.LABEL, *outcome_values),
        late=int((is_late & has_outcome).sum()),
        early=int((is_early & has_outcome).sum()),
        repeated=in_time.height - newest_outcomes.height,
        foreign=matched.height - rows.height,
        matched=matched.height,
        unmatched=pl.concat(unmatched_ids).unique(),
        seen=seen,
        unseen=unseen.join(seen, on=[REQUEST, "row"], how="anti"),
    )


def unreadable_answers(log: ServingLog, data: Data) -> dict[str, tuple[datetime, datetime]]:
    """Return the times of the answers whose outcomes may be in each file that cannot be read, by its path.

    Raises:
        ShortlistError: The table cannot be read.
    """
    table = log.open_table()
    if table is None:
        return {}
    first, last = file_column(table, f"min.{RECEIVED}"), file_column(table, f"max.{RECEIVED}")
    day = file_column(table, f"partition.{DAY}")
    delay = parse_duration(data.live_outcome_delay or "0s") + parse_duration(data.live.settle) + _RECEIVED_LATER
    times = {}
    for path in log.unreadable.keys() & day.keys():
        midnight = datetime.combine(day[path], time(), UTC)
        begin, end = first.get(path) or midnight, last.get(path) or midnight + timedelta(days=1)
        times[path] = (begin - delay - parse_duration(data.live.max_clock_skew), end + _RECEIVED_EARLIER)
    return times


def _match_rows(outcomes: pl.DataFrame, requests: pl.DataFrame) -> pl.DataFrame:
    """Return the outcomes of existing rows, without those that name another item than the answered one.

    The row of an outcome that names an item alone is the item's first one.
    """
    in_range = find_rows(outcomes, requests).filter(pl.col("row").is_between(0, pl.col(ROWS), closed="left"))
    items = requests.select(REQUEST, "items")
    item = pl.col("items").list.get(pl.col("row"), null_on_oob=True)
    with_items = in_range.join(items, on=REQUEST, how="left", maintain_order="left").with_columns(item.alias(_ITEM))
    return with_items.filter((pl.col("item") == pl.col(_ITEM)).fill_null(True)).drop("items", _ITEM)


def _empty_outcomes(outcomes: pl.DataFrame) -> pl.DataFrame:
    answer = pl.lit(None, pl.Datetime("us", "UTC")).alias(_ANSWER)
    request = pl.lit(None, pl.UInt64).alias(REQUEST)
    return outcomes.with_columns(request, pl.lit(None, pl.Int64).alias(ROWS), answer)
