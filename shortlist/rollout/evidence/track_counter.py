"""Incremental counter of one track at one step."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from shortlist.rollout.evidence.counts import TrackCounts, UserCounts
from shortlist.rollout.evidence.latency import BUCKETS, Latencies, bucket_numbers
from shortlist.rollout.evidence.rollout_evidence import TrackEvidence
from shortlist.system.sender_networks import sender_networks

MAX_SAMPLED_SCORES: Final = 5_000
"""Most sampled scores per step and track."""
ROWS_SAMPLED: Final = 32
"""Number of first scores of one request that may enter the sample."""
MAX_SENDERS: Final = 1_000
"""Most senders of left-out requests and rows that are remembered by track and step, those of most."""


def _no_sample() -> pl.DataFrame:
    return pl.DataFrame(schema={"draw": pl.UInt64, "user": pl.UInt64, "score": pl.Float64})


@dataclass
class TrackCounter:
    """Incremental counter of one track at one step."""

    counts: TrackCounts = field(default_factory=TrackCounts)
    anonymous: UserCounts = field(default_factory=UserCounts)
    """Requests without a user; each counts as one user."""
    latencies: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(BUCKETS, dtype=np.int64))
    sample: pl.DataFrame = field(default_factory=_no_sample)
    left_out_senders: Counter[str] = field(default_factory=Counter)
    """Left-out requests and rows by sender; the empty text stands for those without one."""

    def add_requests(self, rows: pl.DataFrame) -> None:
        """Count requests of the access logs: columns of `rollout_requests`, and to_log."""
        self.counts += count_requests(rows)
        anonymous = TrackCounts.sum_columns(rows.filter(pl.col("user").is_null()))
        self.add_anonymous(disconnected_users=anonymous.disconnected, refused_users=anonymous.client_errors)
        numbers = bucket_numbers(rows.filter("answered")["us"].drop_nulls().to_numpy())
        self.latencies += np.bincount(numbers, minlength=BUCKETS)

    def add_anonymous(self, **counts: int) -> None:
        """Count requests without a user, each as one user, by the names of `UserCounts`."""
        self.anonymous = self.anonymous.plus(UserCounts(**counts))

    def add_predictions(self, rows: pl.DataFrame) -> None:
        """Count rows of the prediction log, with a column good; the scores of good rows may enter the sample."""
        self.counts += count_predictions(rows)
        self.sample = pl.concat([self.sample, _sample_scores(rows.filter("good"))]).bottom_k(
            MAX_SAMPLED_SCORES, by="draw"
        )

    def add_outcomes(self, changes: pl.DataFrame) -> None:
        """Count changes by new outcomes; columns with_outcomes, slates, hits, clicks."""
        self.counts += TrackCounts.sum_columns(changes)

    def add_left_out(self, rows: pl.DataFrame, count: str) -> None:
        """Count requests or rows of the prediction log that are no evidence; column sender.

        Args:
            rows: The requests or rows.
            count: Name of their count in `TrackCounts`.
        """
        self.counts += TrackCounts(**{count: rows.height})
        senders = sender_networks(rows["sender"]).fill_null("")
        self.left_out_senders = _most_frequent(self.left_out_senders + Counter(senders.to_list()))

    def evidence(self, user_counts: UserCounts, kpi: float | None, kpi_users: int) -> TrackEvidence:
        """Return the counts as evidence, together with the numbers of users and the KPI."""
        return TrackEvidence(
            **asdict(self.counts),
            **asdict(user_counts.plus(self.anonymous)),
            anonymous=self.anonymous.users,
            latencies=Latencies(self.latencies.copy()),
            kpi=kpi,
            kpi_users=kpi_users,
            scores=np.sort(self.sample["score"].to_numpy()),
            score_users=_effective_users(self.sample["user"]),
            left_out_senders=tuple(sender for sender, _ in self.left_out_senders.most_common()),
        )

    def __add__(self, addend: TrackCounter) -> TrackCounter:
        return TrackCounter(
            counts=self.counts + addend.counts,
            anonymous=self.anonymous.plus(addend.anonymous),
            latencies=self.latencies + addend.latencies,
            sample=pl.concat([self.sample, addend.sample]).bottom_k(MAX_SAMPLED_SCORES, by="draw"),
            left_out_senders=_most_frequent(self.left_out_senders + addend.left_out_senders),
        )


def _most_frequent(senders: Counter[str]) -> Counter[str]:
    return senders if len(senders) <= MAX_SENDERS else Counter(dict(senders.most_common(MAX_SENDERS)))


def count_requests(rows: pl.DataFrame) -> TrackCounts:
    """Return the counts of requests of the access logs; see `TrackCounter.add_requests`."""
    return TrackCounts.sum_columns(rows.with_columns(requests=pl.lit(1)))


def count_predictions(rows: pl.DataFrame) -> TrackCounts:
    """Return the counts of rows of the prediction log; see `TrackCounter.add_predictions`."""
    good, scores = pl.col("good").fill_null(value=False), pl.col("scores").list
    rankable = good & (scores.len() > 1)
    flat = rankable & (scores.max() == scores.min())
    return TrackCounts.sum_columns(rows.with_columns(logged=pl.lit(1), bad=~good, rankable=rankable, flat=flat))


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
