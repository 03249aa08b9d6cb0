"""Features of one's own, as expressions over columns, statistics and other features."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, Final, Literal, Self

import numpy as np
import polars as pl
from pydantic import field_validator

from shortlist.contracts import Columns, ShortlistError
from shortlist.features.counts.keyed import LAST_TIME, KeyedView, Total, with_rows
from shortlist.features.declared.feature_interfaces import DerivingFeature
from shortlist.features.declared.feature_kind import (
    FeatureKind,
    FeatureName,
    Fitted,
    NumberQuery,
    feature_number,
    view_column,
    view_number,
    view_value,
)
from shortlist.features.declared.graph import Graph
from shortlist.features.expressions.operations import (
    FP32,
    FP64,
    OPERATIONS,
    Tensor,
    condition_nodes,
    finite,
    finite_nodes,
    scalar,
)
from shortlist.features.expressions.syntax import (
    NOW,
    Call,
    ColumnValue,
    Constant,
    FeatureValue,
    GroupStatistic,
    Node,
    TextValue,
    calls,
    is_of_either_type,
    leaves,
    parse_feature,
)
from shortlist.features.kinds.target import mean_measures
from shortlist.features.values.columns import DeclaredColumns
from shortlist.features.values.derived_columns import DerivedColumn
from shortlist.features.values.hashing import NO_CODE
from shortlist.spec.data import Data
from shortlist.spec.features import FeatureReader, check_is_outcome, declared_column
from shortlist.system.query_engine import Engine

_DAY_US: Final = 86_400_000_000.0
_NUMBERS: Final = ("integer", "number", "hex", "date")
_KEYS: Final = ("integer", "hex", "string", "tags")


class ExpressionFeature(FeatureKind, DerivingFeature, FeatureReader):
    """A number in the SQL of filters and orderings, over columns, statistics of earlier rows and other features.

    Null where an operand is null, and for a division by 0 or another result that is no finite number.
    """

    kind: Literal["expression"]
    """A number of your own, in SQL."""
    name: FeatureName
    """Name of the feature."""
    value: str
    """`price / AVG(price) OVER (PARTITION BY category)`. It may read columns of the log and of side tables, `now` and
    dates in days, and features that are declared before it as `features.NAME`. AVG, SUM and COUNT OVER (PARTITION BY
    columns) are of earlier rows."""

    column_types: ClassVar[tuple[str, ...]] = ()

    @field_validator("value")
    @classmethod
    def _is_expression(cls, value: str) -> str:
        try:
            parse_feature(value)
        except ShortlistError as problem:
            raise ValueError(str(problem)) from None
        return value

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the features."""
        return (self.name,)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The columns of the row, and keys of statistics."""
        names = (
            name
            for leaf in self._leaves
            for name in (
                leaf.keys if isinstance(leaf, GroupStatistic) else (leaf.name,) if isinstance(leaf, ColumnValue)
                else (leaf.column,) if isinstance(leaf, TextValue) else ()
            )
        )  # fmt: skip
        return tuple(dict.fromkeys(name for name in names if name != NOW))

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns and the keys, without texts of which only the derived numbers are read; and what is counted."""
        names = {leaf.name for leaf in self._leaves if isinstance(leaf, ColumnValue)} - {NOW}
        names |= {name for statistic in self._statistics for name in (*statistic.keys, statistic.column)} - {NOW, ""}
        return tuple(sorted(names))

    @property
    def read_as_keys(self) -> tuple[str, ...]:
        """The keys of statistics."""
        return tuple(dict.fromkeys(key for statistic in self._statistics for key in statistic.keys))

    @property
    def reads_features(self) -> tuple[str, ...]:
        """The features that it reads."""
        return tuple(dict.fromkeys(leaf.name for leaf in self._leaves if isinstance(leaf, FeatureValue)))

    def check(self, data: Data) -> None:
        """Check also the types of the columns, of keys and of what is counted."""
        super().check(data)
        for statistic in self._statistics:
            for key in statistic.keys:
                _check_type(key, data, _KEYS, f"{self.title}: the key of {statistic.statistic}")
            if statistic.column not in ("", NOW):
                check_is_outcome(statistic.column, data, self.title)
        for leaf in self._leaves:
            if isinstance(leaf, TextValue):
                _check_type(leaf.column, data, ("string",), self.title)
        free_columns = {
            operand for call in calls(self._tree) if is_of_either_type(call) for operand in call.operands
        }  # fmt: skip
        for leaf in self._leaves:
            if isinstance(leaf, ColumnValue) and leaf.name != NOW and leaf not in free_columns:
                _check_type(leaf.name, data, _NUMBERS, self.title)
        for call in calls(self._tree):
            if is_of_either_type(call):
                is_text = {data.by_name[name].type == "string" for name in _names(call) if name != NOW}
                for name in _names(call):
                    if name != NOW:
                        _check_type(name, data, (*_NUMBERS, "string"), self.title)
                if len(is_text) > 1:
                    raise ValueError(f"{self.title}: {' = '.join(_names(call))} compares a text with a number")

    def views(self, declared: DeclaredColumns) -> Iterator[KeyedView]:
        """Return the statistics of groups."""
        for statistic in self._statistics:
            yield _view(statistic, declared)

    def derived_columns(self) -> Iterator[DerivedColumn]:
        """Return one column for each number or condition of a text."""
        for number, leaf in enumerate(self._texts):
            yield DerivedColumn(f"{self.name}_text_{number}", leaf.column, "number", leaf.evaluate)

    def numbers(self, fitted: Fitted, engine: Engine) -> Iterator[NumberQuery]:
        """Return the number."""
        yield NumberQuery(self.name, finite(self._query(self._tree, fitted, engine)))

    @classmethod
    def nodes(cls, graph: Graph, fitted: Fitted, feature_outputs: Sequence[tuple[Self, int]]) -> str:
        """Compile the numbers, one after another."""
        return graph.concat([str(feature._nodes(feature._tree, graph, fitted)) for feature, _ in feature_outputs])

    @property
    def _tree(self) -> Node:
        return parse_feature(self.value)

    @property
    def _leaves(self) -> tuple[Node, ...]:
        return tuple(leaves(self._tree))

    @property
    def _statistics(self) -> tuple[GroupStatistic, ...]:
        return tuple(leaf for leaf in self._leaves if isinstance(leaf, GroupStatistic))

    @property
    def _texts(self) -> tuple[TextValue, ...]:
        return tuple(dict.fromkeys(leaf for leaf in self._leaves if isinstance(leaf, TextValue)))

    def _text_column(self, text: TextValue, declared: DeclaredColumns) -> str:
        """Return the column of looked-up rows with a number or condition of a text."""
        return list(self.derived_columns())[self._texts.index(text)].row_column(declared)

    def _query(self, node: Node, fitted: Fitted, engine: Engine) -> pl.Expr:
        """Return a node as a query over looked-up rows; conditions are Boolean."""
        declared = fitted.declared
        match node:
            case Constant(value):
                return pl.lit(value, dtype=pl.Boolean() if isinstance(value, bool) else pl.Float64())
            case ColumnValue(name):
                return _column_query(name, declared)
            case FeatureValue(name):
                return finite(feature_number(name, fitted, engine))
            case GroupStatistic():
                return _statistic_query(node, declared)
            case TextValue():
                derived = pl.col(self._text_column(node, declared))
                return derived == 1.0 if node.is_condition else derived
            case Call(operation, operands):
                if is_of_either_type(node) and _are_texts(node, declared):
                    values = [pl.col(declared.row_column(name)) for name in _names(node)]
                else:
                    values = [self._query(operand, fitted, engine) for operand in operands]
                return OPERATIONS[operation].query(*values)

    def _nodes(self, node: Node, graph: Graph, fitted: Fitted) -> Tensor:  # noqa: PLR0911 - a case for each node
        """Return a node as a tensor of a graph, FP64, shape (1, rows) or, for a constant, (1, 1)."""
        match node:
            case Constant(value):
                return scalar(np.nan if value is None else float(value))
            case ColumnValue(name):
                return _column_nodes(name, graph)
            case FeatureValue(name):
                feature, output = fitted.feature(name)
                single = graph.add("Cast", type(feature).nodes(graph, fitted, [(feature, output)]), to=FP32)
                return finite_nodes(graph, graph.add("Cast", single, to=FP64))
            case GroupStatistic():
                return _statistic_nodes(node, graph)
            case TextValue():
                return graph.numbers([self._text_column(node, graph.declared)])
            case Call(operation, operands):
                if is_of_either_type(node) and _are_texts(node, graph.declared):
                    return _text_nodes(node, graph)
                return OPERATIONS[operation].nodes(
                    graph, *(self._nodes(operand, graph, fitted) for operand in operands)
                )


