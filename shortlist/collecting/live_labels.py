"""The outcome of every row of some requests, whatever the order in which outcomes came and however often."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import polars as pl
import pyarrow as pa

from monitoring.windows.answered_requests import REQUEST, ROWS, request_hash
from shortlist.contracts import Columns
from shortlist.serving.log.log_reader import parts, read_parts
from shortlist.serving.log.logs import item_type, outcome_columns, outcome_name, outcome_schema
from shortlist.spec.data import Data
from shortlist.spec.durations import parse_duration

_WRITTEN_LATER: Final = timedelta(hours=1)
"""A file is written after its outcomes happened, by a clock that may be so much behind."""
_ANSWER: Final = ":answer"
_ITEM: Final = ":item"
_WRITTEN: Final = ":written"


@dataclass(frozen=True)
class Labels:
    """What became of the rows of some requests."""

    frame: pl.DataFrame
    """request, row, label, and the columns known after the impression; a row without an outcome in time is not here."""
    late: int
    early: int
    earliest: timedelta
    """How long before its answer the earliest of these was."""
    ahead: int
    """Outcomes from after the time at which their file was written, by more than clocks may differ."""
    furthest: timedelta
    """By how much the furthest of these was."""
    repeated: int
    foreign: int
    matched: int
    """Outcomes of the requests, whatever became of them."""
    unmatched: pl.Series
    """Ids of other requests, whose outcomes happened while these were answered."""


def read_labels(folder: Path, requests: pl.DataFrame, data: Data) -> Labels:
    """Return the outcomes of some requests.

    An outcome counts when it happened within `data.outcome_delay` after the answer, by the times that both logs give,
    so that it does not matter when anybody looks. Of several outcomes of a row, the last one counts.

    Args:
        folder: The outcome log.
        requests: Columns time, request_id, request (hash of the id), rows, items; each request once; not empty.
        data: The log's declaration.

    Raises:
        LogPartError: A file of the outcome log cannot be read.
    """
    after = outcome_columns(data)
    schema = outcome_schema(item_type(data), after)
    delay, skew = parse_duration(data.live_outcome_delay or "0s"), parse_duration(data.live.max_clock_skew)
    first, last = requests["time"].min(), requests["time"].max()
    assert isinstance(first, datetime) and isinstance(last, datetime)
    ours, unmatched = [], [pl.Series("request_id", [], dtype=pl.String)]
    wanted = requests.select(REQUEST, ROWS, pl.col("time").alias(_ANSWER))
    for written, piece in _pieces(folder, schema, first - skew - _WRITTEN_LATER):
        told = piece.filter(pl.col("label").is_not_null(), pl.col("request_id").is_not_null())
        told = told.with_columns(request_hash(), pl.lit(written, pl.Datetime("us", "UTC")).alias(_WRITTEN))
        joined = told.join(wanted, on=REQUEST, how="left", maintain_order="left")
        other = joined.filter(pl.col(_ANSWER).is_null(), pl.col("time").is_between(first, last))
        unmatched.append(other["request_id"].unique())
        ours.append(joined.filter(pl.col(_ANSWER).is_not_null()))
    found = pl.concat(ours) if ours else _nothing(schema)
    own = _of_its_row(found, requests)
    late = own["time"] > own[_ANSWER] + delay
    early = own["time"] < own[_ANSWER] - skew
    ahead = own["time"] > own[_WRITTEN] + skew
    in_time = own.filter(~late, ~early).with_columns((pl.col("label") > 0).cast(pl.Int8))
    # Of two at the same moment the positive one counts: the order of files must not decide.
    ordered = in_time.sort("time", "label", maintain_order=True)
    last_ones = ordered.unique([REQUEST, "row"], keep="last", maintain_order=True)
    named = [pl.col(outcome_name(name)).alias(name) for name in after]
    return Labels(
        frame=last_ones.select(REQUEST, "row", Columns.LABEL, *named), late=int(late.sum()), early=int(early.sum()),
        earliest=_longest(own[_ANSWER] - own["time"], early),
        ahead=int(ahead.sum()), furthest=_longest(own["time"] - own[_WRITTEN], ahead),
        repeated=in_time.height - last_ones.height, foreign=found.height - own.height, matched=found.height,
        unmatched=pl.concat(unmatched).unique(),
    )  # fmt: skip


def _pieces(folder: Path, schema: pa.Schema, since: datetime) -> Iterable[tuple[datetime, pl.DataFrame]]:
    """Give when a part was written, and its rows; a part that was fetched from an object store may say later."""
    for path in parts(folder):
        written = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        if written >= since:
            yield written, read_parts([path], schema)


def _of_its_row(found: pl.DataFrame, requests: pl.DataFrame) -> pl.DataFrame:
    """Return the outcomes of rows that there are, and of the item that was answered there where one is named."""
    there = found.filter(pl.col("row").is_between(0, pl.col(ROWS), closed="left"))
    items = requests.select(REQUEST, "items")
    item = pl.col("items").list.get(pl.col("row"), null_on_oob=True)
    with_items = there.join(items, on=REQUEST, how="left", maintain_order="left").with_columns(item.alias(_ITEM))
    return with_items.filter((pl.col("item") == pl.col(_ITEM)).fill_null(True)).drop("items", _ITEM)


def _longest(times: pl.Series, which: pl.Series) -> timedelta:
    found = times.filter(which).max()
    return found if isinstance(found, timedelta) else timedelta()


def _nothing(schema: pa.Schema) -> pl.DataFrame:
    empty = pl.from_arrow(schema.empty_table())
    assert isinstance(empty, pl.DataFrame)
    times = (pl.lit(None, pl.Datetime("us", "UTC")).alias(name) for name in (_WRITTEN, _ANSWER))
    return empty.with_columns(request_hash(), pl.lit(None, pl.Int64).alias(ROWS), *times)
