"""Quality of models on their test days, from the scores that training wrote."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from monitoring.reference.distributions import make_bins
from monitoring.reference.reference_parts import ColumnReference, ModelReference
from monitoring.windows.kpi import REQUEST, ROW, SCORE, hit_rate
from shortlist.contracts import Columns
from shortlist.evaluation.metrics.measure import scores_file
from shortlist.evaluation.metrics.pointwise import UnmeasurableError, auc, log_loss
from shortlist.evaluation.metrics.ranking import gauc, mean_ndcg
from shortlist.evaluation.metrics.scores import ScoredRows, read_scores, read_weights
from shortlist.serving.traffic.sessions import in_session_order, session_bounds
from shortlist.spec.data import Data
from shortlist.spec.monitoring import Monitoring
from shortlist.storage.tables import DayTable
from shortlist.tracking.steps import note

MAX_LIST_ROWS: Final = 20
"""Most rows of a list, as in a replay's requests."""


def measure_models(
    scores: Mapping[str, Path], table: DayTable, data: Data, settings: Monitoring
) -> dict[str, ModelReference]:
    """Return the test-day quality of every model; one whose scores cannot be measured is left out with a message.

    Args:
        scores: File of scores, or its folder, by model.
        table: The valid log.
        data: The log's declaration.
        settings: How scores are binned, and how many rows of a list count.
    """
    references: dict[str, ModelReference] = {}
    lists: pl.DataFrame | None = None
    for model, path in scores.items():
        try:
            rows = read_scores(scores_file(path), "test")
            if lists is None:
                lists = _assign_lists(table, data, set(rows.frame[Columns.DAY].unique()))
            references[model] = _measure_model(model, rows, scores_file(path), lists, settings)
        except UnmeasurableError as reason:
            note(f"Live traffic of {model} cannot be compared with its test days: {reason}")
    return references


def scores_by_impression(path: Path) -> pl.DataFrame:
    """Return impression_id, day and score of every validation and test row in a file of scores, or its folder."""
    return pl.read_parquet(scores_file(path), columns=[Columns.IMPRESSION, Columns.DAY, SCORE])


def _measure_model(
    model: str, test: ScoredRows, path: Path, lists: pl.DataFrame, settings: Monitoring
) -> ModelReference:
    weights = test.weights
    columns = [name for name in (Columns.IMPRESSION, Columns.LABEL, Columns.WEIGHT) if name in test.frame.columns]
    listed_rows = lists.join(
        test.frame.select(columns).with_columns(pl.Series(SCORE, test.scores)), on=Columns.IMPRESSION
    )
    series_by_name = listed_rows.select(pl.col(Columns.LABEL, SCORE).cast(pl.Float64), pl.col(REQUEST)).to_dict(
        as_series=True
    )
    labels, scores, requests = (series_by_name[name].to_numpy() for name in (Columns.LABEL, SCORE, REQUEST))
    return ModelReference(
        model=model,
        scores=_score_distribution(scores_by_impression(path), settings),
        mean_score=float(np.average(test.scores, weights=weights)),
        label_rate=float(np.average(test.labels, weights=weights)),
        auc=auc(test.labels, test.scores, weights),
        log_loss=log_loss(test.labels, test.scores, weights),
        gauc=None if test.users is None else gauc(test.labels, test.scores, test.users, weights),
        ndcg_at_10=None if test.users is None else mean_ndcg(labels, scores, requests, read_weights(listed_rows)),
        hit_rate=hit_rate(listed_rows, settings.quality.hit_rate_at),
        rows=test.rows,
    )


def _score_distribution(scored: pl.DataFrame, settings: Monitoring) -> ColumnReference:
    bins = make_bins(scored[SCORE], "numeric", settings.drift)
    days = scored.sort(Columns.DAY).partition_by(Columns.DAY, maintain_order=True)
    counts = tuple(tuple(bins.count(day[SCORE]).tolist()) for day in days)
    values = sum(map(sum, counts))
    return ColumnReference(bins=bins, counts=counts, nulls=1 - values / scored.height, rows=scored.height)


def _assign_lists(table: DayTable, data: Data, days: set[date]) -> pl.DataFrame:
    """Return impression_id, request_id (the list) and row (the place in the list) of all impressions of some days."""
    return pl.concat(_iter_file_lists(table, data, days))


def _iter_file_lists(table: DayTable, data: Data, days: set[date]) -> Iterator[pl.DataFrame]:
    columns = [Columns.TIME, Columns.IMPRESSION, *([data.user] if data.user else [])]
    first_list = 0
    yield pl.DataFrame(schema={Columns.IMPRESSION: pl.Int64, REQUEST: pl.Int64, ROW: pl.Int64})
    for path in table.paths(days):
        frame = in_session_order(pl.read_parquet(path, columns=columns, hive_partitioning=False), data.user)
        bounds = session_bounds(frame, data.user, MAX_LIST_ROWS)
        list_bounds = pl.DataFrame(bounds, schema=["start", "stop"], orient="row").sort("start")
        row_number = pl.int_range(pl.len(), dtype=pl.Int64)
        # Lists follow each other: a row belongs to the last list that starts at or before it.
        list_number = (
            list_bounds["start"].search_sorted(pl.select(pl.int_range(frame.height)).to_series(), side="right") - 1
        )
        numbered = frame.select(Columns.IMPRESSION, list_number.cast(pl.Int64).alias(REQUEST))
        yield numbered.with_columns(pl.col(REQUEST) + first_list, row_number.over(REQUEST).alias(ROW))
        first_list += len(bounds)
