"""What one track did at one step, counted piece by piece."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from shortlist.rollout.evidence import TrackEvidence
from shortlist.rollout.evidence_latency import BUCKETS, Latencies, buckets_of
from shortlist.rollout.evidence_users import SeenUsers

SAMPLE: Final = 5_000
"""Scores kept per step and track."""
ROWS_SAMPLED: Final = 32
"""Scores of one request that may enter the sample, from its start."""


def _no_sample() -> pl.DataFrame:
    return pl.DataFrame(schema={"draw": pl.UInt64, "user": pl.UInt64, "score": pl.Float64})


@dataclass
class TrackCounts:
    """Counts so far; their names are those of `TrackEvidence`."""

    requests: int = 0
    failed: int = 0
    client_errors: int = 0
    disconnected: int = 0
    answered: int = 0
    to_log: int = 0
    anonymous: int = 0
    """Requests without a user, each a user of its own."""
    anonymous_settled: int = 0
    anonymous_disconnected: int = 0
    anonymous_refused: int = 0
    logged: int = 0
    bad: int = 0
    degraded: int = 0
    rankable: int = 0
    flat: int = 0
    with_outcomes: int = 0
    slates: int = 0
    hits: int = 0
    clicks: int = 0
    latencies: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(BUCKETS, dtype=np.int64))
    sample: pl.DataFrame = field(default_factory=_no_sample)

    def add_requests(self, rows: pl.DataFrame) -> None:
        """Count lines of the access logs, as `of_rollout` gives them, with to_log."""
        self.requests += rows.height
        self.failed += int(rows["failed"].sum())
        self.client_errors += int(rows["client_error"].sum())
        self.disconnected += int(rows["disconnected"].sum())
        self.anonymous_disconnected += int((rows["disconnected"] & rows["user"].is_null()).sum())
        self.anonymous_refused += int((rows["client_error"] & rows["user"].is_null()).sum())
        self.answered += int(rows["answered"].sum())
        self.to_log += int(rows["to_log"].sum())
        numbers = buckets_of(rows.filter("answered")["us"].drop_nulls().to_numpy())
        self.latencies += np.bincount(numbers, minlength=BUCKETS)

    def add_predictions(self, rows: pl.DataFrame) -> None:
        """Count rows of the prediction log, with good; the scores of good ones may enter the sample."""
        good = rows.filter("good")
        several = good.filter(pl.col("scores").list.len() > 1)["scores"]
        self.logged += rows.height
        self.bad += rows.height - good.height
        self.degraded += int(rows["degraded"].sum())
        self.rankable += several.len()
        self.flat += int((several.list.max() == several.list.min()).sum())
        self.sample = pl.concat([self.sample, _drawn(good)]).bottom_k(SAMPLE, by="draw")

    def add_outcomes(self, changes: pl.DataFrame) -> None:
        """Count what became known of requests; columns first, slates, hits, clicks."""
        self.with_outcomes += int(changes["first"].sum())
        self.slates += int(changes["slates"].sum())
        self.hits += int(changes["hits"].sum())
        self.clicks += int(changes["clicks"].sum())

    def evidence(self, seen: SeenUsers, kpi: float | None, kpi_users: int) -> TrackEvidence:
        """Return the counts together with what is known of the users."""
        return TrackEvidence(
            **{name: getattr(self, name) for name in _COUNTS},
            anonymous=self.anonymous,
            users=seen.users + self.anonymous,
            settled_users=seen.settled + self.anonymous_settled,
            disconnected_users=seen.disconnected + self.anonymous_disconnected,
            refused_users=seen.refused + self.anonymous_refused,
            slate_users=seen.slates,
            empty_slate_users=seen.empty_slates,
            latencies=Latencies(self.latencies.copy()),
            kpi=kpi,
            kpi_users=kpi_users,
            scores=np.sort(self.sample["score"].to_numpy()),
            score_users=_independent(self.sample["user"]),
        )

    def __add__(self, other: TrackCounts) -> TrackCounts:
        names = (*_COUNTS, "anonymous", "anonymous_settled", "anonymous_disconnected", "anonymous_refused", "latencies")
        sums = {name: getattr(self, name) + getattr(other, name) for name in names}
        sample = pl.concat([self.sample, other.sample]).bottom_k(SAMPLE, by="draw")
        return TrackCounts(**sums, sample=sample)


_COUNTS: Final = (
    *("requests", "failed", "client_errors", "disconnected", "answered", "to_log"),
    *("logged", "bad", "degraded", "rankable", "flat", "with_outcomes"),
    *("slates", "hits", "clicks"),
)


def _independent(users: pl.Series) -> float:
    # n^2 / sum of squares (Kish, 1965): a user with half of the scores does not count as one of many.
    scores_per_user = users.value_counts()["count"].to_numpy().astype(np.float64)
    return float(users.len() ** 2 / (scores_per_user**2).sum()) if users.len() else 0.0


def _drawn(good: pl.DataFrame) -> pl.DataFrame:
    # The scores whose hash is smallest are a random sample of all, whatever the order in which they come.
    few = good.select("request", "user", score=pl.col("scores").list.head(ROWS_SAMPLED))
    scores = few.with_row_index("number").explode("score").filter(pl.col("score").is_not_null())
    row = pl.int_range(pl.len()).over("number").cast(pl.UInt64)
    return scores.select(
        draw=pl.struct("request", row.alias("row")).hash(), user="user", score=pl.col("score").cast(pl.Float64)
    ).bottom_k(SAMPLE, by="draw")
