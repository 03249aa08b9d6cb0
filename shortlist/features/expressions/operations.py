"""The operations of expressions, each twice: as a query of Polars, which cuDF runs too, and as nodes of a graph.

Null is NaN in a graph, and a condition is a number there: 1 for true, 0 for false, NaN for null. Whatever is no finite
number is null: a division by 0, the logarithm of a negative number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import polars as pl

from shortlist.features.declared.graph import Graph

FP32: Final = 1
FP64: Final = 11
"""Numbers of ONNX's types, for `Cast`."""

Parameter = Literal["number", "condition", "any"]
Tensor = str | np.ndarray


@dataclass(frozen=True)
class Operation:
    """An operation on values of the same row."""

    parameters: tuple[Parameter, ...]
    query: Callable[..., pl.Expr]
    """query(*operands) returns its value; null for what is no finite number."""
    nodes: Callable[..., str]
    """nodes(graph, *operands) adds the same to a graph."""


def finite(value: pl.Expr) -> pl.Expr:
    """Return a number; null where it is NaN or infinite."""
    return pl.when(value.is_finite()).then(value)


def finite_nodes(graph: Graph, value: Tensor) -> str:
    """Return a number; NaN where it is infinite."""
    return graph.add("Where", graph.add("Less", graph.add("Abs", value), scalar(math.inf)), value, scalar(math.nan))


def scalar(value: float) -> np.ndarray:
    """Return a constant for all rows, FP64, shape (1, 1)."""
    return np.array([[value]], np.float64)


def condition_nodes(graph: Graph, is_true: str) -> str:
    """Return a mask as a condition that is nowhere null."""
    return graph.add("Cast", is_true, to=FP64)


def _arithmetic(operator: str, query: Callable[[pl.Expr, pl.Expr], pl.Expr]) -> Operation:
    return Operation(
        ("number", "number"),
        lambda first, second: finite(query(first, second)),
        lambda graph, first, second: finite_nodes(graph, graph.add(operator, first, second)),
    )


def _function(operator: str, query: Callable[[pl.Expr], pl.Expr]) -> Operation:
    return Operation(
        ("number",),
        lambda value: finite(query(value)),
        lambda graph, value: finite_nodes(graph, graph.add(operator, value)),
    )


def _comparison(operator: str, query: Callable[[pl.Expr, pl.Expr], pl.Expr]) -> Operation:
    def nodes(graph: Graph, first: Tensor, second: Tensor) -> str:
        is_null = graph.is_missing(graph.add("Add", first, second))
        return graph.add("Where", is_null, scalar(math.nan), condition_nodes(graph, graph.add(operator, first, second)))

    return Operation(("number", "number"), query, nodes)


def _not_nodes(graph: Graph, condition: Tensor) -> str:
    return graph.add("Sub", scalar(1), condition)


def _and_nodes(graph: Graph, first: Tensor, second: Tensor) -> str:
    is_false = graph.add("Or", *(graph.add("Equal", condition, scalar(0)) for condition in (first, second)))
    return graph.add("Where", is_false, scalar(0), graph.add("Mul", first, second))


def _or_nodes(graph: Graph, first: Tensor, second: Tensor) -> str:
    return _not_nodes(graph, _and_nodes(graph, _not_nodes(graph, first), _not_nodes(graph, second)))


def _if_nodes(graph: Graph, condition: Tensor, value: Tensor, other_value: Tensor) -> str:
    return graph.add("Where", graph.add("Equal", condition, scalar(1)), value, other_value)


def _power_nodes(graph: Graph, base: Tensor, exponent: Tensor) -> str:
    # NaN to the power of 0, and 1 to that of NaN, are 1 by IEEE 754.
    is_null = graph.is_missing(graph.add("Add", base, exponent))
    power = finite_nodes(graph, graph.add("Pow", base, exponent))
    return graph.add("Where", is_null, scalar(math.nan), power)


def _modulus_nodes(graph: Graph, first: Tensor, second: Tensor) -> str:
    whole = graph.add("Mul", graph.add("Floor", graph.add("Div", first, second)), second)
    return finite_nodes(graph, graph.add("Sub", first, whole))


def _logarithm_nodes(graph: Graph, value: Tensor, base: Tensor) -> str:
    logarithm = graph.add("Log", value)
    if isinstance(base, np.ndarray) and base.item() == math.e:
        return finite_nodes(graph, logarithm)
    return finite_nodes(graph, graph.add("Div", logarithm, graph.add("Log", base)))


