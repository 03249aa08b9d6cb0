"""Answers of a store, put beside the rows that asked."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

from shortlist.contracts import DataError
from shortlist.features.view_index import View

ROW = "__row"
"""Number of the asking row; every answer carries it."""

Ask = Callable[[View, pl.DataFrame], pl.DataFrame]
"""Rows with keys and `__row` in, as many rows with features and `__row` out, in any order."""


def with_answers(rows: pl.DataFrame, view: View, ask: Ask) -> pl.DataFrame:
    """Return rows, in their order, with columns `<view>:<feature>`; null where a key is null or unknown.

    Args:
        rows: Has the view's key columns.
        view: What is asked.
        ask: Who answers; it never sees a null key.

    Raises:
        DataError: The answers are not one per asked row.
    """
    numbered = rows.with_row_index(ROW)
    asked = numbered.with_columns(pl.col(key.name).cast(key.polars) for key in view.keys).drop_nulls(view.key_names)
    answers = ask(view, asked) if asked.height else asked.select(ROW)
    if answers.height != asked.height or answers[ROW].n_unique() != asked.height:
        raise DataError(
            f"Feast answered {asked.height} rows of view '{view.name}' with {answers.height}."
            " Rows were lost or doubled; feature_repo/feature_store.yaml must say `offline_store: duckdb`."
        )
    columns = zip(view.columns, view.features, strict=True)
    found = answers.select(ROW, *(_typed(answers, name, feature.name, feature.polars) for name, feature in columns))
    return numbered.join(found, on=ROW, how="left", maintain_order="left").drop(ROW)


def _typed(answers: pl.DataFrame, name: str, feature: str, dtype: pl.DataType) -> pl.Expr:
    value = pl.col(feature) if feature in answers.columns else pl.lit(None)
    return value.cast(dtype).alias(name)
