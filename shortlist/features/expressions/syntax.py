"""The syntax of expressions as features: the SQL of filters and orderings, cut to what every engine computes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from io import StringIO
from typing import Any, Final, Literal

import polars as pl

from shortlist.features.expressions.operations import CONDITIONS, OPERATIONS
from shortlist.system.row_expressions import ExpressionError, parse_tree

NOW: Final = "now"
"""The moment of a row, in days since 1970-01-01 UTC; the name that filters have for it."""

_TEXT_FUNCTIONS: Final = ("Lowercase", "Uppercase", "Slice", "StripChars", "StripCharsStart", "StripCharsEnd")
"""Functions from a text to a text that is at most as long."""
_TEXT_LENGTHS: Final = ("LenChars", "LenBytes")
_TEXT_CONDITIONS: Final = ("Contains", "StartsWith", "EndsWith")
_COMPARISONS: Final = ("Eq", "Gt", "GtEq", "Lt", "LtEq")
_OF_EITHER_TYPE: Final = ("Eq", "Boolean.IsNull", "Boolean.IsNotNull")
_FOLDED: Final = ("Coalesce", "MaxHorizontal", "MinHorizontal")
"""Functions of two values or more."""
_MAX_DECIMALS: Final = 15
_FLOATS: Final = ("Float64", "Float32")

Statistic = Literal["AVG", "SUM", "COUNT", "MAX"]


@dataclass(frozen=True)
class Constant:
    """A number, true or false; None: null."""

    value: float | bool | None


@dataclass(frozen=True)
class ColumnValue:
    """The value of a declared column, or `now`."""

    name: str


@dataclass(frozen=True)
class FeatureValue:
    """The value of another feature: `features.NAME`."""

    name: str


@dataclass(frozen=True)
class GroupStatistic:
    """A statistic of the earlier rows with the same keys: `AVG(price) OVER (PARTITION BY category)`."""

    statistic: Statistic
    column: str
    """Column of which it is the mean, the sum, the number of values or, for `now`, the newest; empty: of the rows."""
    keys: tuple[str, ...]
    """Key columns; empty: all rows."""


@dataclass(frozen=True)
class TextValue:
    """A number or a condition that depends on one text alone."""

    column: str
    query: str
    """The query over a column of that name, in JSON."""
    is_condition: bool

    def evaluate(self, texts: pl.Series) -> pl.Series:
        """Return the value of each text, Float64: 1 for true, 0 for false, null for null."""
        query = pl.Expr.deserialize(StringIO(self.query), format="json")
        return texts.alias(self.column).to_frame().select(query.cast(pl.Float64)).to_series()


@dataclass(frozen=True)
class Call:
    """An operation on the values of its operands."""

    operation: str
    """A name of `OPERATIONS`."""
    operands: tuple[Node, ...]


Node = Constant | ColumnValue | FeatureValue | GroupStatistic | TextValue | Call


def is_condition(node: Node) -> bool:
    """Return whether a node is true or false instead of a number."""
    match node:
        case Constant(value):
            return isinstance(value, bool)
        case TextValue():
            return node.is_condition
        case Call():
            return node.operation in CONDITIONS
        case _:
            return False


def leaves(node: Node) -> Iterator[Node]:
    """Yield the nodes without operands, in the order of the text."""
    if isinstance(node, Call):
        for operand in node.operands:
            yield from leaves(operand)
    else:
        yield node


def calls(node: Node) -> Iterator[Call]:
    """Yield the operations of an expression."""
    if isinstance(node, Call):
        yield node
        for operand in node.operands:
            yield from calls(operand)


def is_of_either_type(call: Call) -> bool:
    """Return whether an operation also takes columns of texts: it compares two columns, or asks for null."""
    return call.operation in _OF_EITHER_TYPE and all(isinstance(operand, ColumnValue) for operand in call.operands)


@lru_cache(maxsize=1_024)
def parse_feature(text: str) -> Node:
    """Return the syntax tree of an expression that gives a number for each row.

    Raises:
        ExpressionError: It is no expression, mixes numbers and conditions, is no number, reads nothing, or has an
            operation that no engine or graph computes.

    >>> parse_feature("price / AVG(price) OVER (PARTITION BY category)").operands[1]
    GroupStatistic(statistic='AVG', column='price', keys=('category',))
    """
    try:
        node = _node(parse_tree(text, "the columns of a row"))
        _check_is_number(node, "the expression")
    except ExpressionError as problem:
        raise ExpressionError(f"'{text[:80]}': {problem}") from None
    if all(isinstance(leaf, Constant) for leaf in leaves(node)):
        raise ExpressionError(f"'{text[:80]}' reads no column and no feature, so it is the same for every row")
    return node


def _node(tree: Any) -> Node:  # noqa: PLR0911, PLR0912 - a case for each kind of node
    """Return the node of a syntax tree of Polars."""
    if _is_text_value(tree):
        return _text_value(tree)
    match tree:
        case {"Column": str(name)}:
            return ColumnValue(name)
        case {"Literal": {"Dyn": {"Int": int(value)} | {"Float": float(value)}}}:
            return Constant(float(value))
        case {"Literal": {"Scalar": {"Boolean": bool(value)}}}:
            return Constant(value)
        case {"Literal": {"Scalar": {"Null": _}}}:
            return Constant(None)
        case {"BinaryExpr": {"op": str(operation), "left": left, "right": right}}:
            return _call(operation, _node(left), _node(right))
        case {"Ternary": {"predicate": predicate, "truthy": truthy, "falsy": falsy}}:
            return _call("If", _node(predicate), _node(truthy), _node(falsy))
        case {"Cast": {"expr": expression, "dtype": {"Literal": str(dtype)}}}:
            return _cast(_node(expression), dtype)
        case {"Over": {"function": function, "partition_by": list(keys), "order_by": None}}:
            return _statistic(function, tuple(_key(key) for key in keys))
        case {"Agg": _} | "Len":
            return _statistic(tree, ())
        case {"Function": {"function": {"StructExpr": {"FieldByName": str(name)}}, "input": [{"Column": "features"}]}}:
            return FeatureValue(name)
        case {"Function": {"function": {"Boolean": {"IsIn": _}}, "input": [value, values]}}:
            return _is_in(_node(value), values)
        case {"Function": {"function": {"Round": {"decimals": int(decimals)}}, "input": [value]}}:
            if decimals > _MAX_DECIMALS:
                raise ExpressionError(f"ROUND to {decimals} decimals; wanted at most {_MAX_DECIMALS}")
            return _call("Round", _node(value), Constant(10.0**decimals))
        case {"Function": {"function": function, "input": list(operands)}}:
            return _call(_function_name(function), *map(_node, operands))
        case {"Literal": {"Scalar": {"String": str(value)}}}:
            raise ExpressionError(f"the text '{value[:80]}' is neither compared with a column nor a number")
    (kind,) = tree if isinstance(tree, dict) else (tree,)
    raise ExpressionError(f"got '{kind}', which no feature can compute; docs/features-of-your-own.md lists what can")


def _call(operation: str, *operands: Node) -> Node:
    """Return an operation whose operands have the types that it takes."""
    if operation not in OPERATIONS:
        raise ExpressionError(
            f"got the operation '{operation}', which no feature can compute; docs/features-of-your-own.md lists those"
            " that can"
        )
    if operation in _FOLDED and len(operands) > len(OPERATIONS[operation].parameters):
        return _call(operation, operands[0], _call(operation, *operands[1:]))
    parameters = OPERATIONS[operation].parameters
    if len(operands) != len(parameters):
        raise ExpressionError(f"'{operation}' got {len(operands)} values; wanted {len(parameters)}")
    for parameter, operand in zip(parameters, operands, strict=True):
        if parameter == "condition":
            _check_is_condition(operand, operation)
        elif parameter == "number":
            _check_is_number(operand, operation)
    return Call(operation, operands)


def _function_name(function: Any) -> str:
    """Return the name of a function of Polars, such as `Abs`, or `Pow.Sqrt`."""
    names = []
    while isinstance(function, dict):
        ((name, function),) = function.items() if len(function) == 1 else (("", ""),)
        names.append(name)
    return ".".join([*names, *([function] if isinstance(function, str) else [])]).rstrip(".")


def _check_is_number(node: Node, place: str) -> None:
    if is_condition(node):
        raise ExpressionError(f"{place} got true or false, wanted a number: IF(condition, 1, 0)")


def _check_is_condition(node: Node, place: str) -> None:
    if not is_condition(node) and node != Constant(None):
        raise ExpressionError(f"{place} got a number, wanted a condition, such as price > 0")


def _cast(node: Node, dtype: str) -> Node:
    if dtype == "Boolean" and is_condition(node):
        return node  # around each operand of NOT
    if dtype in _FLOATS and not is_condition(node):
        return node
    if dtype == "Date" and not is_condition(node):
        return _call("Floor", node)
    raise ExpressionError(f"a cast to {dtype}; wanted DOUBLE, or DATE of a moment. FLOOR, CEIL and ROUND give integers")


def _statistic(function: Any, keys: tuple[str, ...]) -> GroupStatistic:
    match function:
        case "Len":
            return GroupStatistic("COUNT", "", keys)
        case {"Agg": {"Mean": {"Column": str(column)}}}:
            return GroupStatistic("AVG", column, keys)
        case {"Agg": {"Sum": {"Column": str(column)}}}:
            return GroupStatistic("SUM", column, keys)
        case {"Agg": {"Count": {"input": {"Column": str(column)}, "include_nulls": False}}}:
            return GroupStatistic("COUNT", column, keys)
        case {"Agg": {"Max": {"input": {"Column": "now"}}}}:
            return GroupStatistic("MAX", NOW, keys)
    raise ExpressionError(
        "a statistic of earlier rows is AVG(column), SUM(column), COUNT(column), COUNT(*) or MAX(now), each with OVER"
        " (PARTITION BY columns), or alone for all rows"
    )


def _key(tree: Any) -> str:
    if isinstance(tree, dict) and isinstance(name := tree.get("Column"), str):
        return name
    raise ExpressionError("PARTITION BY names columns, and nothing else")


def _is_in(value: Node, values: Any) -> Node:
    _check_is_number(value, "IN")
    numbers = [None if number is None else float(number) for number in _listed_values(values)]
    is_equal = [_call("Eq", value, Constant(number)) for number in numbers]
    condition = is_equal[0]
    for further_condition in is_equal[1:]:
        condition = _call("Or", condition, further_condition)
    return condition


def _listed_values(tree: Any) -> Sequence[Any]:
    """Return the values of a list of SQL."""
    values = pl.select(_query(tree)).to_series()
    return (values.explode() if isinstance(values.dtype, pl.List) else values).to_list()


def _query(tree: Any) -> pl.Expr:
    return pl.Expr.deserialize(StringIO(json.dumps(tree)), format="json")


def _is_text_value(tree: Any) -> bool:
    """Return whether a tree is a number or condition of texts."""
    match tree:
        case {"Function": {"function": {"StringExpr": function}}}:
            return _string_function(function) in (*_TEXT_LENGTHS, *_TEXT_CONDITIONS)
        case {
            "Function": {"function": {"Boolean": {"IsIn": _}}, "input": [value, {"Literal": {"Series": _}} as values]}
        }:
            return _is_text(value) or any(isinstance(text, str) for text in _listed_values(values))
        case {"BinaryExpr": {"op": operation, "left": left, "right": right}}:
            return operation in _COMPARISONS and (_is_text(left) or _is_text(right))
    return False


def _is_text(tree: Any) -> bool:
    match tree:
        case {"Literal": {"Scalar": {"String": _}}}:
            return True
        case {"Function": {"function": {"StringExpr": function}}}:
            return _string_function(function) not in (*_TEXT_LENGTHS, *_TEXT_CONDITIONS)
    return False


def _string_function(function: Any) -> str:
    return function if isinstance(function, str) else str(next(iter(function)))


def _text_value(tree: Any) -> TextValue:
    columns = tuple(dict.fromkeys(_text_columns(tree)))
    if len(columns) != 1:
        raise ExpressionError(
            f"a function or comparison of texts reads {' and '.join(columns) or 'no column'}; wanted one column, or two"
            " columns compared by = alone"
        )
    text = pl.Series(columns[0], [None, "a", "("], pl.String).to_frame()  # clients choose texts: "(" is no pattern
    try:
        dtype = text.select(_query(tree).alias("value")).schema["value"]
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ExpressionError(f"a function or comparison of '{columns[0]}' has no value: {reason}") from None
    return TextValue(columns[0], json.dumps(tree), dtype == pl.Boolean())


def _text_columns(tree: Any) -> Iterator[str]:
    """Yield the columns of a number or condition of texts.

    Raises:
        ExpressionError: An operation is none on texts, or may return texts of any length.
    """
    match tree:
        case {"Column": str(name)}:
            yield name
        case {"Literal": _}:
            return
        case {"BinaryExpr": {"op": operation, "left": left, "right": right}} if operation in _COMPARISONS:
            yield from _text_columns(left)
            yield from _text_columns(right)
        case {"Function": {"function": {"Boolean": {"IsIn": _}}, "input": [value, _]}}:
            yield from _text_columns(value)
        case {"Function": {"function": {"StringExpr": function}, "input": list(operands)}} if _string_function(
            function
        ) in (*_TEXT_FUNCTIONS, *_TEXT_LENGTHS, *_TEXT_CONDITIONS):
            for operand in operands:
                yield from _text_columns(operand)
        case _:
            raise ExpressionError(
                "a function of texts is LENGTH, LOWER, UPPER, SUBSTR, LEFT, TRIM, LIKE, STARTS_WITH, ENDS_WITH, a"
                " comparison, or IN; others may be long, or are no function of one text"
            )
