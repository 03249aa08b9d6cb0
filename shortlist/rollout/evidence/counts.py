"""The counts of a track. Each is declared here only; logs, evidence, records and pages read them by name."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final, Self

import polars as pl

from shortlist.evaluation.metrics.records import Record


@dataclass(frozen=True)
class TrackCounts:
    """Counts of requests, answers and slates of one track."""

    requests: int = 0
    """Inference requests in Envoy's access logs."""
    failed: int = 0
    """Requests without a usable answer by the server's fault: 5xx, or a gRPC status of a server error."""
    client_errors: int = 0
    """Requests that were refused because the client made a mistake; no evidence against a release."""
    disconnected: int = 0
    """Requests whose client disconnected before the answer; no evidence against a release."""
    answered: int = 0
    """Requests that were answered with scores."""
    to_log: int = 0
    """Answered requests that were sampled for the prediction log."""
    logged: int = 0
    """Rows of the prediction log, including duplicates."""
    bad: int = 0
    """Logged answers without scores, or with a score that is not finite."""
    degraded: int = 0
    """Logged answers whose features could not be read."""
    rankable: int = 0
    """Logged answers with two or more finite scores."""
    flat: int = 0
    """Rankable answers whose scores are all equal."""
    with_outcomes: int = 0
    """Logged answers with a known outcome."""
    slates: int = 0
    """Slates with a known outcome: answers whose items the release itself retrieved."""
    hits: int = 0
    """Slates with a positive label on any item."""
    clicks: int = 0
    """Items of slates with a positive label."""

    @classmethod
    def sum_columns(cls, rows: pl.DataFrame) -> Self:
        """Return the sums of all columns that have the name of a count."""
        return cls(**{name: int(rows[name].sum()) for name in TRACK_COUNTS if name in rows.columns})

    def __add__(self, addend: TrackCounts) -> TrackCounts:
        return TrackCounts(**{name: getattr(self, name) + getattr(addend, name) for name in TRACK_COUNTS})


@dataclass(frozen=True)
class UserCounts:
    """Numbers of distinct users of one track with at least one event of each kind."""

    users: int = 0
    """Users with a request; a request without a user counts as one. Before the last step, only users of requests that
    began before the newest answered request of the slower track: see `TrackAligner`."""
    settled_users: int = 0
    """Users of requests that began so long ago that all requests of that time have ended."""
    disconnected_users: int = 0
    """Users who disconnected before an answer."""
    refused_users: int = 0
    """Users who were refused by the track (4xx)."""
    slate_users: int = 0
    """Users with a slate in the prediction log, also an empty one."""
    empty_slate_users: int = 0
    """Users with an empty slate."""

    def plus(self, addend: UserCounts) -> UserCounts:
        """Return the sums of both; their users must be distinct."""
        return UserCounts(**{name: getattr(self, name) + getattr(addend, name) for name in USER_COUNTS})


TRACK_COUNTS: Final = tuple(count.name for count in fields(TrackCounts))
"""Names of the counts of a track."""
USER_COUNTS: Final = tuple(count.name for count in fields(UserCounts))
"""Names of the numbers of users; also the columns of `UserTable` with the events."""


class VerdictTotals(Record):
    """Counts of all requests of a rollout, on both tracks, in `evidence.json`; see `TrackCounts`."""

    total: int = 0
    failed_stable: int = 0
    failed_canary: int = 0
    client_errors: int = 0
    disconnected: int = 0
    lost: int = 0
    """Answered requests that are missing in the prediction log."""
    logged: int = 0
    """Requests in the prediction log."""


class RequestTotals(VerdictTotals):
    """Counts of all requests of a rollout, on both tracks."""

    doubled: int = 0
    """Rows of the prediction log beyond the first of a request."""