def _round_nodes(graph: Graph, value: Tensor, factor: Tensor) -> str:
    return finite_nodes(graph, graph.add("Div", graph.add("Round", graph.add("Mul", value, factor)), factor))


def _coalesce_nodes(graph: Graph, value: Tensor, other_value: Tensor) -> str:
    return graph.add("Where", graph.add("IsNaN", value), other_value, value)


def _larger_nodes(graph: Graph, comparison: str, first: Tensor, second: Tensor) -> str:
    is_second = graph.add("Or", graph.add("IsNaN", first), graph.add(comparison, second, first))
    return graph.add("Where", is_second, second, first)


def _larger(first: pl.Expr, second: pl.Expr, is_second: pl.Expr) -> pl.Expr:
    return pl.when(first.is_null() | is_second).then(second).otherwise(first)


_TWO: Final = ("number", "number")

OPERATIONS: Final[Mapping[str, Operation]] = {
    "Plus": _arithmetic("Add", lambda first, second: first + second),
    "Minus": _arithmetic("Sub", lambda first, second: first - second),
    "Multiply": _arithmetic("Mul", lambda first, second: first * second),
    "RustDivide": _arithmetic("Div", lambda first, second: first / second),
    "Modulus": Operation(_TWO, lambda first, second: finite(first - (first / second).floor() * second), _modulus_nodes),
    "Pow.Generic": Operation(_TWO, lambda base, exponent: finite(base**exponent), _power_nodes),
    "Eq": _comparison("Equal", lambda first, second: first == second),
    "Gt": _comparison("Greater", lambda first, second: first > second),
    "GtEq": _comparison("GreaterOrEqual", lambda first, second: first >= second),
    "Lt": _comparison("Less", lambda first, second: first < second),
    "LtEq": _comparison("LessOrEqual", lambda first, second: first <= second),
    "And": Operation(("condition", "condition"), lambda first, second: first & second, _and_nodes),
    "Or": Operation(("condition", "condition"), lambda first, second: first | second, _or_nodes),
    "Boolean.Not": Operation(("condition",), lambda condition: ~condition, _not_nodes),
    "Boolean.IsNull": Operation(
        ("any",),
        lambda value: value.is_null(),
        lambda graph, value: condition_nodes(graph, graph.add("IsNaN", value)),
    ),
    "Boolean.IsNotNull": Operation(
        ("any",),
        lambda value: value.is_not_null(),
        lambda graph, value: condition_nodes(graph, graph.add("Not", graph.add("IsNaN", value))),
    ),
    "If": Operation(
        ("condition", "number", "number"),
        lambda condition, value, other_value: pl.when(condition).then(value).otherwise(other_value),
        _if_nodes,
    ),
    "Abs": _function("Abs", lambda value: value.abs()),
    "Sign": _function("Sign", lambda value: value.sign()),
    "Floor": _function("Floor", lambda value: value.floor()),
    "Ceil": _function("Ceil", lambda value: value.ceil()),
    "Exp": _function("Exp", lambda value: value.exp()),
    "Pow.Sqrt": _function("Sqrt", lambda value: value.sqrt()),
    "Round": Operation(
        _TWO, lambda value, factor: finite((value * factor).round(0, mode="half_to_even") / factor), _round_nodes
    ),
    "Log": Operation(_TWO, lambda value, base: finite(value.log() / base.log()), _logarithm_nodes),
    "Log1p": Operation(
        ("number",),
        lambda value: finite((value + 1.0).log()),
        lambda graph, value: finite_nodes(graph, graph.log1p(value)),
    ),
    "Coalesce": Operation(
        _TWO, lambda value, other_value: pl.when(value.is_null()).then(other_value).otherwise(value), _coalesce_nodes
    ),
    "MaxHorizontal": Operation(
        _TWO,
        lambda first, second: _larger(first, second, second > first),
        lambda graph, first, second: _larger_nodes(graph, "Greater", first, second),
    ),
    "MinHorizontal": Operation(
        _TWO,
        lambda first, second: _larger(first, second, second < first),
        lambda graph, first, second: _larger_nodes(graph, "Less", first, second),
    ),
}
"""By Polars' name."""

CONDITIONS: Final = frozenset(
    ("Eq", "Gt", "GtEq", "Lt", "LtEq", "And", "Or", "Boolean.Not", "Boolean.IsNull", "Boolean.IsNotNull")
)
"""Operations that are true or false."""
