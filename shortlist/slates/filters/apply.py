"""Application of a spec's filters to the candidates of a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import polars as pl

from shortlist.slates.filters.base import Filter, FilterRequest


@dataclass(frozen=True)
class FilteredCandidates:
    """Candidates that are left, and the filter that removed each of the others."""

    rows: np.ndarray
    """Rows of the candidates that are left, in their order, int64, shape (n_kept,)."""
    removed_by: np.ndarray
    """Index of the first filter that removed each candidate, int64, shape (n_candidates,); -1: it is left."""
    names: tuple[str, ...]
    """Names of the filters, in their order."""

    def split(self, counts: Sequence[int]) -> list[FilteredCandidates]:
        """Return these candidates in parts, by the number of candidates of each."""
        parts = np.split(self.removed_by, np.cumsum(counts)[:-1])
        return [FilteredCandidates(np.flatnonzero(part < 0), part, self.names) for part in parts]

    def append(self, appended: FilteredCandidates) -> FilteredCandidates:
        """Return these candidates followed by others to which the same filters were applied."""
        rows = np.concatenate([self.rows, len(self.removed_by) + appended.rows])
        return FilteredCandidates(rows, np.concatenate([self.removed_by, appended.removed_by]), self.names)

    @property
    def counts(self) -> dict[str, int]:
        """Number of candidates that each filter removed first, by its name."""
        return {name: int((self.removed_by == number).sum()) for number, name in enumerate(self.names)}


def apply_filters(
    candidates: pl.DataFrame,
    filters: Sequence[Filter],
    requests: Sequence[FilterRequest],
    counts: Sequence[int],
    computed_masks: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> FilteredCandidates:
    """Return which candidates of some requests may be shown.

    Args:
        candidates: One row per candidate with the columns that the filters read, except filters with a computed mask;
            those of the first request, then those of the second. May be empty.
        filters: Filters, checked against the columns; applied in their order, each to all candidates.
        requests: Moment, history and lists of each request; at least one. All have the same lists.
        counts: Number of candidates of each request.
        computed_masks: Masks of filters that were applied before, bool, shape (n_candidates,), by filter name.
    """
    ends = np.cumsum(counts).tolist()
    keep_masks = {}
    for declared in filters:
        if declared.name in computed_masks:
            keep_masks[declared.name] = computed_masks[declared.name]
        elif len(requests) == 1 or declared.is_row_wise:
            keep_masks[declared.name] = declared.keeps(candidates, requests[0])
        else:
            keep_masks[declared.name] = np.concatenate(
                [
                    declared.keeps(candidates.slice(end - count, count), request)
                    for request, count, end in zip(requests, counts, ends, strict=True)
                ]
            )
    return combine_masks(keep_masks, len(candidates))


def combine_masks(keep_masks: Mapping[str, np.ndarray], count: int) -> FilteredCandidates:
    """Return which candidates may be shown.

    Args:
        keep_masks: Whether every filter keeps each candidate, bool, shape (count,), by filter name; in their order.
        count: Number of candidates.
    """
    removed_by = np.full(count, -1, np.int64)
    for number, keep_mask in enumerate(keep_masks.values()):
        removed_by[(removed_by < 0) & ~keep_mask] = number
    return FilteredCandidates(np.flatnonzero(removed_by < 0), removed_by, tuple(keep_masks))
