"""Users by step and track: their events, and the outcomes of what they were shown."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from shortlist.rollout.evidence.counts import USER_COUNTS, UserCounts
from shortlist.rollout.evidence.sequential_difference import UserValues

MAX_ROWS: Final = 2_000_000
"""Most rows (user, step, track); beyond it users are sampled by their hash, which keeps every mean unbiased."""
_KEYS: Final = ["user", "step", "canary"]
_COUNT_COLUMNS: Final = (*USER_COUNTS, "shown", "positive")
_SCHEMA: Final = pl.Schema(
    {"user": pl.UInt64(), "step": pl.Int32(), "canary": pl.Boolean(), **dict.fromkeys(_COUNT_COLUMNS, pl.Int64())}
)


class UserTable:
    """Counts per user, step and track."""

    def __init__(self, max_rows: int = MAX_ROWS) -> None:
        self._max_rows = max_rows
        self._rows = pl.DataFrame(schema=_SCHEMA)
        self._halvings = 0

    def add_event(self, requests: pl.DataFrame, event: str) -> None:
        """Count an event of users.

        Args:
            requests: Requests with the event; columns user, step, canary.
            event: Name of the event's count in `UserCounts`.
        """
        assert event in USER_COUNTS, event
        self._add(requests.select(*_KEYS, **_zeros(*_COUNT_COLUMNS) | {event: pl.lit(1, pl.Int64)}))

    def add_outcomes(self, changes: pl.DataFrame) -> None:
        """Count items shown; columns user, step, canary, shown, positive."""
        self._add(changes.select(*_KEYS, **_zeros(*USER_COUNTS), shown="shown", positive="positive"))

    def _add(self, new: pl.DataFrame) -> None:
        if new.is_empty():
            return
        rows = pl.concat([self._rows, new.cast(_SCHEMA).filter(self._is_sampled())])
        self._rows = rows.group_by(_KEYS).agg(pl.col(_COUNT_COLUMNS).sum())
        while self._rows.height > self._max_rows:
            self._halvings += 1
            self._rows = self._rows.filter(self._is_sampled())

    def _is_sampled(self) -> pl.Expr:
        return pl.col("user") < 2 ** (64 - self._halvings) - 1 if self._halvings else pl.lit(True)

    def count_by_step(self) -> dict[int, dict[bool, UserCounts]]:
        """Return the numbers of distinct users, by step and by whether they were on the canary."""
        counts = self._rows.group_by("step", "canary").agg((pl.col(USER_COUNTS) > 0).sum())
        counts_by_step: dict[int, dict[bool, UserCounts]] = {}
        for step, canary, *event_counts in counts.iter_rows():
            counts_by_step.setdefault(step, {})[canary] = UserCounts(
                *(add_event << self._halvings for add_event in event_counts)
            )
        return counts_by_step

    def count_overall(self) -> dict[bool, UserCounts]:
        """Return the numbers of distinct users of the whole rollout by track; a user who moved counts on both."""
        counts = self._rows.group_by("canary").agg(
            pl.col("user").filter(pl.col(name) > 0).n_unique().alias(name) for name in USER_COUNTS
        )
        return {
            canary: UserCounts(*(add_event << self._halvings for add_event in event_counts))
            for canary, *event_counts in counts.iter_rows()
        }

    def users_on_both_tracks(self) -> dict[int, int]:
        """Return, by step, the number of users with requests on both tracks."""
        rows_on_both = self._rows.filter(pl.col("users") > 0).group_by("user", "step").len().filter(pl.col("len") > 1)
        return {
            step: add_event << self._halvings for step, add_event in rows_on_both.group_by("step").len().iter_rows()
        }

    def values(self, steps: int) -> UserValues:
        """Return the users' values, shape (users, steps); a step at which a user was on both tracks is left out."""
        rows = self._rows.filter(pl.col("shown") > 0, pl.col("step") < steps)
        rows = rows.join(
            rows.group_by("user", "step").len().filter(pl.col("len") == 1), on=["user", "step"], how="semi"
        )
        users = rows["user"].rank("dense").to_numpy().astype(np.int64) - 1
        shape, cells = (int(users.max(initial=-1)) + 1, steps), (users, rows["step"].to_numpy())
        shown_counts, positive_counts, canary = np.zeros(shape), np.zeros(shape), np.zeros(shape, dtype=np.bool_)
        shown_counts[cells], positive_counts[cells] = rows["shown"].to_numpy(), rows["positive"].to_numpy()
        canary[cells] = rows["canary"].to_numpy()
        return UserValues(shown_items=shown_counts, positive_items=positive_counts, canary=canary)


def _zeros(*names: str) -> dict[str, pl.Expr]:
    return {name: pl.lit(0, pl.Int64) for name in names}
