"""A window of live traffic: requests, outcomes, and irregularities of the logs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import polars as pl


@dataclass(frozen=True)
class LiveWindow:
    """Requests whose moments lie in a span of time, joined with their outcomes."""

    start: datetime
    end: datetime
    requests: int
    """Answered requests in the prediction log."""
    rows: pl.DataFrame
    """Shown rows whose outcome is known, at most `window.max_rows`; beyond that, a sample of whole requests.

    request_id, row (Int32, its number in the request), user (String), version (Int64), track (String), score (Float32),
    label (Int8), event_time (Datetime us UTC), impression_weight (Float32), and every declared column known before the
    impression except vectors, with the types of the valid log: the log's own columns as sent (null where they were not)
    and the side tables' columns by key. A declared column with the name of one of the first seven is left out. Where
    slates are declared, `slate size` (Float64) is the number of candidates of the request, shown or not. For every
    further label: `label_<name>` (Int8, null where the outcome was sent without its column) and `score_<name>`
    (Float32, null where the model gives none).
    """
    coverage: float
    """Share of the answered requests with an outcome; requests without rows do not count. 0 without requests."""
    late: int
    """Outcomes that came after the window was mature; they are used as well."""
    duplicates: int
    """Outcomes of rows that already had one; the last one counts."""
    orphans: int
    """Outcomes of this time whose request, or row, is not in the prediction log."""
    future: int
    """Rows later than their own answer by more than the allowed clock skew; they are left out."""
    scored: pl.DataFrame
    """version (Int64), impression_weight, score (Float32) of answered rows, with outcomes or not; sampled as `rows`."""
    unreadable: tuple[str, ...] = ()
    """Files of the logs that cannot be read, each with the reason and the next step; their rows are missing above."""
    answered_rows: int = 0
    """Rows of the answered requests, with outcomes or not."""
