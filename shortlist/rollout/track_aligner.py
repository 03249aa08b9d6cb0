"""Which requests tell how the users are split: those made while both tracks answered, and those long past."""

from __future__ import annotations

from typing import Final

import polars as pl

SETTLED_SECONDS: Final = 45.0
"""After which a request that reached Envoy has ended, one way or another: 30 s for an answer, 15 s to wait for a
server that is being restarted."""
_TRACK = ["step", "canary"]


class TrackAligner:
    """Holds requests back that are answered already while equally old ones of the other track may still wait.

    Envoy writes a line when a request ends. While one track answers late (its model server is being restarted, say),
    only the other one's requests are seen, and the users look as if they were all sent there.
    """

    def __init__(self, last: int) -> None:
        """Prepare.

        Args:
            last: The step at which everybody gets the canary; nothing is held back there.
        """
        self._last = last
        self._held: pl.DataFrame | None = None
        self._newest: pl.DataFrame | None = None

    def comparable(self, ended: pl.DataFrame) -> pl.DataFrame:
        """Return the requests, new ones and held ones, that began before the newest answered one of the slower track.

        Args:
            ended: Requests that ended since the last call; columns step, canary, began (microseconds), disconnected,
                and others.
        """
        requests = ended if self._held is None else pl.concat([self._held, ended])
        # A client that goes away ends its own request: that tells nothing of those that wait for the same servers.
        newest = ended.filter(~pl.col("disconnected")).group_by(_TRACK).agg(pl.col("began").max())
        if self._newest is not None:
            newest = pl.concat([self._newest, newest]).group_by(_TRACK).agg(pl.col("began").max())
        both = newest.group_by("step").agg(pl.col("began").min().alias("until"), pl.len().alias("tracks"))
        until = both.filter((pl.col("tracks") == 2) & (pl.col("step") != self._last)).drop("tracks")
        known = requests.join(until, on="step", how="left", maintain_order="left")
        told = (pl.col("step") == self._last) | (pl.col("began") <= pl.col("until")).fill_null(False)
        self._held, self._newest = known.filter(~told).drop("until"), newest
        return known.filter(told).drop("until")


class Settled:
    """Holds requests back until all that began with them must have ended.

    A slow track's requests end out of order, so that even up to its newest answer some are still missing. Only after
    the longest time that Envoy lets a request take is the split of its users known for certain.
    """

    def __init__(self, seconds: float = SETTLED_SECONDS) -> None:
        """Say how long a request takes at most."""
        self._microseconds = int(seconds * 1e6)
        self._held: pl.DataFrame | None = None
        self._now = 0

    def settled(self, ended: pl.DataFrame) -> pl.DataFrame:
        """Return the requests, new ones and held ones, that are old enough by the newest one's time.

        Args:
            ended: Requests that ended since the last call; columns began (microseconds), and others.
        """
        requests = ended if self._held is None else pl.concat([self._held, ended])
        newest = ended["began"].max()
        self._now = max(self._now, newest) if isinstance(newest, int) else self._now
        old = pl.col("began") <= self._now - self._microseconds
        self._held = requests.filter(~old)
        return requests.filter(old)
