"""Simulated windows with known drift, to measure false alarms and detected shifts."""

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
from shortlist.features.counts.vocabulary import ID, VALUE, ValueIds
from shortlist.features.declared.plan import plan
from shortlist.features.rows.preprocessing import Preprocessing
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
"""Share of the items, the most frequent ones, that have an id in the vocabulary."""


@dataclass(frozen=True)
class SteadyTraffic:
    """Parameters of traffic without drift."""

    items: int = 100_000
    """Number of items, Zipf-distributed; of 100 000 items the first one has 8 % of the rows."""
    rows_per_user: int = 1
    """Rows of each user, all equal."""
    day_variation: float = 0.0
    """Standard deviation of the surfaces' log-weights between days: a variation that is no drift."""
    days: int = 10
    """Number of days of the reference."""
    day_rows: int = 20_000
    """Rows of each day of the reference."""
    sample_rows: int = 1_000
    """Rows of the reference's sample, which the domain classifier uses."""


@dataclass(frozen=True)
class DriftShift:
    """The drift of a window; none by default."""

    top_item_share: float = 0.0
    """Share of the rows that are moved to the first item."""
    price_deviations: float = 0.0
    """Shift of the price's logarithm, in standard deviations."""
    unknown_share: float = 0.0
    """Share of the rows with new items."""
    top_topic_share: float = 0.0
    """Share of the rows whose topics are all the first one."""
    score_deviations: float = 0.0
    """Shift of the score's logit, in standard deviations."""
    swapped_device_share: float = 0.0
    """Share of the rows whose device does not fit their slot; the distribution of each column stays the same."""


class DriftSimulation:
    """A reference of simulated traffic, and windows to compare with it."""

    def __init__(self, traffic: SteadyTraffic, folder: Path, limits: DriftLimits | None = None, seed: int = 0) -> None:
        self.traffic = traffic
        self.limits = limits or DriftLimits()
        self._random = np.random.default_rng(seed)
        self._items, self._topics = np.cumsum(_zipf_shares(traffic.items)), np.cumsum(_zipf_shares(_TOPICS))
        days = [self.window(traffic.day_rows) for _ in range(traffic.days)]
        columns = {name: _column_reference(days, name, kind, self.limits) for name, kind in KINDS.items()}
        self.scores = _column_reference(days, SCORE, "numeric", self.limits)
        self.preprocessing = _make_preprocessing(folder, int(traffic.items * _KNOWN_SHARE))
        unknown_share = float(1 - self._items[int(traffic.items * _KNOWN_SHARE) - 1])
        dates = tuple(date(2026, 1, 5) + timedelta(days=number) for number in range(traffic.days))
        sample = pl.concat(days).sample(traffic.sample_rows, seed=seed)
        self.reference = Reference("simulated", dates, columns, {"item_id": unknown_share}, {}, sample)

    def window(self, rows: int, shift: DriftShift | None = None) -> pl.DataFrame:
        """Return the rows of a simulated window."""
        random, shift, user_count = self._random, shift or DriftShift(), rows // self.traffic.rows_per_user
        item_codes, topic_codes = (
            _draw_codes(self._items, random.random(user_count)),
            _draw_codes(self._topics, random.random((user_count, 2))),
        )
        item_codes[random.random(user_count) < shift.top_item_share] = 0
        item_codes[random.random(user_count) < shift.unknown_share] += self.traffic.items
        topic_codes[random.random(user_count) < shift.top_topic_share] = 0
        surface_weights = _SURFACES * np.exp(self.traffic.day_variation * random.normal(size=_SURFACES.size))
        slot, is_swapped = (
            random.integers(0, 4, user_count),
            random.random(user_count) < 0.05 + 0.9 * shift.swapped_device_share,
        )
        columns = {
            "user": pl.Series(random.integers(0, 2**62, user_count)).cast(pl.String),
            "item_id": item_codes,
            "surface": pl.Series(
                _draw_codes(np.cumsum(surface_weights / surface_weights.sum()), random.random(user_count))
            ).cast(pl.String),
            "slot": pl.Series(slot).cast(pl.String),
            "device": pl.Series((slot + is_swapped) % 2).cast(pl.String),
            "price": np.exp(random.normal(shift.price_deviations, 1, user_count)),
            "topics": pl.Series(topic_codes).arr.to_list(),
            SCORE: 1 / (1 + np.exp(1 - random.normal(shift.score_deviations, 1, user_count))),
        }
        return pl.DataFrame(columns)[np.repeat(np.arange(user_count), self.traffic.rows_per_user)]

    def find_drift(self, rows: pl.DataFrame) -> tuple[Finding, ...]:
        """Return the findings of a window."""
        return find_drift(rows, self.reference, self.scores, self.preprocessing, self.limits)

    def naive_alarms(self, rows: pl.DataFrame) -> tuple[str, ...]:
        """Return the columns for which a chi-square test of independent rows is significant at 0.001."""
        from scipy.stats import chi2_contingency

        alarms = []
        for name, column in (*self.reference.columns.items(), (SCORE, self.scores)):
            counts = np.array([column.bins.count(rows[name]), np.sum(column.counts, axis=0)])
            if chi2_contingency(counts[:, counts.sum(axis=0) > 0]).pvalue < 0.001:
                alarms.append(name)
        return tuple(alarms)


def _zipf_shares(count: int) -> Floats:
    weights = 1 / np.arange(1, count + 1, dtype=np.float64)
    shares: Floats = weights / weights.sum()
    return shares


def _draw_codes(cumulative: Floats, uniform: Floats) -> np.ndarray:
    # The last cumulative share may be rounded below 1.
    return np.searchsorted(cumulative, uniform).clip(max=cumulative.size - 1)


def _column_reference(days: Sequence[pl.DataFrame], name: str, kind: Kind, limits: DriftLimits) -> ColumnReference:
    bins = make_bins(pl.concat([day[name] for day in days]), kind, limits)
    counts = tuple(tuple(bins.count(day[name]).tolist()) for day in days)
    return ColumnReference(bins=bins, counts=counts, nulls=0.0, rows=sum(day.height for day in days))


def _make_preprocessing(folder: Path, known_items: int) -> Preprocessing:
    """Return a preprocessing whose vocabulary holds the most frequent items."""
    path = folder / "item_id.parquet"
    ids = pl.int_range(1, pl.len() + 1, dtype=pl.UInt32).alias(ID)
    pl.DataFrame({VALUE: np.arange(known_items)}).with_columns(ids).write_parquet(path)
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
