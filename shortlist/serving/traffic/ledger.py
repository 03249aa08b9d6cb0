"""The ledger of a load: every request that was due, and what became of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from shortlist.serving.traffic.answers import ClientResponse

Seconds = npt.NDArray[np.float64]

OPEN: Final = -1
"""Status of a request whose fate nobody wrote down; one that is left at the end is lost."""


@dataclass(slots=True)
class Entry:
    """One request; times are seconds of the event loop's clock."""

    id: str
    user: str | None
    rows: int
    due: float
    """When it should have been sent."""
    waited: bool = False
    """Whether it was held back because too many were under way."""
    sent: float = float("nan")
    answered: float = float("nan")
    status: int = OPEN
    version: str = ""
    track: str = ""
    retries: int = 0
    resent: bool = False
    error: str = ""

    def close(self, answer: ClientResponse, now: float) -> None:
        """Write down what became of the request."""
        self.answered, self.status, self.error = now, answer.status, answer.error
        self.version, self.track, self.retries = answer.version, answer.track, answer.retries
        self.resent = answer.resent


@dataclass
class Ledger:
    """Every request of a load, in the order in which they were due."""

    entries: list[Entry] = field(default_factory=list)
    started: float = 0.0
    ended: float = 0.0

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def status(self) -> npt.NDArray[np.int16]:
        """HTTP's status of every answer, 0 where there was none, `OPEN` where nobody knows; shape (requests,)."""
        return np.array([entry.status for entry in self.entries], np.int16)

    @property
    def answered(self) -> npt.NDArray[np.bool_]:
        """Which requests were answered with scores."""
        return np.asarray(self.status == 200)

    @property
    def failed(self) -> npt.NDArray[np.bool_]:
        """Which requests failed: no answer, or 500 and above."""
        return np.asarray((self.status <= 0) | (self.status >= 500))

    @property
    def refused(self) -> npt.NDArray[np.bool_]:
        """Which requests were refused as the client's mistake."""
        return np.asarray((self.status > 200) & (self.status < 500))

    @property
    def lost(self) -> int:
        """Requests whose fate nobody wrote down."""
        return int((self.status == OPEN).sum())

    @property
    def retries(self) -> int:
        """Connections that could not be made."""
        return sum(entry.retries for entry in self.entries)

    @property
    def waited(self) -> int:
        """Requests held back because too many were under way."""
        return sum(entry.waited for entry in self.entries)

    @property
    def rows(self) -> int:
        """Rows of the answered requests."""
        return sum(entry.rows for entry in self.entries if entry.status == 200)

    @property
    def seconds(self) -> float:
        """From the first request to the last answer."""
        return self.ended - self.started

    @property
    def rate(self) -> float:
        """Answered requests per second."""
        return float(self.answered.sum() / self.seconds) if self.seconds > 0 else 0.0

    def latencies_ms(self, track: str | None = None) -> Seconds:
        """Return milliseconds from when each answered request was *due* to its answer.

        A request that was held back, or sent late, counts from when it should have gone out: what a user waits. So a
        server that stalls cannot hide it by keeping the load generator waiting ("coordinated omission"; Tene, 2013).
        """
        kept = [entry for entry in self.entries if entry.status == 200 and track in (None, entry.track)]
        return np.array([(entry.answered - entry.due) * 1e3 for entry in kept])

    def frame(self) -> pl.DataFrame:
        """Return the ledger as a table, one row per request."""
        entries = self.entries.copy()  # a load that is under way adds more
        kinds = {"due": pl.Float64, "sent": pl.Float64, "answered": pl.Float64, "user": pl.String, "id": pl.String}
        columns = (
            pl.Series(name, [getattr(entry, name) for entry in entries], dtype=kinds.get(name))
            for name in Entry.__slots__
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
            "retried": self.retries,
            "held_back": self.waited,
            "p50_ms": p50,
            "p99_ms": p99,
            "seconds": round(self.seconds, 3),
            "rate": round(self.rate, 2),
        }

    def _count(self, kept: npt.NDArray[np.bool_], track: str) -> int:
        return sum(bool(one) and entry.track == track for one, entry in zip(kept, self.entries, strict=True))


def percentiles(values: Seconds, wanted: Iterable[float]) -> list[float | None]:
    """Return percentiles that were really reached, rounded to a microsecond; None without values.

    The smallest value that at least the wanted share of the values do not exceed: never an average of two, so that
    the 99th of few values is their largest.

    >>> percentiles(np.array([1.0, 2.0, 10.0]), (50, 99))
    [2.0, 10.0]
    """
    if not values.size:
        return [None for _ in wanted]
    return [round(float(value), 3) for value in np.percentile(values, list(wanted), method="inverted_cdf")]
