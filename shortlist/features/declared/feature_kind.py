"""The interface of a kind of feature: fitting, tables and export call it and know no kind by name."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Self, cast

import numpy as np
import polars as pl
from pydantic import Field, model_validator

from shortlist.features.counts.keyed import KeyedView, Total
from shortlist.features.counts.moments import NumberMoments
from shortlist.features.counts.vocabulary import ValueIds
from shortlist.features.declared.graph import Graph
from shortlist.features.values.columns import DeclaredColumns
from shortlist.spec.base import Names
from shortlist.spec.features import Feature, Features
from shortlist.spec.text.durations import Duration, parse_duration
from shortlist.system.query_engine import Engine, resolve_engine

OutputForm = Literal["dense", "id", "ids", "vector"]
"""What a model reads: a Float32 number, a UInt32 id, a list of ids, or an array of Float32."""
Limit = Callable[[pl.Expr, float, float | None], pl.Expr]
"""limit(value, low, high) returns a value cut to its bounds."""

FeatureName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
KeyedName = Annotated[str, Field(pattern=r"^([A-Za-z_]|\{key\})([A-Za-z0-9_]|\{key\})*$")]


@dataclass(frozen=True)
class Fitted:
    """Statistics and trained models that features were fitted to."""

    declared: DeclaredColumns
    moments: Mapping[str, NumberMoments]
    """Mean and deviation of what is standardised, by feature name."""
    widths: Mapping[str, int]
    """Width of every vector column that is read."""
    vocabularies: Mapping[str, ValueIds]
    """Ids of values, by column."""
    trained: Mapping[str, Any] = field(default_factory=dict)
    """Models of trained features, from `TrainedFeature.load_trained`, by the name of the feature's first output."""
    features: tuple[FeatureKind, ...] = ()
    """All declared features, for those that read others."""

    def feature(self, name: str) -> tuple[FeatureKind, int]:
        """Return the declared feature with an output of that name, and the output's number."""
        feature = next(feature for feature in self.features if name in feature.outputs)
        return feature, feature.outputs.index(name)


@dataclass(frozen=True)
class NumberQuery:
    """A number of a row, as a query over looked-up rows."""

    output: str
    value: pl.Expr
    column: str = ""
    """The looked-up column, where the number depends on it alone; integers may then be looked up in a table."""


@dataclass(frozen=True)
class StandardisedNumber:
    """A number whose mean and deviation on the training days are counted."""

    output: str
    column: str
    value: pl.Expr
    settings: Mapping[str, Any]
    """Settings that the number depends on; days counted with other settings are counted again."""


class FeatureKind(Feature):
    """Base class of a kind of feature. A kind overrides the hooks that it needs.

    Kinds with ids, vectors, lists of events, models of their own or derived columns inherit from the interfaces in
    `shortlist.features.declared.feature_interfaces` as well.

    Looked-up rows hold a declared column under `declared.row_column(name)` and a view's columns as `<view>:<column>`.
    """

    # Statistics and columns.

    @property
    def reads(self) -> tuple[str, ...]:
        """Declared columns that are read from rows, or counted per day."""
        return self.inputs

    def forms(self, declared: DeclaredColumns) -> Sequence[OutputForm]:
        """Return the form of each output."""
        return ["dense"] * len(self.outputs)

    def views(self, declared: DeclaredColumns) -> Iterable[KeyedView]:
        """Return the statistics per key and day that the feature looks up.

        Raises:
            PlanError: A key cannot be counted that way.
        """
        return ()

    # The feature table.

    def numbers(self, fitted: Fitted, engine: Engine) -> Iterable[NumberQuery]:
        """Return numbers as queries, which the engine runs together; they become Float32."""
        return ()

    def compute(self, rows: pl.DataFrame, fitted: Fitted, engine: Engine) -> Iterator[pl.Series]:
        """Yield the outputs that no query computes, as named series in the type of their form."""
        yield from ()

    # The exported graph.

    @property
    def group(self) -> Hashable:
        """Group of the outputs: outputs of one group are compiled by one call of `nodes`."""
        return type(self)

    @classmethod
    def nodes(cls, graph: Graph, fitted: Fitted, feature_outputs: Sequence[tuple[Any, int]]) -> str:
        """Compile numbers or ids of one group; return them, shape (feature_outputs, rows).

        Args:
            graph: The graph to which nodes are added.
            fitted: Statistics that the features were fitted to.
            feature_outputs: Features of this kind, each with the number of one of its outputs.
        """
        raise NotImplementedError


