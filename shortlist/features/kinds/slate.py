"""Rank and share of a value among the candidates of its request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal, Self

import polars as pl
from pydantic import Field, model_validator

from shortlist.features.declared.feature_interfaces import SlateComparison, StandardisedFeature
from shortlist.features.declared.feature_kind import FeatureKind, FeatureName, Fitted, NumberQuery, computed_column
from shortlist.features.declared.graph import Graph
from shortlist.features.declared.slates import SlateStatistic, SlateValue
from shortlist.features.values.columns import DeclaredColumns, PlanError
from shortlist.spec.data import Data
from shortlist.spec.features import CandidateComparison, FeatureReader
from shortlist.system.query_engine import Engine


class SlateFeature(FeatureKind, SlateComparison):
    """Rank and share of a value among the candidates of a request; `data.slate` tells which rows were one request.

    A log holds what was shown, a request what is asked: if users are shown fewer items than are ranked, these features
    differ between training and serving. Refused beside `retrieval`, where that is always so.
    """

    kind: Literal["slate"]
    """Rank, share, difference to the mean, and size, within a request."""
    column: str | None = None
    """Declared number that is compared."""
    feature: str | None = None
    """Other feature, a number, that is compared."""
    name: FeatureName | None = None
    """What the features' names begin with; the compared name by default."""
    gives: tuple[SlateStatistic, ...] = Field(default=("rank", "share", "difference"), min_length=1)
    """`rank`: 1 and the candidates of greater value. `share`: of the sum. `difference`: to the mean. `size`: number of
    candidates. Each gives a feature `<name>_slate_<what>`."""

    column_types: ClassVar[tuple[str, ...]] = ("integer", "number")

    @model_validator(mode="after")
    def _compares_column_or_feature(self) -> Self:
        if (self.column is None) == (self.feature is None):
            raise ValueError("wanted either column or feature: the number that is compared")
        if len(set(self.gives)) < len(self.gives):
            raise ValueError(f"gives: {', '.join(self.gives)}: each once")
        return self

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the features, in the order of `gives`."""
        return tuple(f"{self.name or self.column or self.feature}_slate_{statistic}" for statistic in self.gives)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The compared column."""
        return () if self.column is None else (self.column,)

    @property
    def reads_features(self) -> tuple[str, ...]:
        """The compared feature."""
        return () if self.feature is None else (self.feature,)

    def check(self, data: Data) -> None:
        """Check also that `data.slate` is declared."""
        super().check(data)
        if data.slate is None:
            raise ValueError(
                f"{self.title}: nothing says which rows of the log were one request; declare data.slate:"
                " {column: ...}, or {gap_seconds: ...} where data.user is declared"
            )

    def slate_value(self, declared: DeclaredColumns, features: Sequence[FeatureKind]) -> SlateValue:
        """Return the compared value, and the columns of its statistics.

        Raises:
            PlanError: The compared feature is no number that a server computes from what it looks up.
        """
        if self.column is not None:
            value = pl.col(declared.row_column(self.column)).cast(pl.Float64)
            value = pl.when(value.is_finite()).then(value)
        else:
            value = self._feature_value(declared, features)
        return SlateValue(
            value,
            tuple(
                (_statistic_column(output), statistic)
                for output, statistic in zip(self.outputs, self.gives, strict=True)
            ),
        )

    def numbers(self, fitted: Fitted, engine: Engine) -> Iterator[NumberQuery]:
        """Return the statistics that were computed within the slate."""
        for output in self.outputs:
            yield NumberQuery(output, pl.col(_statistic_column(output)))

    @classmethod
    def nodes(cls, graph: Graph, fitted: Fitted, feature_outputs: Sequence[tuple[Self, int]]) -> str:
        """Read the statistics from the server: a graph sees rows of several requests, or a part of one."""
        return graph.numbers([_statistic_column(feature.outputs[output]) for feature, output in feature_outputs])

    def _feature_value(self, declared: DeclaredColumns, features: Sequence[FeatureKind]) -> pl.Expr:
        fitted = Fitted(declared, {}, {}, {}, features=tuple(features))
        source, _ = fitted.feature(str(self.feature))
        read_names = _names_read(str(self.feature), fitted)
        standardised = {
            number.output
            for feature in features
            if isinstance(feature, StandardisedFeature)
            for number in feature.standardised_numbers(declared)
        }
        reason = f"features of kind {source.kind} are no number of what is looked up"
        if name := next((name for name in read_names if name in standardised), None):
            reason = f"'{name}' is standardised; leave standardise out"
        elif any(isinstance(fitted.feature(name)[0], CandidateComparison) for name in read_names):
            reason = "it is itself computed within a request"
        else:
            value = next(
                (number.value for number in source.numbers(fitted, "cpu") if number.output == self.feature), None
            )
            computed = {computed_column(name) for name in read_names}
            if value is not None and not computed.intersection(value.meta.root_names()):
                return value
        raise PlanError(
            f"{self.title}: cannot compare '{self.feature}': {reason}. Compare another feature, or a column"
        )


def _names_read(name: str, fitted: Fitted) -> list[str]:
    """Return the name of a feature, and those of the features that it reads, directly or not."""
    feature, _ = fitted.feature(name)
    further_names = feature.reads_features if isinstance(feature, FeatureReader) else ()
    return [name, *(read_name for further_name in further_names for read_name in _names_read(further_name, fitted))]


def _statistic_column(output: str) -> str:
    return f"slate:{output}"
