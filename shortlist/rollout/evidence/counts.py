"""The counts of a track. Each is declared here only; logs, evidence, records, pages and terminal read all of them."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Final, Self

import polars as pl

from shortlist.evaluation.metrics.records import Record

CANCELLED_GRPC: Final = 1
FAILED_GRPC: Final = (2, 4, 8, 10, 13, 14, 15)
"""Unknown, deadline exceeded, resource exhausted, aborted, internal, unavailable, data loss."""
CLIENT_ERROR_DETAILS: Final = ("request_payload_too_large", "request_headers_too_large")
"""Envoy's own answers to client errors; over gRPC their status is the same as for a failing server."""
_CONDITION: Final = "condition"


def _is_disconnected() -> pl.Expr:
    return (_status() == 0) | (pl.col("grpc") == CANCELLED_GRPC).fill_null(False)


def _is_failed() -> pl.Expr:
    is_server_error = (_status() >= 500) | pl.col("grpc").is_in(FAILED_GRPC).fill_null(False)
    return ~_is_disconnected() & ~_has_client_error_details() & is_server_error


def _is_answered() -> pl.Expr:
    is_ok = (_status() == 200) & (pl.col("grpc").is_null() | (pl.col("grpc") == 0))
    return ~_is_disconnected() & ~_has_client_error_details() & ~_is_failed() & is_ok


def _status() -> pl.Expr:
    return pl.col("status").fill_null(0)


def _has_client_error_details() -> pl.Expr:
    return pl.col("details").is_in(CLIENT_ERROR_DETAILS).fill_null(False)


def request_count(condition: pl.Expr) -> Any:
    """Return a count of the lines of an access log that meet a condition, as a field of `TrackCounts`."""
    return field(default=0, metadata={_CONDITION: condition})


@dataclass(frozen=True)
class TrackCounts:
    """Counts of requests, answers and slates of one track."""

    requests: int = 0
    """Inference requests in Envoy's access logs that are evidence; in totals all of them."""
    left_out: int = 0
    """Requests that are no evidence: those of an address that no authenticated backend vouches for, beyond its share
    (see `SenderAdmission`)."""
    failed: int = request_count(_is_failed())
    """Requests without a usable answer by the server's fault: 5xx, or a gRPC status of a server error."""
    client_errors: int = request_count(~_is_disconnected() & ~_is_failed() & ~_is_answered())
    """Requests that were refused because the client made a mistake; no evidence against a release."""
    disconnected: int = request_count(_is_disconnected())
    """Requests whose client disconnected before the answer; no evidence against a release."""
    answered: int = request_count(_is_answered())
    """Requests that were answered with scores."""
    to_log: int = 0
    """Answered requests that were sampled for the prediction log."""
    logged: int = 0
    """Rows of the prediction log, including duplicates; in totals also those that are no evidence."""
    logged_left_out: int = 0
    """Rows of the prediction log that are no evidence, for the reason of `left_out`."""
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

    def counts(self) -> TrackCounts:
        """Return the counts alone, without what a subclass adds."""
        return self + TrackCounts()

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
REQUEST_CONDITIONS: Final[dict[str, pl.Expr]] = {
    count.name: count.metadata[_CONDITION] for count in fields(TrackCounts) if _CONDITION in count.metadata
}
"""Condition of each count of requests, over the columns of an access log."""
USER_COUNTS: Final = tuple(count.name for count in fields(UserCounts))
"""Names of the numbers of users; also the columns of `UserTable` with the events."""


class RequestTotals(Record):
    """Counts of all requests of a rollout: in its record, in `evidence.json`, on its page and in the terminal."""

    stable: TrackCounts = TrackCounts()
    canary: TrackCounts = TrackCounts()
    lost: int = 0
    """Answered requests that are missing in the prediction log."""
    logged: int = 0
    """Requests in the prediction log."""
    doubled: int = 0
    """Rows of the prediction log beyond the first of a request."""

    @property
    def total(self) -> int:
        """Number of requests on both tracks."""
        return (self.stable + self.canary).requests

    def by_track(self) -> list[tuple[str, int, int]]:
        """Return name, count of the stable track and count of the canary, of every count that is not 0 on both."""
        pairs = ((name, getattr(self.stable, name), getattr(self.canary, name)) for name in TRACK_COUNTS)
        return [(name, stable, canary) for name, stable, canary in pairs if stable or canary]
