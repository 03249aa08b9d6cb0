"""All filters of a spec over the candidates of a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import polars as pl

from shortlist.filters.base import Filter, FilterRequest


@dataclass(frozen=True)
class Filtered:
    """Who is left, and who was removed by what."""

    rows: np.ndarray
    """Int64, shape (n_kept,): rows of the candidates, in their order."""
    removed_by: np.ndarray
    """Int64, shape (n_candidates,): place of the first filter that removed each; -1 for those that are left."""
    names: tuple[str, ...]
    """Of the filters, in their order."""

    def followed_by(self, others: Filtered) -> Filtered:
        """Return these candidates, and behind them others that the same filters were applied to."""
        rows = np.concatenate([self.rows, len(self.removed_by) + others.rows])
        return Filtered(rows, np.concatenate([self.removed_by, others.removed_by]), self.names)

    @property
    def counts(self) -> dict[str, int]:
        """Candidates that each filter removed first, by its name."""
        return {name: int((self.removed_by == number).sum()) for number, name in enumerate(self.names)}


def apply_filters(
    candidates: pl.DataFrame,
    filters: Sequence[Filter],
    request: FilterRequest,
    decided: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> Filtered:
    """Return which candidates may be shown.

    Args:
        candidates: One row for each, with the columns that the filters read but for those that are decided. May be
            empty.
        filters: Checked against them; applied in their order, each to all candidates.
        request: What else is known.
        decided: What some filters keep, bool, shape (n_candidates,), by their names.
    """
    kept = {
        declared.name: decided[declared.name] if declared.name in decided else declared.keeps(candidates, request)
        for declared in filters
    }
    return filtered_by(kept, len(candidates))


def filtered_by(kept: Mapping[str, np.ndarray], count: int) -> Filtered:
    """Return which candidates may be shown.

    Args:
        kept: What every filter keeps, bool, shape (count,), by its name; in their order.
        count: Number of candidates.
    """
    removed_by = np.full(count, -1, np.int64)
    for number, own in enumerate(kept.values()):
        removed_by[(removed_by < 0) & ~own] = number
    return Filtered(np.flatnonzero(removed_by < 0), removed_by, tuple(kept))
