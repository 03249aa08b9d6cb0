"""The domain classifier: how well all columns together separate a window's rows from the reference's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl
import polars.selectors as cs
from scipy.special import stdtr
from scipy.stats import rankdata
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from monitoring.drift.number_format import format_with_limit
from monitoring.reference.distributions import Bins
from monitoring.windows.records import Finding
from monitoring.windows.sampling import REQUEST, Floats, Ints, assign_clusters
from shortlist.contracts import Columns

if TYPE_CHECKING:
    from sklearn.ensemble import HistGradientBoostingClassifier


def clustered_auc(labels: Ints, scores: Floats, clusters: Ints) -> tuple[float, float]:
    """Return the AUC, and the probability of one as large when the sides do not differ, for clustered rows.

    The variance is that of Obuchowski (1997): each cluster adds the contribution of its rows to the AUC.

    Args:
        labels: 1 or 0 per row; both occur.
        scores: Scores of the rows, higher for label 1.
        clusters: Cluster of every row.
    """
    is_positive = labels == 1
    positives, negatives = int(is_positive.sum()), int((~is_positive).sum())
    ranks = rankdata(scores)
    placements = np.empty(scores.size)
    # Placement of a row: the share of the other side's rows that it is ordered correctly against.
    placements[is_positive] = (ranks[is_positive] - rankdata(scores[is_positive])) / negatives
    placements[~is_positive] = 1 - (ranks[~is_positive] - rankdata(scores[~is_positive])) / positives
    auc = float(placements[is_positive].mean())
    contributions = np.bincount(clusters, (placements - auc) / np.where(is_positive, positives, negatives))
    cluster_count = int((np.bincount(clusters) > 0).sum())
    if cluster_count < 2:
        return auc, 1.0
    error = float((contributions @ contributions * cluster_count / (cluster_count - 1)) ** 0.5)
    # Perfectly separated rows have no variance; one pair out of order is the lower bound.
    return auc, float(stdtr(cluster_count - 1, (0.5 - auc) / max(error, 1 / (positives * negatives) ** 0.5)))


ALL_COLUMNS: Final = "all columns"
_MAX_ROWS: Final = 10_000
_MIN_USERS: Final = 20
"""Fewest users on each side; with fewer, one fold may hold all users of a side."""
_FOLDS: Final = 3
_MAX_CODES: Final = 255
"""Most distinct values of a category that the classifier supports."""


class _Sides(NamedTuple):
    """Rows of the reference followed by rows of the window."""

    codes: np.ndarray
    """Shape (rows, columns), float32; NaN is null."""
    live: Ints
    """1 for rows of the window."""
    clusters: Ints


def domain_finding(
    rows: pl.DataFrame, sample: pl.DataFrame, columns: Mapping[str, Bins], max_auc: float, seed: int
) -> Finding | None:
    """Return how well a classifier separates the window's rows from the reference's; None when there are too few.

    Its inputs are those of the other comparisons (bins and separately counted values) and the lengths of lists. It is
    trained on some users and scores others, so that it cannot memorise users.

    Args:
        rows: Rows of the window.
        sample: Sample of the reference's rows.
        columns: Columns to use, with their bins; only columns of both frames count.
        max_auc: Largest AUC that is no drift.
        seed: Seed of the samples and of the folds.
    """
    shared_columns = {name: bins for name, bins in columns.items() if name in rows.columns and name in sample.columns}
    generator = np.random.default_rng(seed)
    row_count = min(rows.height, sample.height, _MAX_ROWS)
    sides = _stack_sides(
        _sample_rows(sample, row_count, generator), _sample_rows(rows, row_count, generator), shared_columns
    )
    if not shared_columns or min(np.unique(sides.clusters[sides.live == side]).size for side in (0, 1)) < _MIN_USERS:
        return None
    # One thread: on busy cores, several threads wait for each other longer than this little work takes.
    with threadpool_limits(limits=1):
        return _finding(sides, shared_columns, max_auc, generator)


def _finding(sides: _Sides, columns: Mapping[str, Bins], max_auc: float, generator: np.random.Generator) -> Finding:
    folds = generator.permutation(int(sides.clusters.max()) + 1)[sides.clusters] % _FOLDS
    models = [_fit(sides, folds != fold, columns) for fold in range(_FOLDS)]
    auc, p_value = clustered_auc(sides.live, _scores(models, sides, folds), sides.clusters)
    reason = f"{ALL_COLUMNS}: a classifier tells live rows with AUC {format_with_limit(auc, max_auc)}"
    if auc > max_auc:
        reason += f"; most by '{_most_telling_column(models[0], sides, folds == 0, list(columns), generator)}'"
    return Finding(
        column=ALL_COLUMNS, kind="domain", effect=auc, critical=max_auc, p_value=p_value, drifted=False, reason=reason
    )


def _scores(models: Sequence[HistGradientBoostingClassifier], sides: _Sides, folds: Ints) -> Floats:
    """Return every row's score by the classifier that was not trained on its user."""
    scores = np.empty(sides.live.size)
    for fold, model in enumerate(models):
        in_fold = folds == fold
        # Ranks within the fold: scores of different classifiers are not comparable.
        scores[in_fold] = (rankdata(model.predict_proba(sides.codes[in_fold])[:, 1]) - 0.5) / in_fold.sum()
    return scores


