"""Conditions and formulas over the columns of candidates: SQL expressions, type-checked and never run as code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal

from shortlist.contracts import ShortlistError, did_you_mean

if TYPE_CHECKING:
    import numpy as np
    import polars as pl

MOST_CHARACTERS: Final = 2_000
"""Of an expression: the parser goes into brackets by calling itself."""
_MOST_OPEN_BRACKETS: Final = 50

Wanted = Literal["condition", "number"]


class ExpressionError(ShortlistError):
    """An expression that cannot be read, or does not fit the columns."""


@dataclass(frozen=True)
class RowExpression:
    """A checked expression."""

    text: str
    columns: tuple[str, ...]
    """What it reads, each once, in the order of the text."""

    def over(self, rows: pl.DataFrame) -> pl.Series:
        """Return its value for every row; null where a column that decides it is null."""
        if self.text in self.columns:
            return rows[self.text]
        return rows.select(_expression(self.text).alias("value")).to_series()

    def numbers(self, rows: pl.DataFrame) -> np.ndarray:
        """Return its value for every row, float64, shape (n_rows,); NaN for null."""
        import polars as pl

        return self.over(rows).cast(pl.Float64()).to_numpy()

    def holds(self, rows: pl.DataFrame) -> np.ndarray:
        """Return bool, shape (n_rows,): for which rows the condition is true; null is not."""
        # `fill_null` would wait for Polars' threads, which takes longer than all else of a filter.
        return self.over(rows).eq_missing(other=True).to_numpy()


@lru_cache(maxsize=1_024)
def _expression(text: str) -> pl.Expr:
    """Return what a text says; parsing takes as long as ranking a few hundred rows."""
    import polars as pl  # specs without expressions are read without it

    return pl.sql_expr(text)


@lru_cache(maxsize=1_024)
def checked(text: str) -> RowExpression:
    """Return an expression that `parse_expression` has accepted before, for these columns."""
    return RowExpression(text, tuple(dict.fromkeys(_expression(text).meta.root_names())))


def parse_expression(text: str, types: Mapping[str, pl.DataType], wanted: Wanted) -> RowExpression:
    """Return an expression that gives one value for each row.

    Args:
        text: In Polars' SQL: `stock > 0 AND region = user_region`.
        types: Of the columns that it may read.
        wanted: What it has to give.

    Raises:
        ExpressionError: It is no expression, reads an unknown column, mixes types, or gives something else.

    >>> import polars as pl
    >>> price = parse_expression("0.5 * price", {"price": pl.Float64()}, "number")
    >>> price.columns, price.over(pl.DataFrame({"price": [4.0, None]})).to_list()
    (('price',), [2.0, None])
    """
    import polars as pl

    shown = f"'{text[:80]}'"
    if len(text) > MOST_CHARACTERS or text.count("(") > _MOST_OPEN_BRACKETS:
        raise ExpressionError(
            f"the expression {shown}... is too long: got {len(text):,} characters and {text.count('('):,} opening"
            f" brackets, wanted at most {MOST_CHARACTERS:,} and {_MOST_OPEN_BRACKETS}"
        )
    try:
        expression = _expression(text)
        columns = tuple(dict.fromkeys(expression.meta.root_names()))
        got = _type_of(expression, types)
    except pl.exceptions.ColumnNotFoundError as error:
        unknown = next(name for name in columns if name not in types)
        raise ExpressionError(
            f"{shown} reads '{unknown}', which is no column of candidates{did_you_mean(unknown, types)};"
            f" there are {', '.join(types)}"
        ) from error
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise ExpressionError(
            f"{shown} is no expression over the columns of candidates: {_first_line(error)}"
        ) from error
    if got is None or not columns:
        raise ExpressionError(f"{shown} gives one value for all candidates; wanted one for each, from its columns")
    fits = got == pl.Boolean() if wanted == "condition" else got.is_numeric()
    if not fits:
        raise ExpressionError(f"{shown} gives {got}; wanted {'true or false' if wanted == 'condition' else 'a number'}")
    return RowExpression(text, columns)


def _type_of(expression: pl.Expr, types: Mapping[str, pl.DataType]) -> pl.DataType | None:
    """Return the type of its values; None if it gives one value however many rows there are."""
    import polars as pl

    # Run on no rows and on two: the schema alone lets some mixtures of types pass, and lists that are exploded.
    empty = pl.DataFrame(schema=dict(types)).select(expression.alias("value"))
    rows = {name: [[None] * 3 if isinstance(kind, pl.List) else None] * 2 for name, kind in types.items()}
    two = pl.DataFrame(rows, schema=dict(types)).select(expression.alias("value"))
    return empty.schema["value"] if (empty.height, two.height) == (0, 2) else None


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
