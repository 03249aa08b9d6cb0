"""The servers' own log in place of access logs: who was answered, by which track, how and how fast."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import polars as pl

from shortlist.rollout.evidence_access import SCHEMA
from shortlist.rollout.log_parts import PartReader, is_routed_by_user

SETTLED_SECONDS: Final = 20.0
"""Age of a row when the rows of all pods of that age are expected to be in the object store: flush, shipping, a retry.

Users are counted by track; with one pod's newest rows and without another's they would look as if they were all sent to
one track."""
_COLUMNS: Final = ("time", "request_id", "user", "routed_by_user", "track", "rollout", "step", "status", "latency_ms")
_PATH: Final = "/infer"
"""Only such requests are in the log."""


class ServedRequests:
    """Lines about the requests of a rollout, as an access log would have them; a source of an `EvidenceReader`.

    Latencies are those inside the server, without the way through the gateway. Requests that reached no server, and
    those that it refused, are not here.

    Args:
        predictions: Folder of the prediction log, or of its mirror.
        rollout: Id of the rollout.
        settled_seconds: Rows are held back until they are so old.
        since: When the rollout began: far older parts of the log are left alone.
    """

    def __init__(
        self,
        predictions: Path,
        rollout: str,
        settled_seconds: float = SETTLED_SECONDS,
        since: datetime | None = None,
    ) -> None:
        self._parts = PartReader(predictions, _COLUMNS, "rollout", lambda ids: (ids == rollout).any(), since)
        self._rollout, self._settled = rollout, timedelta(seconds=settled_seconds)
        self._held: pl.DataFrame | None = None

    @property
    def unreadable(self) -> int:
        """Parts that could not be read."""
        return self._parts.unreadable

    def read(self) -> Iterator[pl.DataFrame]:
        """Yield what has settled since the last reading."""
        new = [rows.filter(pl.col("rollout") == self._rollout) for rows in self._parts.read()]
        rows = pl.concat([*([] if self._held is None else [self._held]), *new]) if new else self._held
        if rows is None:
            return
        settled = pl.col("time") <= datetime.now(UTC) - self._settled
        self._held = rows.filter(~settled)
        yield _as_lines(rows.filter(settled))


def _as_lines(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.select(
        pl.col("time").dt.strftime("%Y-%m-%dT%H:%M:%S%.6fZ"),
        pl.col("request_id").alias("id"),
        pl.when(is_routed_by_user()).then("user").alias("user"),
        "track",
        "rollout",
        pl.col("step").cast(pl.String),
        pl.lit(_PATH).alias("path"),
        pl.col("status").cast(pl.Int64),
        pl.lit(None, pl.Int64).alias("grpc"),
        pl.lit(None, pl.String).alias("details"),
        (pl.col("latency_ms").cast(pl.Float64) * 1000).round().cast(pl.Int64).alias("us"),
    ).cast(SCHEMA)