class ColumnwiseFeature(FeatureKind):
    """An operation applied to each of several columns on its own."""

    each: Names = Field(min_length=1)
    """Columns; each gives one feature of its own."""
    suffix: str = Field(default="", pattern=r"^[a-z0-9_]*$")
    """Added to the column's name to name the feature; the kind's own suffix by default."""

    own_suffix: ClassVar[str]
    """Suffix of the kind when none is declared."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the features, in the order of `each`."""
        return tuple(f"{column}_{self.suffix or self.own_suffix}" for column in self.each)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Declared columns it reads."""
        return self.each


class KeyedFeature(FeatureKind):
    """A statistic of the days before, looked up by the values of one or more columns."""

    key: Names = ()
    """Columns whose values together are the key; a tags column counts once per value. Empty: all rows."""
    name: KeyedName
    """Name of the feature; with `{key}` in it, every key column gives a feature of its own, named after it."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the features."""
        return (self.name,)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Declared columns it reads."""
        return self.key

    @property
    def read_as_keys(self) -> tuple[str, ...]:
        """The key's columns."""
        return self.key

    def view(self, declared: DeclaredColumns) -> KeyedView:
        """Return the statistics of the key itself: the first of `views`."""
        return next(iter(self.views(declared)))

    def keys_and_tags(
        self, declared: DeclaredColumns, key: Names | None = None
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return a key's columns in the order that names its view, and those that hold several values per row.

        Args:
            declared: The declared columns.
            key: The columns; `key` of the feature by default.
        """
        keys = declared.key(self.key if key is None else key)
        return keys, tuple(name for name in keys if declared.is_tags(name))


class WindowedFeature(KeyedFeature):
    """Sums of a key over the days before, or over some of them.

    Skipped days are subtracted from sums that servers look up anyway.
    """

    window_days: int | None = Field(default=None, ge=1)
    """Days that count; null for all."""
    window: Duration | None = None
    """Time that counts, in place of days: a multiple of `features.tile`, which is below 1d, such as 3h."""
    skip_days: int | None = Field(default=None, ge=1)
    """Newest days that do not count; null for none. A user's newest labels raise or lower all scores of the user on
    the next day, which tells users apart, and says nothing of the order of items."""

    @model_validator(mode="after")
    def _has_one_window(self) -> Self:
        if self.window is not None and (self.window_days or self.skip_days):
            raise ValueError("window is in place of window_days and of skip_days; leave them out, or window")
        return self

    @property
    def group(self) -> Hashable:
        """Features that skip days are compiled together: they subtract."""
        return type(self), self.skip_days is not None

    def totals(self, measure: str) -> tuple[Total, ...]:
        """Return what is summed, and then what is subtracted from it where days are skipped."""
        if self.window is not None:
            return (Total(measure, window=parse_duration(self.window)),)
        skipped = self.skip_days or 0
        counted = Total(measure, self.window_days + skipped if self.window_days else 0)
        return (counted, Total(measure, skipped)) if skipped else (counted,)

    def window_sum(self, view: KeyedView, measure: str) -> pl.Expr:
        """Return a measure over the days that count; 0 for a key that is not known."""
        counted, *skipped = (view_number(view, total.name) for total in self.totals(measure))
        return counted - skipped[0] if skipped else counted


def window_sum_nodes(graph: Graph, summands: Sequence[tuple[WindowedFeature, KeyedView, str]]) -> str:
    """Compile `WindowedFeature.window_sum` of features of one group; return them, shape (summands, rows)."""
    column_lists = zip(*([view_column(view, total.name) for total in feature.totals(measure)]
                   for feature, view, measure in summands), strict=True)  # fmt: skip
    counted, *skipped = (
        graph.fill_missing(graph.numbers(list(summand_columns)), np.zeros(1)) for summand_columns in column_lists
    )
    return graph.add("Sub", counted, skipped[0]) if skipped else counted


def declared_kinds(features: Features) -> tuple[FeatureKind, ...]:
    """Return the declared features; every registered kind of feature is a `FeatureKind`."""
    return cast(tuple[FeatureKind, ...], features.columns)


def feature_number(name: str, fitted: Fitted, engine: Engine) -> pl.Expr:
    """Return the number that models read of another feature, as Float64 in single precision."""
    feature, _ = fitted.feature(name)
    queries = (number.value for number in feature.numbers(fitted, engine) if number.output == name)
    return next(queries, pl.col(computed_column(name))).cast(pl.Float32).cast(pl.Float64)


def computed_column(name: str) -> str:
    """Return the column with the values of a feature that no query computes."""
    return f"feature:{name}"


def view_column(view: KeyedView, name: str) -> str:
    """Return the name under which looked-up rows hold a column of a view."""
    return f"{view.name}:{name}"


def view_value(view: KeyedView, name: str) -> pl.Expr:
    """Return a column of a view; null for a key that is not known."""
    return pl.col(view_column(view, name))


def view_number(view: KeyedView, name: str) -> pl.Expr:
    """Return a statistic of a view; 0 for a key that is not known."""
    return view_value(view, name).cast(pl.Float64).fill_null(0.0)


def log1p(value: pl.Expr) -> pl.Expr:
    """Return log(1 + value)."""
    return (value + 1.0).log()


def limit_for(engine: Engine) -> Limit:
    """Return the function that cuts values to bounds on an engine; the results are the same bits on every engine."""
    return limit_by_comparison if resolve_engine(engine) == "gpu" else limit_by_clip


def limit_by_clip(value: pl.Expr, low: float, high: float | None) -> pl.Expr:
    """Return a value cut to its bounds."""
    return value.clip(low, high)


def limit_by_comparison(value: pl.Expr, low: float, high: float | None) -> pl.Expr:
    """Return what `clip` does, which cuDF lacks (cudf-polars 26.06); on the CPU it would take 1.7 times as long."""
    limited = pl.when(value < low).then(low)
    return (limited if high is None else limited.when(value > high).then(high)).otherwise(value)
