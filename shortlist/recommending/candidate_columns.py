"""The columns that filters and ordering may read of a candidate, and their check against a spec."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import polars as pl

from shortlist.contracts import Columns, ShortlistError, did_you_mean, score_column
from shortlist.ordering.order import check_ordering, columns_read
from shortlist.spec.data import Column, Data, GeneratedSource
from shortlist.spec.filters import Filters
from shortlist.spec.models import ModelSection
from shortlist.spec.ordering import Ordering
from shortlist.spec.retrieval import Retrieval, columns_of, item_tables, user_tables

SCORE: Final = "score"
"""Float64: what the model gave; for ordering only. So are `score_<label>`, of further labels."""
NOW: Final = "now"
"""Datetime("us", "UTC"): the moment of the request."""

RANK_OF: Final = "rank_of_"
"""Float64, so that 1 / rank is no division of whole numbers: before the name of a source, the candidate's rank there,
from 1; null where the source did not give it."""

_TYPES: Final[Mapping[str, pl.DataType]] = {
    "integer": pl.Int64(),
    "hex": pl.Int64(),
    "number": pl.Float64(),
    "string": pl.String(),
    "date": pl.Date(),
    "vector": pl.List(pl.Float32()),
}


def candidate_types(data: Data) -> dict[str, pl.DataType]:
    """Return the columns of a candidate before it is scored: of its item, of the user, and of the request.

    Item and user columns are those of their side tables; the request's are those of the log that are known before.
    """
    item, user = columns_of(item_tables(data)), columns_of(user_tables(data))
    request = {column.name: column for column in data.columns if column.known == "before"}
    left_out = {data.label, data.impression, data.request}
    types = {name: type_of(column) for name, column in {**request, **user, **item}.items() if name not in left_out}
    assert data.item
    return {**types, Columns.ITEM: types[data.item], NOW: pl.Datetime("us", "UTC")}


def rank_types(retrieval: Retrieval) -> dict[str, pl.DataType]:
    """Return the columns that say which rank each source gave a candidate."""
    return {f"{RANK_OF}{name}": pl.Float64() for name in retrieval.sources}


def check_slates(data: Data, retrieval: Retrieval, filters: Filters, ordering: Ordering) -> None:
    """Check filters and ordering against what candidates have, and against each other.

    Raises:
        ShortlistError: An expression or a rule does not fit the columns, or a fallback is no source.
    """
    types = {**candidate_types(data), **rank_types(retrieval)}
    for number, rule in enumerate(filters.rules):
        _placed(f"filters.rules.{number}", rule.check, types)
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
    scores = {name: pl.Float64() for name in (SCORE, *map(score_column, data.labels))}
    _placed("ordering", lambda known: check_ordering(ordering, known), {**types, **scores})


def check_scores(ordering: Ordering, data: Data, models: Mapping[str, ModelSection]) -> None:
    """Check that every candidate gives the scores of further labels that ordering reads, whichever is served.

    Args:
        ordering: The section.
        data: Declares the further labels.
        models: By name.

    Raises:
        ShortlistError: One does not.
    """
    read = set(columns_read(ordering))
    for label in data.labels:
        for name, model in models.items():
            if score_column(label) in read and model.role == "candidate" and label not in model.labels:
                raise ShortlistError(
                    f"ordering reads '{score_column(label)}', which models.{name} does not give; add '{label}' to its"
                    " labels, or declare role: baseline"
                )


def type_of(column: Column) -> pl.DataType:
    """Return the type of a declared column in a validated table."""
    if column.type == "tags":
        return pl.List(pl.Int64() if column.tag_type == "integer" else pl.String())
    return _TYPES[column.type]


def _placed(where: str, check: Callable[[Mapping[str, pl.DataType]], None], types: Mapping[str, pl.DataType]) -> None:
    try:
        check(types)
    except ShortlistError as problem:
        raise type(problem)(f"{where}: {problem}") from None
