"""Columns of candidates that filters and ordering may read, and checks against a spec."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from typing import Final

import numpy as np
import polars as pl

from shortlist.contracts import Columns, ShortlistError, did_you_mean, score_column
from shortlist.slates.ordering.order import check_ordering, columns_read
from shortlist.spec.data import Data, GeneratedSource
from shortlist.spec.filters import Filters
from shortlist.spec.models import ModelSection
from shortlist.spec.ordering import Ordering
from shortlist.spec.retrieval import Retrieval, columns_of, item_tables, user_tables
from shortlist.system.row_expressions import ExpressionError, compile_expression, parse_expression

SCORE: Final = "score"
"""Column of the model's score, float64; for ordering only, like `score_<label>` of further labels."""
NOW: Final = "now"
"""Column of the moment of the request, Datetime("us", "UTC")."""

RANK_OF: Final = "rank_of_"
"""Prefix of the columns of a candidate's rank in a source, from 1; null where the source did not return it. Float64, so
that 1 / rank is no integer division."""


def candidate_types(data: Data) -> dict[str, pl.DataType]:
    """Return the columns of a candidate before it is scored: of its item, of the user, and of the request.

    Item and user columns are those of their side tables; the request's are those of the log that are known before.
    """
    item, user = columns_of(item_tables(data)), columns_of(user_tables(data))
    request = {column.name: column for column in data.columns if column.known == "before"}
    left_out = {data.label, data.impression, data.request}
    types = {name: column.polars_type for name, column in {**request, **user, **item}.items() if name not in left_out}
    assert data.item
    return {**types, Columns.ITEM: types[data.item], NOW: pl.Datetime("us", "UTC")}


def rank_types(retrieval: Retrieval) -> dict[str, pl.DataType]:
    """Return the columns of a candidate's ranks in the sources."""
    return {f"{RANK_OF}{name}": pl.Float64() for name in retrieval.sources}


def check_slates(data: Data, retrieval: Retrieval, filters: Filters, ordering: Ordering) -> None:
    """Check filters and ordering against the columns of candidates.

    Raises:
        ShortlistError: An expression or a rule does not fit the columns, or a fallback is no source.
    """
    types = {**candidate_types(data), **rank_types(retrieval)}
    for number, rule in enumerate(filters.rules):
        _check_with_key(f"filters.rules.{number}", rule.check, types)
        if rule.file is not None and isinstance(data.source, GeneratedSource):
            raise ShortlistError(
                f"filters.rules.{number}: reads '{rule.file}' beside the log, and a generated log has no folder;"
                " leave the filter out"
            )
    for name in filters.fallback:
        if name not in retrieval.sources:
            raise ShortlistError(
                f"filters.fallback: '{name}' is no source{did_you_mean(name, retrieval.sources)};"
                f" retrieval.sources has {', '.join(retrieval.sources)}"
            )
    _check_reward(ordering, data)
    scores = {name: pl.Float64() for name in (SCORE, *map(score_column, data.labels))}
    _check_with_key("ordering", lambda types: check_ordering(ordering, types), {**types, **scores})


def _check_reward(ordering: Ordering, data: Data) -> None:
    """Raise for a reward that reads other columns than labels, or that is no number from 0 for some of their values."""
    if ordering.reward is None:
        return
    labels = {name: pl.Int8() for name in (data.label, *data.labels)}
    try:
        read = parse_expression(ordering.reward, labels, "number").columns
    except ExpressionError as problem:
        raise ExpressionError(f"ordering.reward: {problem}; a reward reads labels: {', '.join(labels)}") from None
    outcomes = list(product((0, 1), repeat=len(read)))
    rows = (
        pl.DataFrame(outcomes, schema=dict.fromkeys(read, pl.Int8()), orient="row") if read else pl.DataFrame({"": [0]})
    )
    for outcome, reward in zip(outcomes, compile_expression(ordering.reward).evaluate_numbers(rows), strict=True):
        if not 0 <= reward < float("inf"):
            values = ", ".join(f"{name} {value}" for name, value in zip(read, outcome, strict=True))
            reward_text = f"{reward:g}" if np.isfinite(reward) else "no number"
            raise ExpressionError(f"ordering.reward: got {reward_text} for {values}; wanted a number of at least 0")


def check_scores(ordering: Ordering, data: Data, models: Mapping[str, ModelSection]) -> None:
    """Check that every candidate model has the scores of further labels that ordering reads.

    Args:
        ordering: The section.
        data: The spec's section, with the further labels.
        models: Sections of the models by name.

    Raises:
        ShortlistError: A candidate lacks a label.
    """
    read = set(columns_read(ordering))
    for label in data.labels:
        for name, model in models.items():
            if score_column(label) in read and model.role == "candidate" and label not in model.labels:
                raise ShortlistError(
                    f"ordering reads '{score_column(label)}', which models.{name} does not give; add '{label}' to its"
                    " labels, or declare role: baseline"
                )


def _check_with_key(
    key: str, check: Callable[[Mapping[str, pl.DataType]], None], types: Mapping[str, pl.DataType]
) -> None:
    try:
        check(types)
    except ShortlistError as problem:
        raise type(problem)(f"{key}: {problem}") from None
