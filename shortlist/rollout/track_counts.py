"""Incremental counts of one track at one step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from shortlist.rollout.evidence import TrackEvidence
from shortlist.rollout.evidence_latency import BUCKETS, Latencies, bucket_numbers
from shortlist.rollout.evidence_users import UserCounts

MAX_SAMPLED_SCORES: Final = 5_000
"""Most sampled scores per step and track."""
ROWS_SAMPLED: Final = 32
"""Number of first scores of one request that may enter the sample."""


def _no_sample() -> pl.DataFrame:
    return pl.DataFrame(schema={"draw": pl.UInt64, "user": pl.UInt64, "score": pl.Float64})


@dataclass
class TrackCounts:
    """Counts of one track at one step; names as in `TrackEvidence`."""

    requests: int = 0
    failed: int = 0
    client_errors: int = 0
    disconnected: int = 0
    answered: int = 0
    to_log: int = 0
    anonymous: int = 0
    """Requests without a user; each counts as one user."""
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
        """Count requests of the access logs: columns of `rollout_requests`, and to_log."""
        self.requests += rows.height
        self.failed += int(rows["failed"].sum())
        self.client_errors += int(rows["client_error"].sum())
        self.disconnected += int(rows["disconnected"].sum())
        self.anonymous_disconnected += int((rows["disconnected"] & rows["user"].is_null()).sum())
        self.anonymous_refused += int((rows["client_error"] & rows["user"].is_null()).sum())
        self.answered += int(rows["answered"].sum())
        self.to_log += int(rows["to_log"].sum())
        numbers = bucket_numbers(rows.filter("answered")["us"].drop_nulls().to_numpy())
        self.latencies += np.bincount(numbers, minlength=BUCKETS)

    def add_predictions(self, rows: pl.DataFrame) -> None:
        """Count rows of the prediction log, with a column good; the scores of good rows may enter the sample."""
        good = rows.filter("good")
        several = good.filter(pl.col("scores").list.len() > 1)["scores"]
        self.logged += rows.height
        self.bad += rows.height - good.height
        self.degraded += int(rows["degraded"].sum())
        self.rankable += several.len()
        self.flat += int((several.list.max() == several.list.min()).sum())
        self.sample = pl.concat([self.sample, _sample_scores(good)]).bottom_k(MAX_SAMPLED_SCORES, by="draw")

    def add_outcomes(self, changes: pl.DataFrame) -> None:
        """Count changes by new outcomes; columns first, slates, hits, clicks."""
        self.with_outcomes += int(changes["first"].sum())
        self.slates += int(changes["slates"].sum())
        self.hits += int(changes["hits"].sum())
        self.clicks += int(changes["clicks"].sum())

    def evidence(self, user_counts: UserCounts, kpi: float | None, kpi_users: int) -> TrackEvidence:
        """Return the counts as evidence, together with the numbers of users and the KPI."""
        return TrackEvidence(
            **{name: getattr(self, name) for name in _COUNTS},
            anonymous=self.anonymous,
            users=user_counts.users + self.anonymous,
            settled_users=user_counts.settled + self.anonymous_settled,
            disconnected_users=user_counts.disconnected + self.anonymous_disconnected,
            refused_users=user_counts.refused + self.anonymous_refused,
            slate_users=user_counts.slates,
            empty_slate_users=user_counts.empty_slates,
            latencies=Latencies(self.latencies.copy()),
            kpi=kpi,
            kpi_users=kpi_users,
            scores=np.sort(self.sample["score"].to_numpy()),
            score_users=_effective_users(self.sample["user"]),
        )

    def __add__(self, addend: TrackCounts) -> TrackCounts:
        names = (*_COUNTS, "anonymous", "anonymous_settled", "anonymous_disconnected", "anonymous_refused", "latencies")
        sums = {name: getattr(self, name) + getattr(addend, name) for name in names}
        sample = pl.concat([self.sample, addend.sample]).bottom_k(MAX_SAMPLED_SCORES, by="draw")
        return TrackCounts(**sums, sample=sample)


_COUNTS: Final = (
    *("requests", "failed", "client_errors", "disconnected", "answered", "to_log"),
    *("logged", "bad", "degraded", "rankable", "flat", "with_outcomes"),
    *("slates", "hits", "clicks"),
)


def _effective_users(users: pl.Series) -> float:
    # Effective sample size, n^2 / sum of squares (Kish, 1965): scores of one user are not independent.
    scores_per_user = users.value_counts()["count"].to_numpy().astype(np.float64)
    return float(users.len() ** 2 / (scores_per_user**2).sum()) if users.len() else 0.0


def _sample_scores(good: pl.DataFrame) -> pl.DataFrame:
    # The scores with the smallest hashes are a random sample of all, in whatever order they arrive.
    first_scores = good.select("request", "user", score=pl.col("scores").list.head(ROWS_SAMPLED))
    scores = first_scores.with_row_index("number").explode("score").filter(pl.col("score").is_not_null())
    row = pl.int_range(pl.len()).over("number").cast(pl.UInt64)
    return scores.select(
        draw=pl.struct("request", row.alias("row")).hash(), user="user", score=pl.col("score").cast(pl.Float64)
    ).bottom_k(MAX_SAMPLED_SCORES, by="draw")
