"""Expressions for the values of a column that count as a positive label."""

from __future__ import annotations

import polars as pl

from shortlist.spec.log_shape import FurtherLabel, Positive


def is_positive(value: pl.Expr, positive: Positive) -> pl.Expr:
    """Return an expression that is True for positive values; null for null.

    >>> ratings = pl.DataFrame({"rating": [5, 3, None]})
    >>> ratings.select(is_positive(pl.col("rating"), Positive(at_least=4)))["rating"].to_list()
    [True, False, None]
    """
    if positive.any_of is not None:
        return value.cast(pl.String()).is_in([str(accepted) for accepted in positive.any_of])
    low = float("-inf") if positive.at_least is None else positive.at_least
    high = float("inf") if positive.at_most is None else positive.at_most
    return value.is_between(low, high)


def is_further_positive(value: pl.Expr, label: FurtherLabel) -> pl.Expr:
    """Return an expression that is True for positive values of a further label's column; null for null."""
    return value == 1 if label.positive is None else is_positive(value, label.positive)


def is_positive_value(value: float | str, positive: Positive) -> bool:
    """Return whether a single value is positive; the same as `is_positive` of a column.

    >>> is_positive_value(5, Positive(at_least=4)), is_positive_value("buy", Positive(any_of=("cart", "buy")))
    (True, True)
    """
    if positive.any_of is not None:
        return str(value) in [str(accepted) for accepted in positive.any_of]
    low = float("-inf") if positive.at_least is None else positive.at_least
    high = float("inf") if positive.at_most is None else positive.at_most
    return not isinstance(value, str) and low <= value <= high