def _check_type(name: str, data: Data, types: Sequence[str], place: str) -> None:
    column_type = declared_column(name, data, place).type
    if column_type not in types:
        raise ValueError(f"{place}: '{name}' is of type {column_type}; wanted {' or '.join(types)}")


def _names(call: Call) -> tuple[str, ...]:
    return tuple(operand.name for operand in call.operands if isinstance(operand, ColumnValue))


def _are_texts(call: Call, declared: DeclaredColumns) -> bool:
    return all(name != NOW and declared.column(name).type == "string" for name in _names(call))


def _column_query(name: str, declared: DeclaredColumns) -> pl.Expr:
    if name == NOW:
        return pl.col(Columns.TIME).cast(pl.Int64).cast(pl.Float64) / _DAY_US
    value = pl.col(declared.row_column(name))
    if declared.column(name).type == "date":  # days, where a view holds it
        return value.cast(pl.Int64).cast(pl.Float64)
    return finite(value.cast(pl.Float64))


def _column_nodes(name: str, graph: Graph) -> str:
    if name == NOW:
        return graph.add("Div", graph.numbers([Columns.TIME]), scalar(_DAY_US))
    return finite_nodes(graph, graph.declared_numbers([name], "a number"))


def _view(statistic: GroupStatistic, declared: DeclaredColumns) -> KeyedView:
    keys = declared.key(statistic.keys)
    tags = tuple(name for name in keys if declared.is_tags(name))
    if statistic.column == NOW:
        return KeyedView(keys, tags, timed=True)
    return KeyedView(keys, tags, with_rows(*(Total(measure) for measure in _measures(statistic, declared))))


