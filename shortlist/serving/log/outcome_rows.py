"""The rows of outcomes that name an item alone, because who received them did not know the answer."""

from __future__ import annotations

import polars as pl

REQUEST = "request"


def names_item_alone() -> pl.Expr:
    """Return whether an outcome names the item of an answer and not its row, as an expression."""
    return pl.col("row").is_null() & pl.col("item").is_not_null()


def find_rows(outcomes: pl.DataFrame, requests: pl.DataFrame) -> pl.DataFrame:
    """Return outcomes, those that name an item alone with the item's first row; null where the answer lacks it.

    Args:
        outcomes: Columns request, row, item, and others. Those that name an item alone come last in the result.
        requests: Columns request, items; each request once.
    """
    is_nameless = names_item_alone()
    nameless = outcomes.filter(is_nameless)
    if nameless.is_empty():
        return outcomes
    answers = requests.join(nameless.select(REQUEST).unique(), on=REQUEST, how="semi").select(REQUEST, "items")
    answers = answers.with_columns(row=pl.int_ranges(pl.col("items").list.len(), dtype=pl.Int32))
    first_rows = (
        answers.explode("items", "row").rename({"items": "item"})
        .unique([REQUEST, "item"], keep="first", maintain_order=True)
    )  # fmt: skip
    placed = nameless.drop("row").join(first_rows, on=[REQUEST, "item"], how="left", maintain_order="left")
    return pl.concat([outcomes.filter(~is_nameless), placed.select(outcomes.columns)])
