"""Bins of a column's values; distributions are compared by their counts per bin."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, model_validator

from monitoring.windows.known_columns import SLATE_SIZE, WINDOW_COLUMNS
from shortlist.features.declared.plan import Plan
from shortlist.spec.data import Column
from shortlist.spec.monitoring import DriftLimits

Kind = Literal["numeric", "categorical", "tags"]

_KIND_BY_TYPE: Final[dict[str, Kind]] = {
    "number": "numeric",
    "string": "categorical",
    "hex": "categorical",
    "tags": "tags",
}


class Bins(BaseModel):
    """The ranges or values by which a column is counted."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind
    edges: tuple[float, ...] = ()
    """Numeric: inner edges, increasing; a value on an edge belongs to the bin above it."""
    values: tuple[str | int, ...] = ()
    """Categorical and tags: the values with a bin of their own, most frequent first; one more bin holds all others."""

    @model_validator(mode="after")
    def _check_fields_match_kind(self) -> Bins:
        assert not (self.values if self.kind == "numeric" else self.edges), "edges are numeric, values are not"
        assert all(low < high for low, high in pairwise(self.edges)), "edges increase"
        return self

    @property
    def size(self) -> int:
        """Number of bins."""
        return len(self.edges if self.kind == "numeric" else self.values) + 1

    @property
    def labels(self) -> tuple[str, ...]:
        """Readable label of each bin: `'home'`, `12 to 30`, `other values`."""
        if self.kind != "numeric":
            return (*(f"'{value}'" for value in self.values), "other values")
        if not self.edges:
            return ("all values",)
        edge_texts = _format_edges(self.edges)
        ranges = (f"{low} to {high}" if low != high else low for low, high in pairwise(edge_texts))
        return (f"below {edge_texts[0]}", *ranges, f"{edge_texts[-1]} and more")

    def codes(self, values: pl.Series) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the row and the bin of every value, in order; nulls, NaN and infinity are left out.

        Args:
            values: The column; of tags, every value of a list counts.
        """
        rows, present = present_values(values, self.kind)
        if self.kind == "numeric":
            return rows, np.searchsorted(self.edges, present.to_numpy(), side="right").astype(np.int64)
        if not self.values or present.is_empty():
            return rows, np.full(rows.size, len(self.values), dtype=np.int64)
        bin_numbers = pl.Series(range(len(self.values)), dtype=pl.Int64)
        # Only values with a bin of their own are looked up, so that 100 000 distinct values take as long as 100.
        frequent = pl.Series(self.values, dtype=present.dtype)
        return rows, present.replace_strict(
            frequent, bin_numbers, default=len(self.values), return_dtype=pl.Int64
        ).to_numpy()

    def count(self, values: pl.Series) -> NDArray[np.int64]:
        """Return how many values each bin holds, shape (size,).

        >>> Bins(kind="categorical", values=("home", "search")).count(pl.Series(["home", None, "home", "new"])).tolist()
        [2, 0, 1]
        """
        return np.bincount(self.codes(values)[1], minlength=self.size).astype(np.int64)


def make_bins(values: pl.Series, kind: Kind, limits: DriftLimits) -> Bins:
    """Return bins made from a column's values.

    Numeric: bins of equal count; a value with more rows than a bin should have gets its own bin, so there may be fewer
    bins than declared. A constant column has bins for its value, below and above it. Other kinds: the most frequent
    values.

    Args:
        values: The column's values in the reference.
        kind: Kind of the column.
        limits: The numbers of bins.
    """
    _, present = present_values(values, kind)
    if kind == "numeric":
        return Bins(kind=kind, edges=equal_count_edges(present.to_numpy(), limits.bins))
    value_counts = present.rename("value").value_counts(name="rows").sort(["rows", "value"], descending=[True, False])
    return Bins(kind=kind, values=tuple(value_counts["value"].head(limits.top_values).to_list()))


def compared_columns(plan: Plan, limits: DriftLimits) -> dict[str, Kind]:
    """Return the kind by which each column known before the impression is compared, in declared order.

    Left out are the label, the ids of impression and request, dates and vectors, ignored columns, and names in
    `WINDOW_COLUMNS`. An integer is categorical when it is a key, becomes an id, or is the key of a statistic, and
    numeric otherwise.

    Where features compare the candidates of a request, the number of candidates is compared too: the log holds the
    shown rows, a request all ranked ones.
    """
    data = plan.declared.data
    read_as_keys = (name for feature in plan.features for name in feature.read_as_keys)
    categories = {data.user, data.item, *(table.key for table in data.side_tables), *read_as_keys}
    left_out = {*data.names_of_rows, *limits.ignore, *WINDOW_COLUMNS}
    kinds: dict[str, Kind] = {}
    for column in (*data.columns, *(column for table in data.side_tables for column in table.columns)):
        if column.known == "before" and column.name not in left_out:
            kind = _kind(column, categories)
            if kind is not None:
                kinds.setdefault(column.name, kind)  # a side table's key is the log's column
    if data.slate is not None and SLATE_SIZE not in limits.ignore and plan.slates:
        kinds[SLATE_SIZE] = "numeric"
    return kinds


def _kind(column: Column, categories: set[str | None]) -> Kind | None:
    if column.type == "integer":
        return "categorical" if column.name in categories else "numeric"
    return _KIND_BY_TYPE.get(column.type)


def present_values(values: pl.Series, kind: Kind) -> tuple[NDArray[np.int64], pl.Series]:
    """Return the values that are neither null nor not finite, each with its row."""
    frame = pl.DataFrame({"row": np.arange(len(values)), "value": values})
    if kind == "tags" and isinstance(values.dtype, pl.List):
        frame = frame.explode("value")
    if kind == "numeric":
        number = pl.col("value").cast(pl.Float64)
        frame = frame.with_columns(number).filter(number.is_finite())
    else:
        frame = frame.drop_nulls("value")
    return frame["row"].to_numpy(), frame["value"]


def _format_edges(edges: tuple[float, ...]) -> list[str]:
    """Return the edges as texts, with at least four significant digits, and as many more as make them distinct."""
    for digits in (4, 6, 9, 12):
        texts = [np.format_float_positional(edge, digits, fractional=False, trim="-") for edge in edges]
        if len(set(texts)) == len(texts):
            break
    return texts


def equal_count_edges(values: NDArray[np.floating[Any]], bins: int) -> tuple[float, ...]:
    """Return the inner edges of bins of equal count; see `make_bins`.

    Args:
        values: Finite numbers, of any precision.
        bins: Number of bins.
    """
    if not values.size:
        return ()
    ordered = np.sort(values)
    if ordered[0] == ordered[-1]:
        return (float(ordered[0]), float(np.nextafter(float(ordered[0]), np.inf)))
    cut_positions = np.arange(1, bins) * ordered.size // bins
    cuts = ordered[cut_positions]
    edges = set(cuts.tolist())
    # The bin of a value on which several cuts fall ends right above it.
    for value in set(cuts[1:][cuts[1:] == cuts[:-1]].tolist()) | ({cuts[0]} & {ordered[0]}):
        edges.add(float(ordered[min(np.searchsorted(ordered, value, side="right"), ordered.size - 1)]))
    return tuple(sorted(edge for edge in edges if edge > ordered[0]))