def _sample_rows(rows: pl.DataFrame, count: int, generator: np.random.Generator) -> pl.DataFrame:
    return rows[np.sort(generator.choice(rows.height, count, replace=False))]


def _stack_sides(reference: pl.DataFrame, live: pl.DataFrame, columns: Mapping[str, Bins]) -> _Sides:
    keys = cs.by_name(Columns.USER, REQUEST, require_all=False).cast(pl.String)
    side_keys = [frame.select(keys, pl.int_range(pl.len()).alias("row")) for frame in (reference, live)]
    codes = np.concatenate([_codes(frame, columns) for frame in (reference, live)])
    labels = np.repeat([0, 1], [reference.height, live.height])
    return _Sides(codes, labels, assign_clusters(pl.concat(side_keys, how="diagonal")))


def _codes(rows: pl.DataFrame, columns: Mapping[str, Bins]) -> np.ndarray:
    codes = np.full((rows.height, len(columns)), np.nan, dtype=np.float32)
    for column_index, (name, bins) in enumerate(columns.items()):
        if bins.kind == "tags":
            codes[:, column_index] = rows[name].list.len().fill_null(0).to_numpy()
            continue
        value_rows, bin_numbers = bins.codes(rows[name])
        codes[value_rows, column_index] = (
            bin_numbers if bins.kind == "numeric" else np.minimum(bin_numbers, _MAX_CODES - 1)
        )
    return codes


def _fit(sides: _Sides, row_mask: np.ndarray, columns: Mapping[str, Bins]) -> HistGradientBoostingClassifier:
    from sklearn.ensemble import HistGradientBoostingClassifier

    model = HistGradientBoostingClassifier(
        max_iter=30,
        learning_rate=0.2,
        max_leaf_nodes=8,
        min_samples_leaf=50,
        early_stopping=False,
        categorical_features=[bins.kind == "categorical" for bins in columns.values()],
    )
    return model.fit(sides.codes[row_mask], sides.live[row_mask])


def _most_telling_column(
    model: HistGradientBoostingClassifier,
    sides: _Sides,
    row_mask: np.ndarray,
    names: list[str],
    generator: np.random.Generator,
) -> str:
    """Return the column whose shuffling lowers the AUC most."""
    codes, live, clusters = (part[row_mask] for part in sides)
    aucs = []
    for column_index in range(len(names)):
        shuffled = codes.copy()
        shuffled[:, column_index] = generator.permutation(shuffled[:, column_index])
        aucs.append(clustered_auc(live, model.predict_proba(shuffled)[:, 1], clusters)[0])
    return names[int(np.argmin(aucs))]
