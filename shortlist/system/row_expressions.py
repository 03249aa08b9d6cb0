"""Conditions and formulas over the columns of candidates: SQL expressions, type-checked and never executed as code."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal

from shortlist.contracts import ShortlistError, did_you_mean

if TYPE_CHECKING:
    import numpy as np
    import polars as pl

MAX_CHARACTERS: Final = 2_000
"""Longest expression; limited, like brackets, because the parser is recursive."""
_MAX_OPEN_BRACKETS: Final = 50

_LENGTHENING: Final = {
    "PadStart": "LPAD",
    "PadEnd": "RPAD",
    "Replace": "REPLACE",
}
"""Polars' and SQL's names of functions whose result may be much longer than the text."""

_ROW_WISE_PARTS: Final = {
    "Column": (),
    "Literal": (),
    "BinaryExpr": ("left", "right"),
    "Cast": ("expr",),
    "Ternary": ("predicate", "truthy", "falsy"),
}
"""Polars' names of expressions whose value in a row depends on that row alone, if that of their parts does."""
_ROW_WISE_FUNCTIONS: Final = frozenset(
    ("Abs", "Coalesce", "Contains", "EndsWith", "Exp", "IsNotNull", "IsNull", "LenChars", "Length", "Lowercase", "Log",
     "MaxHorizontal", "MinHorizontal", "Not", "OffsetBy", "Pow", "Round", "StartsWith", "TemporalExpr", "Uppercase")
)  # fmt: skip
"""Polars' names of the functions, or families of functions, of which the same is known."""

ExpressionKind = Literal["condition", "number"]


class ExpressionError(ShortlistError):
    """An expression that cannot be parsed, or does not fit the columns."""


@dataclass(frozen=True)
class RowExpression:
    """A checked expression."""

    text: str
    columns: tuple[str, ...]
    """Columns that it reads, each once, in the order of the text."""

    @property
    def is_row_wise(self) -> bool:
        """Whether its value in a row is known to depend on that row alone; `price < AVG(price)` depends on others.

        >>> compile_expression("price < 2").is_row_wise, compile_expression("price < AVG(price)").is_row_wise
        (True, False)
        """
        return _is_row_wise_text(self.text)

    def evaluate(self, rows: pl.DataFrame) -> pl.Series:
        """Return its value for every row; null where a column that determines it is null."""
        if self.text in self.columns:
            return rows[self.text]
        return rows.select(_expression(self.text).alias("value")).to_series()

    def evaluate_numbers(self, rows: pl.DataFrame) -> np.ndarray:
        """Return its value for every row, float64, shape (n_rows,); NaN for null."""
        import polars as pl

        return self.evaluate(rows).cast(pl.Float64()).to_numpy()

    def evaluate_condition(self, rows: pl.DataFrame) -> np.ndarray:
        """Return whether the condition is true for each row, bool, shape (n_rows,); null counts as false."""
        # `fill_null` would wait for Polars' threads, which takes longer than the rest of a filter.
        return self.evaluate(rows).eq_missing(other=True).to_numpy()


@lru_cache(maxsize=1_024)
def _expression(text: str) -> pl.Expr:
    """Parse a text; cached, because parsing takes as long as ranking a few hundred rows."""
    import polars as pl  # specs without expressions are read without it

    return pl.sql_expr(text)


@lru_cache(maxsize=1_024)
def _is_row_wise_text(text: str) -> bool:
    return _is_row_wise(json.loads(_expression(text).meta.serialize(format="json")))


def _is_row_wise(node: Any) -> bool:
    """Whether a node of Polars' syntax tree is row-wise; False for all that is not in the tables above."""
    if not isinstance(node, dict):
        return False
    ((kind, content),) = node.items()
    if kind == "Function":
        function, inputs = content["function"], content["input"]
        names = {function} if isinstance(function, str) else {*function}
        for variant in function.values() if isinstance(function, dict) else ():
            names |= {*variant} if isinstance(variant, dict) else {str(variant)}
        # In Polars, `a IN b` looks for a among all values of column b.
        is_known = bool(names & _ROW_WISE_FUNCTIONS) or ("IsIn" in names and "Literal" in inputs[1])
        return is_known and all(map(_is_row_wise, inputs))
    return kind in _ROW_WISE_PARTS and all(_is_row_wise(content[part]) for part in _ROW_WISE_PARTS[kind])


@lru_cache(maxsize=1_024)
def compile_expression(text: str) -> RowExpression:
    """Return an expression that `parse_expression` accepted before, without checking it again."""
    return RowExpression(text, tuple(dict.fromkeys(_expression(text).meta.root_names())))