def _measures(statistic: GroupStatistic, declared: DeclaredColumns) -> tuple[str, ...]:
    """Return the measures whose first, or whose first by the second, is the statistic."""
    if not statistic.column:
        return (Columns.ROWS,)
    rows, total = mean_measures(declared.log_column(statistic.column), declared)
    return {"AVG": (total, rows), "SUM": (total,), "COUNT": (rows,)}[statistic.statistic]


def _scale(statistic: GroupStatistic, declared: DeclaredColumns) -> float:
    is_sum = statistic.statistic in ("AVG", "SUM")
    return float(declared.scale(declared.log_column(statistic.column))) if is_sum else 1.0


def _statistic_query(statistic: GroupStatistic, declared: DeclaredColumns) -> pl.Expr:
    view = _view(statistic, declared)
    if statistic.column == NOW:
        return view_value(view, LAST_TIME).cast(pl.Float64) / _DAY_US
    total, *rows = (view_number(view, measure) for measure in _measures(statistic, declared))
    scaled = total / _scale(statistic, declared)
    return finite(scaled / rows[0]) if rows else scaled


def _statistic_nodes(statistic: GroupStatistic, graph: Graph) -> str:
    view = _view(statistic, graph.declared)
    if statistic.column == NOW:
        return graph.add("Div", graph.numbers([view_column(view, LAST_TIME)]), scalar(_DAY_US))
    total, *rows = (
        graph.fill_missing(graph.numbers([view_column(view, measure)]), np.zeros(1))
        for measure in _measures(statistic, graph.declared)
    )
    scaled = graph.add("Div", total, scalar(_scale(statistic, graph.declared)))
    return finite_nodes(graph, graph.add("Div", scaled, rows[0])) if rows else scaled


def _text_nodes(call: Call, graph: Graph) -> str:
    """Compile the equality of two texts, or whether a text is null, from their codes."""
    codes = [graph.codes([name], "a text") for name in _names(call)]
    are_null = [graph.add("Equal", values, np.array([NO_CODE])) for values in codes]
    if call.operation == "Boolean.IsNull":
        return condition_nodes(graph, are_null[0])
    if call.operation == "Boolean.IsNotNull":
        return condition_nodes(graph, graph.add("Not", are_null[0]))
    is_equal = condition_nodes(graph, graph.add("Equal", *codes))
    return graph.add("Where", graph.add("Or", *are_null), scalar(np.nan), is_equal)
