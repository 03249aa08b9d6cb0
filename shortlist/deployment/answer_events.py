"""What users saw and did with a logged answer, by the rules that make labels of events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import polars as pl
import pyarrow.dataset as ds

from monitoring.windows.answered_requests import REQUEST, ROWS
from shortlist.collecting.live_labels import match_labels
from shortlist.contracts import Columns
from shortlist.serving.log.log_follower import LogFollower
from shortlist.serving.log.logs import item_type, outcome_columns, outcome_schema
from shortlist.serving.log.serving_log import ServingLog
from shortlist.serving.paths import ServingPaths
from shortlist.spec.data import Data

_ANY_TIME: Final = "36500d"


def event_lines(paths: ServingPaths, declared: Data, answer: pl.DataFrame) -> Iterator[str]:
    """Yield what events say of an answer: which of its items were seen, their outcomes, and events that do not count.

    Args:
        paths: Paths of the spec's logs.
        declared: Data section of the version that answered.
        answer: The answer's row of the prediction log.
    """
    log = ServingLog.on_disk(paths.outcomes, outcome_schema(item_type(declared), outcome_columns(declared)))
    request_id = answer["request_id"].item()
    follower = LogFollower(log, log.declared.names, where=ds.field("request_id") == request_id)
    pieces = (piece.filter(pl.col("request_id") == request_id) for piece in follower.read_new())
    rows = pl.col("scores").list.len().fill_null(0)
    requests = answer.select(
        "time", "request_id", "sender", "items", rows.cast(pl.Int64).alias(ROWS), pl.lit(0, pl.UInt64).alias(REQUEST)
    )
    label = declared.label
    if declared.live_outcome_delay is None:
        declared = declared.model_copy(update={"outcome_delay": _ANY_TIME})
    labels = match_labels(pieces, requests, declared, log.empty(log.declared.names))
    seen_rows, unseen_rows = set(labels.seen["row"]), set(labels.unseen["row"])
    outcomes = {row["row"]: row for row in labels.frame.to_dicts()}
    positives = sum(row[Columns.LABEL] for row in outcomes.values())
    yield (
        f"  events     of {requests[ROWS].item()} items {len(seen_rows)} seen, {len(outcomes)} with an outcome,"
        f" {positives} with {label} positive"
    )
    for row in sorted(seen_rows | unseen_rows | outcomes.keys()):
        seen_text = "seen" if row in seen_rows else "not seen" if row in unseen_rows else ""
        yield f"             index {row}: {', '.join(_describe_row(seen_text, outcomes.get(row), label))}"
    left_out = {
        "later than outcome_delay": labels.late,
        "received before the answer": labels.early,
        "replaced by a later one of the same item": labels.repeated,
        "of an item that the answer does not have there": labels.foreign,
    }
    left_out_texts = [f"{count} {reason}" for reason, count in left_out.items() if count]
    if left_out_texts:
        yield f"             not counted: {', '.join(left_out_texts)}"


def _describe_row(seen_text: str, outcome: dict[str, Any] | None, label: str) -> Iterator[str]:
    if seen_text:
        yield seen_text
    for name, value in (outcome or {}).items():
        if value is not None and name not in (REQUEST, "row"):
            yield f"{label if name == Columns.LABEL else name} {value}"