def parse_expression(
    text: str, types: Mapping[str, pl.DataType], kind: ExpressionKind, rows: str = "candidates"
) -> RowExpression:
    """Return an expression that gives one value for each row.

    Args:
        text: In Polars' SQL: `stock > 0 AND region = user_region`.
        types: Types of the columns that it may read.
        kind: Whether it has to be a condition or a number.
        rows: What the rows are, for messages.

    Raises:
        ExpressionError: It is no expression, reads an unknown column, mixes types, is of another kind, or fails for
            some values of the columns.

    >>> import polars as pl
    >>> price = parse_expression("0.5 * price", {"price": pl.Float64()}, "number")
    >>> price.columns, price.evaluate(pl.DataFrame({"price": [4.0, None]})).to_list()
    (('price',), [2.0, None])
    """
    import polars as pl

    _check_length(text)
    excerpt = f"'{_one_line(text[:80])}'"
    try:
        expression = _expression(text)
        _check_functions(expression, excerpt)
        columns = tuple(dict.fromkeys(expression.meta.root_names()))
        value_type = _type_of(expression, types)
    except pl.exceptions.ColumnNotFoundError as error:
        unknown_column = next(name for name in columns if name not in types)
        raise ExpressionError(
            f"{excerpt} reads '{_one_line(unknown_column)}', which is no column of {rows}"
            f"{did_you_mean(unknown_column, types)}; there are {', '.join(types)}"
        ) from error
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise ExpressionError(f"{excerpt} is no expression over the columns of {rows}: {_first_line(error)}") from error
    if value_type is None or not columns:
        raise ExpressionError(f"{excerpt} gives one value for all {rows}; wanted one for each, from its columns")
    has_kind = value_type == pl.Boolean() if kind == "condition" else value_type.is_numeric()
    if not has_kind:
        raise ExpressionError(
            f"{excerpt} gives {value_type}; wanted {'true or false' if kind == 'condition' else 'a number'}"
        )
    _check_values(expression, types, excerpt)
    return RowExpression(text, columns)


def _check_functions(expression: pl.Expr, excerpt: str) -> None:
    """Refuse functions that make texts of any length from short ones."""
    tree = expression.meta.serialize(format="json")
    if name := next((name for name in _LENGTHENING if f'"{name}"' in tree), None):
        raise ExpressionError(
            f"{excerpt} uses {_LENGTHENING[name]}, whose texts may take all of a server's memory; compare texts as they"
            " are"
        )


def parse_tree(text: str, rows: str) -> Any:
    """Return the syntax tree of an expression, in JSON as Polars serialises it.

    Args:
        text: In Polars' SQL.
        rows: What the rows are, for messages.

    Raises:
        ExpressionError: It is no expression.
    """
    import polars as pl

    _check_length(text)
    try:
        return json.loads(_expression(text).meta.serialize(format="json"))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise ExpressionError(f"'{_one_line(text[:80])}' is no expression over {rows}: {_first_line(error)}") from error


def _check_length(text: str) -> None:
    if len(text) > MAX_CHARACTERS or text.count("(") > _MAX_OPEN_BRACKETS:
        raise ExpressionError(
            f"the expression '{_one_line(text[:80])}'... is too long: got {len(text):,} characters and"
            f" {text.count('('):,} opening brackets, wanted at most {MAX_CHARACTERS:,} and {_MAX_OPEN_BRACKETS}"
        )


def _type_of(expression: pl.Expr, types: Mapping[str, pl.DataType]) -> pl.DataType | None:
    """Return the type of its values; None if it has one value whatever the number of rows."""
    import polars as pl

    # Evaluated on no rows and on two: the schema alone accepts some mixtures of types, and exploded lists.
    empty = pl.DataFrame(schema=dict(types)).select(expression.alias("value"))
    rows = {name: [[None] * 3 if isinstance(kind, pl.List) else None] * 2 for name, kind in types.items()}
    two = pl.DataFrame(rows, schema=dict(types)).select(expression.alias("value"))
    return empty.schema["value"] if (empty.height, two.height) == (0, 2) else None


def _check_values(expression: pl.Expr, types: Mapping[str, pl.DataType], excerpt: str) -> None:
    """Refuse what fails for some values: clients choose them, and one must not fail a request or a training."""
    import polars as pl

    rows = pl.DataFrame({name: _extreme_values(kind) for name, kind in types.items()})
    try:
        rows.select(expression.alias("value"))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise ExpressionError(
            f"{excerpt} fails for some values of its columns: {_first_line(error)}; TRY_CAST gives null for a value"
            " that has no such type, and POW(2.0, x) takes any number"
        ) from error


def _extreme_values(kind: pl.DataType) -> pl.Series:
    """Return four values of a type, with those for which casts, powers and patterns fail."""
    import polars as pl

    if isinstance(kind, pl.List):
        assert isinstance(kind.inner, pl.DataType)
        tags = _extreme_values(kind.inner)
        return pl.Series([[], tags, tags.head(1), tags.tail(1)], dtype=kind)
    if kind.is_nested():  # vectors
        return pl.Series([None] * 4, dtype=kind)
    values: tuple[Any, ...] = (-(2**63), 2**63 - 1, -1, 40_000)
    if kind == pl.String():
        values = ("", "x", "(", "-1")
    elif kind.is_float():
        values = (math.nan, math.inf, -1.5, 1e300)
    elif kind.is_temporal():
        values = (date(1, 1, 1), date(1970, 1, 1), date(2000, 2, 29), date(9999, 12, 31))
    return pl.Series(values).cast(kind, strict=False)


def _one_line(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
