"""Quality of models on their test days, from the scores that training wrote."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from monitoring.reference.distributions import Bins, equal_count_edges
from monitoring.reference.reference_parts import ColumnReference, ModelReference
from monitoring.windows.kpi import REQUEST, ROW, SCORE, request_hit_shares
from shortlist.contracts import Columns
from shortlist.evaluation.metrics.measure import scores_file
from shortlist.evaluation.metrics.pointwise import UnmeasurableError, auc, log_loss
from shortlist.evaluation.metrics.ranking import gauc, mean_ndcg
from shortlist.evaluation.metrics.scores import ScoredRows, read_scores, read_weights
from shortlist.serving.traffic.sessions import in_session_order, session_bounds
from shortlist.spec.data import Data
from shortlist.spec.monitoring import Monitoring
from shortlist.storage.tables import DayTable, iter_row_groups
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
    for model, path in scores.items():
        try:
            rows = read_scores(scores_file(path), "test")
            lists = iter_lists(table, data, set(rows.frame[Columns.DAY].unique()))
            references[model] = _measure_model(model, rows, scores_file(path), lists, settings)
        except UnmeasurableError as reason:
            note(f"Live traffic of {model} cannot be compared with its test days: {reason}")
    return references


def _measure_model(
    model: str, test: ScoredRows, path: Path, lists: Iterable[pl.DataFrame], settings: Monitoring
) -> ModelReference:
    weights, labels, scores = test.weights, test.stored_labels, test.stored_scores
    listed_rows = _ListedRows(settings.quality.hit_rate_at, ranks=test.users is not None)
    for file_lists in lists:
        listed_rows.add(file_lists, test)
    return ModelReference(
        model=model,
        scores=_score_distribution(path, settings),
        mean_score=test.mean_score,
        label_rate=float(np.average(labels, weights=weights)),
        auc=auc(labels, scores, weights),
        log_loss=log_loss(labels, scores, weights),
        gauc=None if test.users is None else gauc(test.labels, test.scores, test.users, weights),
        ndcg_at_10=listed_rows.ndcg(),
        hit_rate=listed_rows.hit_rate(),
        rows=test.rows,
    )


class _ListedRows:
    """Measures of the lists that a replay would ask for, file by file of the log."""

    def __init__(self, at: int, *, ranks: bool) -> None:
        self._at, self._ranks = at, ranks
        self._hits: list[pl.DataFrame] = []
        self._ranked: list[pl.DataFrame] = []

    def add(self, lists: pl.DataFrame, test: ScoredRows) -> None:
        """Add the lists of a file; rows that were not scored are left out."""
        if not lists.height:
            return
        impressions = test.frame[Columns.IMPRESSION]  # sorted, so that those of a file's rows lie together
        low, high = lists[Columns.IMPRESSION].min(), lists[Columns.IMPRESSION].max()
        first, end = impressions.search_sorted(low, "left"), impressions.search_sorted(high, "right")
        columns = [name for name in (Columns.IMPRESSION, Columns.LABEL, Columns.WEIGHT) if name in test.frame.columns]
        scored = test.frame.select(columns)[first:end].with_columns(pl.Series(SCORE, test.stored_scores[first:end]))
        rows = lists.join(scored, on=Columns.IMPRESSION)
        if not rows.height:
            return
        hits = request_hit_shares(rows, self._at)
        self._hits.append(hits.select(name for name in ("value", Columns.WEIGHT) if name in hits.columns))
        if self._ranks:
            ranked_columns = [name for name in (Columns.LABEL, SCORE, REQUEST, Columns.WEIGHT) if name in rows.columns]
            self._ranked.append(rows.select(ranked_columns))

    def hit_rate(self) -> float:
        """Return the hit rate; see `monitoring.windows.kpi.hit_rate`.

        Raises:
            UnmeasurableError: No list has a scored row.
        """
        if not self._hits:
            raise UnmeasurableError("no rows to measure")
        hits = pl.concat(self._hits)
        return float(np.average(hits["value"].to_numpy(), weights=read_weights(hits)))

    def ndcg(self) -> float | None:
        """Return the mean nDCG@10 of the lists; None where the log names no users."""
        if not self._ranked:
            return None
        rows = pl.concat(self._ranked)
        labels, scores = (rows[name].cast(pl.Float64).to_numpy() for name in (Columns.LABEL, SCORE))
        return mean_ndcg(labels, scores, rows[REQUEST].to_numpy(), read_weights(rows))


def _score_distribution(path: Path, settings: Monitoring) -> ColumnReference:
    """Return the distribution of the scores of every validation and test row."""
    bins = Bins(kind="numeric", edges=equal_count_edges(_finite_scores(path), settings.drift.bins))
    counts: dict[date, npt.NDArray[np.int64]] = {}
    rows = 0
    for piece in iter_row_groups(path, [Columns.DAY, SCORE]):
        rows += piece.height
        for (day,), day_rows in piece.group_by(Columns.DAY):
            counts[day] = counts.get(day, 0) + bins.count(day_rows[SCORE])
    by_day = tuple(tuple(counts[day].tolist()) for day in sorted(counts))
    return ColumnReference(bins=bins, counts=by_day, nulls=1 - sum(map(sum, by_day)) / rows, rows=rows)


def _finite_scores(path: Path) -> npt.NDArray[np.floating[Any]]:
    """Return the scores that are neither null nor not finite, as the file holds them."""
    scores = pl.read_parquet(path, columns=[SCORE])[SCORE].drop_nulls().to_numpy()
    is_finite = np.isfinite(scores)
    return scores if is_finite.all() else scores[is_finite]


def iter_lists(table: DayTable, data: Data, days: set[date]) -> Iterator[pl.DataFrame]:
    """Yield, for each file of some days, impression_id, request_id (the list) and row (the place in the list)."""
    columns = [Columns.TIME, Columns.IMPRESSION, *([data.user] if data.user else [])]
    first_list = 0
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
