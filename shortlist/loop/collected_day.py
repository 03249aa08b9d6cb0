"""A day of answered slates as a batch of collected rows, which the next training reads."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import polars as pl

from shortlist.collecting.live_rows import collected_columns, span_of_times
from shortlist.contracts import Columns
from shortlist.data.collected import ANSWERED, REQUESTS, ROWS, BatchCounts, CollectedBatch, CollectedLog
from shortlist.data.reading.clock import event_days
from shortlist.data.rules.contributions import BY_REQUEST, BY_SENDER, BY_USER
from shortlist.features.values.hashing import codes_of
from shortlist.spec.data import Data, EventClock
from shortlist.storage.artefacts import sha256

_FIRST_IMPRESSION: Final = 1 << 62
"""Smallest id of a collected impression, far above the numbers in the generated log."""
EXPLORED: Final = "explored"
"""Column of answered rows: whether places of the slate were drawn."""
VERSION: Final = "version"
"""Column of answered rows: the version that made the slate."""


def publish_day(log: CollectedLog, data: Data, spec: str, answered: pl.DataFrame, sent: Sequence[str]) -> int:
    """Publish the rows of a day's slates that users saw; return their number.

    Args:
        log: The collected log of the spec.
        data: The spec's section.
        spec: Name of the spec.
        answered: Rows of `AnsweringWorld.answer`, with `EXPLORED` and `VERSION`.
        sent: Columns that a request sends; columns that only the world knows stay null, as in served traffic.
    """
    number = len(log.batches()) + 1
    rows = _collected_rows(data, answered.filter("seen"), sent, _FIRST_IMPRESSION + (number << 32))
    first, last = span_of_times(rows[Columns.TIME])
    with TemporaryDirectory(prefix="shortlist-loop-") as scratch:
        folder = Path(scratch)
        rows.write_parquet(folder / ROWS)
        (folder / REQUESTS).mkdir()
        request_ids = answered["request_id"].unique().sort().cast(pl.String)
        codes_of(request_ids).alias("request").to_frame().write_parquet(folder / REQUESTS / f"{REQUESTS}.parquet")
        positives = int(rows[Columns.LABEL].sum())
        batch = CollectedBatch(
            number=number, spec=spec, made=datetime.now(UTC), folder=log.files_key(number, secrets.token_hex(6)),
            digest=sha256(folder / ROWS), spans=(), answered_from=first, answered_to=last, first=first, last=last,
            counts=BatchCounts(requests=len(request_ids), rows=rows.height, positives=positives),
        )  # fmt: skip
        published = log.publish(batch, folder)
        assert published, "nobody else collects rows of a loop"
    return rows.height


def _collected_rows(data: Data, seen: pl.DataFrame, sent: Sequence[str], first_impression: int) -> pl.DataFrame:
    """Return the rows with the columns of collected ones; all rows of a slate have the time of its request."""
    assert isinstance(data.clock, EventClock) and data.user and data.item
    times = seen.select(pl.col(Columns.TIME).min().over("request_id")).to_series()
    count = seen.height
    answers = {
        Columns.SOURCE_FILE: pl.repeat("loop", count, eager=True),
        Columns.SOURCE_LINE: pl.int_range(1, count + 1, eager=True),
        Columns.TIME: times,
        Columns.DAY: event_days(times, data.clock),
        Columns.IMPRESSION: pl.int_range(first_impression, first_impression + count, eager=True),
        Columns.LABEL: seen["is_click"].cast(pl.Int8),
        Columns.SERVED_VERSION: seen[VERSION].cast(pl.Int64),
        Columns.SERVED_TRACK: pl.repeat("stable", count, eager=True),
        Columns.COUNTS_DELAY: pl.repeat(None, count, dtype=pl.Float32(), eager=True),
        Columns.UNCOUNTED: pl.repeat(None, count, dtype=pl.Boolean(), eager=True),
        Columns.WEIGHT: pl.repeat(1.0, count, dtype=pl.Float32(), eager=True),
        ANSWERED: times,
        BY_REQUEST: codes_of(seen["request_id"].cast(pl.String)).reinterpret(signed=False),
        BY_USER: seen[data.user].cast(pl.String),
        BY_SENDER: pl.repeat(None, count, dtype=pl.String(), eager=True),  # the world vouches for its users
    }
    placement = {
        "position": seen["position"],
        "propensity": pl.repeat(None, count, dtype=pl.Float64(), eager=True),
        "policy": seen[VERSION].cast(pl.String),
        "randomized": seen[EXPLORED].cast(pl.Int64),
    }
    answers |= {name: placement[role] for role, name in data.placement.items()}
    outcomes = {column.name for column in data.columns if column.known == "after"} - answers.keys()
    known = {*sent, data.user, data.item, *outcomes, *((data.request,) if data.request else ())}
    for column in data.columns:
        if column.name not in answers:
            kind = column.polars_type
            is_known = column.name in known and column.name in seen.columns
            values = seen[column.name].cast(kind) if is_known else pl.repeat(None, count, dtype=kind, eager=True)
            answers[column.name] = values
    rows = pl.DataFrame([values.alias(name) for name, values in answers.items()])
    return rows.select(collected_columns(data)).sort(Columns.TIME, Columns.IMPRESSION)
