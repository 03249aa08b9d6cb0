"""Rank and share of a value among the candidates of its request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Literal, Self

import polars as pl
from pydantic import Field, model_validator

from shortlist.contracts import Columns
from shortlist.features.columns import DeclaredColumns, PlanError
from shortlist.features.feature_interfaces import SlateComparison, StandardisedFeature
from shortlist.features.feature_kind import FeatureKind, FeatureName, Fitted, NumberQuery
from shortlist.features.graph import Graph
from shortlist.features.slates import SlateStatistic, SlateValue
from shortlist.spec.data import Data
from shortlist.spec.features import CandidateComparison
from shortlist.system.query_engine import Engine

_NO_FIT: Mapping[str, object] = {}


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
        source = next(feature for feature in features if self.feature in feature.outputs)
        fitted = Fitted(declared, {}, {}, {})
        reason = ""
        standardised = source.standardised_numbers(declared) if isinstance(source, StandardisedFeature) else ()
        if any(number.output == self.feature for number in standardised):
            reason = "it is standardised; leave standardise out"
        elif isinstance(source, CandidateComparison) and source.reads_features:
            reason = "it is itself computed within a request"
        else:
            value = next(
                (number.value for number in source.numbers(fitted, "cpu") if number.output == self.feature), None
            )
            if value is not None and Columns.TIME not in value.meta.root_names():
                return value
            reason = f"features of kind {source.kind} are no number of what is looked up"
        raise PlanError(
            f"{self.title}: cannot compare '{self.feature}': {reason}. Compare another feature, or a column"
        )


def _statistic_column(output: str) -> str:
    return f"slate:{output}"
