"""The ledger of a load: every request that was due, and its outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from shortlist.serving.traffic.answers import ClientResponse

Seconds = npt.NDArray[np.float64]

OPEN: Final = -1
"""Status of a request without an outcome; at the end of the load, it counts as lost."""

_MAX_REASONS: Final = 5
"""Most distinct reasons of failures in a summary."""


@dataclass(slots=True)
class LedgerEntry:
    """One request of a load; times are seconds of the event loop's clock."""

    id: str
    user: str | None
    rows: int
    due: float
    """Time at which it should have been sent."""
    waited: bool = False
    """Whether it was delayed because too many requests were open."""
    sent: float = float("nan")
    answered: float = float("nan")
    status: int = OPEN
    version: str = ""
    track: str = ""
    retries: int = 0
    resent: bool = False
    error: str = ""

    def close(self, answer: ClientResponse, now: float) -> None:
        """Record the response of the request."""
        self.answered, self.status, self.error = now, answer.status, answer.error
        self.version, self.track, self.retries = answer.version, answer.track, answer.retries
        self.resent = answer.resent


@dataclass
class Ledger:
    """Every request of a load, in the order in which they were due."""

    entries: list[LedgerEntry] = field(default_factory=list)
    started: float = 0.0
    ended: float = 0.0

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def status(self) -> npt.NDArray[np.int16]:
        """HTTP status of every request: 0 without a response, `OPEN` without an outcome; shape (requests,)."""
        return np.array([entry.status for entry in self.entries], np.int16)

    @property
    def answered(self) -> npt.NDArray[np.bool_]:
        """Which requests were answered with scores."""
        return np.asarray(self.status == 200)

    @property
    def failed(self) -> npt.NDArray[np.bool_]:
        """Which requests failed: no response, or a status of 500 and above."""
        return np.asarray((self.status <= 0) | (self.status >= 500))

    @property
    def refused(self) -> npt.NDArray[np.bool_]:
        """Which requests were refused with a client error."""
        return np.asarray((self.status > 200) & (self.status < 500))

    @property
    def lost(self) -> int:
        """Number of requests without an outcome."""
        return int((self.status == OPEN).sum())

    @property
    def retries(self) -> int:
        """Number of failed connection attempts."""
        return sum(entry.retries for entry in self.entries)

    @property
    def waited(self) -> int:
        """Number of requests that were delayed because too many were open."""
        return sum(entry.waited for entry in self.entries)

    @property
    def rows(self) -> int:
        """Rows of the answered requests."""
        return sum(entry.rows for entry in self.entries if entry.status == 200)

    @property
    def seconds(self) -> float:
        """Time from the first request to the last response."""
        return self.ended - self.started

    @property
    def rate(self) -> float:
        """Answered requests per second."""
        return float(self.answered.sum() / self.seconds) if self.seconds > 0 else 0.0

    def latencies_ms(self, track: str | None = None) -> Seconds:
        """Return the milliseconds from the due time of each answered request to its response.

        A delayed request counts from when it should have been sent, as a user would wait. So a
        server that stalls cannot hide it by keeping the load generator waiting ("coordinated omission"; Tene, 2013).
        """
        answered_entries = [entry for entry in self.entries if entry.status == 200 and track in (None, entry.track)]
        return np.array([(entry.answered - entry.due) * 1e3 for entry in answered_entries])

    def frame(self) -> pl.DataFrame:
        """Return the ledger as a table, one row per request."""
        entries = self.entries.copy()  # a running load adds entries
        dtypes = {"due": pl.Float64, "sent": pl.Float64, "answered": pl.Float64, "user": pl.String, "id": pl.String}
        columns = (
            pl.Series(name, [getattr(entry, name) for entry in entries], dtype=dtypes.get(name))
            for name in LedgerEntry.__slots__
        )
        return pl.DataFrame(list(columns))

    def write(self, path: Path) -> None:
        """Write the table as Parquet."""
        temporary = path.with_name(path.name + ".partial")
        self.frame().write_parquet(temporary)
        temporary.replace(path)

    def summary(self) -> dict[str, Any]:
        """Return the counts and latencies as plain numbers."""
        p50, p99 = percentiles(self.latencies_ms(), (50, 99))
        tracks = sorted({entry.track for entry in self.entries})
        return {
            "sent": len(self),
            "answered": int(self.answered.sum()),
            "answered_by_track": {track or "unknown": self._count(self.answered, track) for track in tracks},
            "refused": int(self.refused.sum()),
            "failed": int(self.failed.sum()),
            "failed_by_track": {track or "unknown": self._count(self.failed, track) for track in tracks},
            "lost": self.lost,
            "reasons": self._failure_reasons(),
            "retried": self.retries,
            "held_back": self.waited,
            "p50_ms": p50,
            "p99_ms": p99,
            "seconds": round(self.seconds, 3),
            "rate": round(self.rate, 2),
        }

    def _failure_reasons(self) -> list[dict[str, Any]]:
        """Return status, message and number of the failed and refused requests, of the first distinct ones."""
        counts = Counter(
            (request.status, request.error) for request in self.entries if request.status not in (200, OPEN)
        )
        first = islice(counts.items(), _MAX_REASONS)
        return [{"status": status, "message": message, "requests": count} for (status, message), count in first]

    def _count(self, selected: npt.NDArray[np.bool_], track: str) -> int:
        return sum(
            bool(is_selected) and entry.track == track
            for is_selected, entry in zip(selected, self.entries, strict=True)
        )


def percentiles(values: Seconds, shares: Iterable[float]) -> list[float | None]:
    """Return percentiles that are observed values, rounded to a microsecond; None without values.

    The smallest value that at least the given share of the values do not exceed: never an average of two, so that the
    99th percentile of few values is the largest.

    >>> percentiles(np.array([1.0, 2.0, 10.0]), (50, 99))
    [2.0, 10.0]
    """
    if not values.size:
        return [None for _ in shares]
    return [round(float(value), 3) for value in np.percentile(values, list(shares), method="inverted_cdf")]
