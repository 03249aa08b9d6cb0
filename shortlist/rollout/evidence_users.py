"""Users by step and track: who was seen, and what they did with what they were shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np
import polars as pl

from shortlist.rollout.sequential_difference import UserValues

KEPT: Final = 2_000_000
"""Rows (users times steps times tracks); beyond, users are sampled by their hash, which keeps every mean right."""
_KEYS: Final = ["user", "step", "canary"]
_SCHEMA: Final = pl.Schema(
    {
        "user": pl.UInt64(),
        "step": pl.Int32(),
        "canary": pl.Boolean(),
        "seen": pl.Int64(),
        "settled": pl.Int64(),
        "disconnected": pl.Int64(),
        "refused": pl.Int64(),
        "slates": pl.Int64(),
        "empty_slates": pl.Int64(),
        "shown": pl.Int64(),
        "positive": pl.Int64(),
    }
)


Event = Literal["seen", "settled", "disconnected", "refused", "slates", "empty_slates"]
"""What users are counted by: they told how the users are split; with them nothing is under way any more; their client
went away; they were refused; they got a slate; they got one without any item."""
_SEEN: Final[tuple[Event, ...]] = get_args(Event)
_COUNTED: Final = (*_SEEN, "shown", "positive")


@dataclass(frozen=True)
class SeenUsers:
    """How many different users made requests."""

    users: int = 0
    """At least one that tells how the users are split."""
    settled: int = 0
    """Likewise, one that began so long ago that all that began with it have ended."""
    disconnected: int = 0
    """At least one before whose answer they went away."""
    refused: int = 0
    """At least one that was refused."""
    slates: int = 0
    """At least one that was answered with a slate."""
    empty_slates: int = 0
    """At least one that was answered with an empty slate."""


class Users:
    """One row per user, step and track."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._rows = pl.DataFrame(schema=_SCHEMA)
        self._halved = 0

    def count(self, requests: pl.DataFrame, event: Event) -> None:
        """Count requests by their users; columns user, step, canary."""
        self._add(requests.select(*_KEYS, **_zeros(*_COUNTED) | {event: pl.lit(1, pl.Int64)}))

    def show(self, changes: pl.DataFrame) -> None:
        """Count items shown; columns user, step, canary, shown, positive."""
        self._add(changes.select(*_KEYS, **_zeros(*_SEEN), shown="shown", positive="positive"))

    def _add(self, new: pl.DataFrame) -> None:
        if new.is_empty():
            return
        rows = pl.concat([self._rows, new.cast(_SCHEMA).filter(self._sampled())])
        self._rows = rows.group_by(_KEYS).agg(pl.col(_COUNTED).sum())
        while self._rows.height > self._kept:
            self._halved += 1
            self._rows = self._rows.filter(self._sampled())

    def _sampled(self) -> pl.Expr:
        return pl.col("user") < 2 ** (64 - self._halved) - 1 if self._halved else pl.lit(True)

    def seen(self) -> dict[int, dict[bool, SeenUsers]]:
        """Return how many different users made requests, by step and whether on the canary."""
        counts = self._rows.group_by("step", "canary").agg((pl.col(_SEEN) > 0).sum())
        seen: dict[int, dict[bool, SeenUsers]] = {}
        for step, canary, *many in counts.iter_rows():
            seen.setdefault(step, {})[canary] = SeenUsers(*(count << self._halved for count in many))
        return seen

    def seen_at_all(self) -> dict[bool, SeenUsers]:
        """Return how many different users made requests, by whether on the canary; one that moved counts on both."""
        counts = self._rows.group_by("canary").agg(
            pl.col("user").filter(pl.col(name) > 0).n_unique().alias(name) for name in _SEEN
        )
        return {canary: SeenUsers(*(count << self._halved for count in many)) for canary, *many in counts.iter_rows()}

    def flapped(self) -> dict[int, int]:
        """Return, by step, how many users were seen on both tracks at it."""
        both = self._rows.filter(pl.col("seen") > 0).group_by("user", "step").len().filter(pl.col("len") > 1)
        return {step: count << self._halved for step, count in both.group_by("step").len().iter_rows()}

    def values(self, steps: int) -> UserValues:
        """Return what users did, shape (users, steps); a user on both tracks at one step is left out of that step."""
        rows = self._rows.filter(pl.col("shown") > 0, pl.col("step") < steps)
        rows = rows.join(
            rows.group_by("user", "step").len().filter(pl.col("len") == 1), on=["user", "step"], how="semi"
        )
        users = rows["user"].rank("dense").to_numpy().astype(np.int64) - 1
        shape, at = (int(users.max(initial=-1)) + 1, steps), (users, rows["step"].to_numpy())
        shown, positive, canary = np.zeros(shape), np.zeros(shape), np.zeros(shape, dtype=np.bool_)
        shown[at], positive[at] = rows["shown"].to_numpy(), rows["positive"].to_numpy()
        canary[at] = rows["canary"].to_numpy()
        return UserValues(shown=shown, positive=positive, canary=canary)


def _zeros(*names: str) -> dict[str, pl.Expr]:
    return {name: pl.lit(0, pl.Int64) for name in names}
