"""Windows drawn from a world whose drift is known: how often is an alarm false, and which shifts are found?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from monitoring.drift.drift import SCORE, find_drift
from monitoring.reference.distributions import Kind, make_bins
from monitoring.reference.reference import ColumnReference, Reference
from monitoring.windows.records import Finding
from monitoring.windows.sampling import Floats
from shortlist.features.plan import plan
from shortlist.features.preprocessing import Preprocessing
from shortlist.features.vocabulary import ID, VALUE, ValueIds
from shortlist.spec.data import Data
from shortlist.spec.features import Features
from shortlist.spec.monitoring import DriftLimits

KINDS: Final[dict[str, Kind]] = {
    "item_id": "categorical",
    "surface": "categorical",
    "slot": "categorical",
    "device": "categorical",
    "price": "numeric",
    "topics": "tags",
}
_SURFACES: Final = np.array([0.4, 0.25, 0.15, 0.1, 0.07, 0.03])
_TOPICS: Final = 5_000
_KNOWN_SHARE: Final = 0.2
"""Of the items, the most frequent ones, have an id."""


@dataclass(frozen=True)
class SimulatedTraffic:
    """What traffic looks like while nothing drifts."""

    items: int = 100_000
    """Zipf-distributed; of 100 000 the first one has 8 % of the rows."""
    alike: int = 1
    """Rows of each user, all the same."""
    mood: float = 0.0
    """Standard deviation of a day's own log-weights of the surfaces: days differ, and that is no drift."""
    days: int = 10
    """Of the reference."""
    day_rows: int = 20_000
    sample: int = 1_000
    """Rows of the reference that the domain classifier gets."""


@dataclass(frozen=True)
class Shift:
    """How a window differs; the default is not at all."""

    top: float = 0.0
    """Share of the rows that are moved to the first item."""
    price: float = 0.0
    """In standard deviations."""
    unknown: float = 0.0
    """Share of the rows with items that nobody has seen."""
    topics: float = 0.0
    """Share of the rows whose topics are all the first one."""
    score: float = 0.0
    """In standard deviations."""
    twisted: float = 0.0
    """Share of the rows in which another device goes with a slot; each on its own stays as it was."""


class Simulation:
    """A reference of a world, and windows compared with it."""

    def __init__(self, world: SimulatedTraffic, folder: Path, limits: DriftLimits | None = None, seed: int = 0) -> None:
        self.world = world
        self.limits = limits or DriftLimits()
        self._random = np.random.default_rng(seed)
        self._items, self._topics = np.cumsum(_zipf(world.items)), np.cumsum(_zipf(_TOPICS))
        days = [self.window(world.day_rows) for _ in range(world.days)]
        columns = {name: _column(days, name, kind, self.limits) for name, kind in KINDS.items()}
        self.scores = _column(days, SCORE, "numeric", self.limits)
        self.preprocessing = _preprocessing(folder, int(world.items * _KNOWN_SHARE))
        unknown = float(1 - self._items[int(world.items * _KNOWN_SHARE) - 1])
        dates = tuple(date(2026, 1, 5) + timedelta(days=number) for number in range(world.days))
        sample = pl.concat(days).sample(world.sample, seed=seed)
        self.reference = Reference("simulated", dates, columns, {"item_id": unknown}, {}, sample)

    def window(self, rows: int, shift: Shift | None = None) -> pl.DataFrame:
        """Return the rows of a window."""
        random, shift, users = self._random, shift or Shift(), rows // self.world.alike
        item, topics = _drawn(self._items, random.random(users)), _drawn(self._topics, random.random((users, 2)))
        item[random.random(users) < shift.top] = 0
        item[random.random(users) < shift.unknown] += self.world.items
        topics[random.random(users) < shift.topics] = 0
        surface = _SURFACES * np.exp(self.world.mood * random.normal(size=_SURFACES.size))
        slot, odd = random.integers(0, 4, users), random.random(users) < 0.05 + 0.9 * shift.twisted
        columns = {
            "user": pl.Series(random.integers(0, 2**62, users)).cast(pl.String),
            "item_id": item,
            "surface": pl.Series(_drawn(np.cumsum(surface / surface.sum()), random.random(users))).cast(pl.String),
            "slot": pl.Series(slot).cast(pl.String),
            "device": pl.Series((slot + odd) % 2).cast(pl.String),
            "price": np.exp(random.normal(shift.price, 1, users)),
            "topics": pl.Series(topics).arr.to_list(),
            SCORE: 1 / (1 + np.exp(1 - random.normal(shift.score, 1, users))),
        }
        return pl.DataFrame(columns)[np.repeat(np.arange(users), self.world.alike)]

    def find(self, rows: pl.DataFrame) -> tuple[Finding, ...]:
        """Return what is found in a window."""
        return find_drift(rows, self.reference, self.scores, self.preprocessing, self.limits)

    def naive_alarms(self, rows: pl.DataFrame) -> tuple[str, ...]:
        """Return the columns at which a plain chi-square test of rows at 0.001 alarms."""
        from scipy.stats import chi2_contingency

        alarms = []
        for name, column in (*self.reference.columns.items(), (SCORE, self.scores)):
            counts = np.array([column.bins.count(rows[name]), np.sum(column.counts, axis=0)])
            if chi2_contingency(counts[:, counts.sum(axis=0) > 0]).pvalue < 0.001:
                alarms.append(name)
        return tuple(alarms)


def _zipf(many: int) -> Floats:
    weights = 1 / np.arange(1, many + 1, dtype=np.float64)
    shares: Floats = weights / weights.sum()
    return shares


def _drawn(cumulative: Floats, uniform: Floats) -> np.ndarray:
    # The last sum may be a rounding below 1.
    return np.searchsorted(cumulative, uniform).clip(max=cumulative.size - 1)


def _column(days: Sequence[pl.DataFrame], name: str, kind: Kind, limits: DriftLimits) -> ColumnReference:
    bins = make_bins(pl.concat([day[name] for day in days]), kind, limits)
    counts = tuple(tuple(bins.count(day[name]).tolist()) for day in days)
    return ColumnReference(bins=bins, counts=counts, nulls=0.0, rows=sum(day.height for day in days))


def _preprocessing(folder: Path, known: int) -> Preprocessing:
    """Return a preprocessing whose vocabulary holds the most frequent items."""
    path = folder / "item_id.parquet"
    ids = pl.int_range(1, pl.len() + 1, dtype=pl.UInt32).alias(ID)
    pl.DataFrame({VALUE: np.arange(known)}).with_columns(ids).write_parquet(path)
    columns = [{"name": name, "type": "integer"} for name in ("user_id", "item_id", "is_click")]
    data = Data.model_validate(
        {
            "source": {"kind": "generated"},
            "columns": columns,
            "label": "is_click",
            "clock": {"kind": "row_order"},
            "user": "user_id",
            "item": "item_id",
        }
    )
    features = Features.model_validate({"columns": [{"kind": "vocabulary", "each": "item_id"}]})
    return Preprocessing(plan(data, features), moments={}, widths={}, vocabularies={"item_id": ValueIds(path)})
