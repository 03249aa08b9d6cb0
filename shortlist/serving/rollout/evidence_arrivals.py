"""Which requests tell how the users are split: those that were made while both tracks answered."""

from __future__ import annotations

import polars as pl

_TRACK = ["step", "canary"]


class Arrivals:
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
            ended: Requests that ended since the last call; columns step, canary, began (microseconds), and others.
        """
        requests = ended if self._held is None else pl.concat([self._held, ended])
        newest = ended.group_by(_TRACK).agg(pl.col("began").max())
        if self._newest is not None:
            newest = pl.concat([self._newest, newest]).group_by(_TRACK).agg(pl.col("began").max())
        both = newest.group_by("step").agg(pl.col("began").min().alias("until"), pl.len().alias("tracks"))
        until = both.filter((pl.col("tracks") == 2) & (pl.col("step") != self._last)).drop("tracks")
        known = requests.join(until, on="step", how="left", maintain_order="left")
        told = (pl.col("step") == self._last) | (pl.col("began") <= pl.col("until")).fill_null(False)
        self._held, self._newest = known.filter(~told).drop("until"), newest
        return known.filter(told).drop("until")
