"""The domain classifier: whether rows of a window can be told from the reference's by all of their columns together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl
import polars.selectors as cs
from scipy.special import stdtr
from scipy.stats import rankdata
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from monitoring.drift.number_format import with_limit
from monitoring.reference.distributions import Bins
from monitoring.windows.records import Finding
from monitoring.windows.sampling import REQUEST, Floats, Ints, clusters_of
from shortlist.contracts import Columns

if TYPE_CHECKING:
    from sklearn.ensemble import HistGradientBoostingClassifier


def clustered_auc(labels: Ints, scores: Floats, clusters: Ints) -> tuple[float, float]:
    """Return the AUC and the chance of one as large when nothing can be told, rows of a cluster being alike.

    The variance is that of Obuchowski (1997): each cluster adds what its rows move the AUC by.

    Args:
        labels: 1 or 0 per row, both there.
        scores: Higher for 1.
        clusters: Cluster of every row.
    """
    positive = labels == 1
    many, others = int(positive.sum()), int((~positive).sum())
    ranks = rankdata(scores)
    above = np.empty(scores.size)
    # Of a row, the share of the other side's rows that it is on the right side of.
    above[positive] = (ranks[positive] - rankdata(scores[positive])) / others
    above[~positive] = 1 - (ranks[~positive] - rankdata(scores[~positive])) / many
    auc = float(above[positive].mean())
    moved = np.bincount(clusters, (above - auc) / np.where(positive, many, others))
    present = int((np.bincount(clusters) > 0).sum())
    if present < 2:
        return auc, 1.0
    error = float((moved @ moved * present / (present - 1)) ** 0.5)
    # Perfectly told rows have no variance; one pair out of order is the least that can be claimed.
    return auc, float(stdtr(present - 1, (0.5 - auc) / max(error, 1 / (many * others) ** 0.5)))


ALL_COLUMNS: Final = "all columns"
_MOST_ROWS: Final = 10_000
_FEWEST_USERS: Final = 20
"""On each side; with fewer a fold may hold all of one side's."""
_FOLDS: Final = 3
_MOST_CODES: Final = 255
"""That the classifier takes of a category."""


class _Sides(NamedTuple):
    """Rows of the reference and of the window, under each other."""

    codes: np.ndarray
    """Shape (rows, columns), float32; NaN is null."""
    live: Ints
    """1 for rows of the window."""
    clusters: Ints


def domain_finding(
    rows: pl.DataFrame, sample: pl.DataFrame, columns: Mapping[str, Bins], max_auc: float, seed: int
) -> Finding | None:
    """Return how well a classifier tells the window's rows from the reference's; None when there are too few.

    It sees what the other comparisons see, bins and told-apart values, and how many values a list has. It is trained on
    some users and scores others, so that it cannot know users by heart.

    Args:
        rows: Of the window.
        sample: Of the reference.
        columns: Columns to tell by; those of both frames count.
        max_auc: The effect from which on it counts.
        seed: Of the samples and of the folds.
    """
    used = {name: bins for name, bins in columns.items() if name in rows.columns and name in sample.columns}
    generator = np.random.default_rng(seed)
    many = min(rows.height, sample.height, _MOST_ROWS)
    sides = _sides(_drawn(sample, many, generator), _drawn(rows, many, generator), used)
    if not used or min(np.unique(sides.clusters[sides.live == side]).size for side in (0, 1)) < _FEWEST_USERS:
        return None
    # One thread: more wait for each other longer than so little work takes when cores are busy.
    with threadpool_limits(limits=1):
        return _finding(sides, used, max_auc, generator)


def _finding(sides: _Sides, columns: Mapping[str, Bins], max_auc: float, generator: np.random.Generator) -> Finding:
    folds = generator.permutation(int(sides.clusters.max()) + 1)[sides.clusters] % _FOLDS
    models = [_fitted(sides, folds != fold, columns) for fold in range(_FOLDS)]
    auc, p_value = clustered_auc(sides.live, _scores(models, sides, folds), sides.clusters)
    reason = f"{ALL_COLUMNS}: a classifier tells live rows with AUC {with_limit(auc, max_auc)}"
    if auc > max_auc:
        reason += f"; most by '{_telling(models[0], sides, folds == 0, list(columns), generator)}'"
    return Finding(
        column=ALL_COLUMNS, kind="domain", effect=auc, critical=max_auc, p_value=p_value, drifted=False, reason=reason
    )


def _scores(models: Sequence[HistGradientBoostingClassifier], sides: _Sides, folds: Ints) -> Floats:
    """Return every row's score by the classifier that has not seen its user."""
    scores = np.empty(sides.live.size)
    for fold, model in enumerate(models):
        inside = folds == fold
        # Ranks within the fold: the scores of different classifiers do not compare.
        scores[inside] = (rankdata(model.predict_proba(sides.codes[inside])[:, 1]) - 0.5) / inside.sum()
    return scores


def _drawn(rows: pl.DataFrame, many: int, generator: np.random.Generator) -> pl.DataFrame:
    return rows[np.sort(generator.choice(rows.height, many, replace=False))]


def _sides(reference: pl.DataFrame, live: pl.DataFrame, columns: Mapping[str, Bins]) -> _Sides:
    keys = cs.by_name(Columns.USER, REQUEST, require_all=False).cast(pl.String)
    both = [frame.select(keys, pl.int_range(pl.len()).alias("row")) for frame in (reference, live)]
    codes = np.concatenate([_codes(frame, columns) for frame in (reference, live)])
    labels = np.repeat([0, 1], [reference.height, live.height])
    return _Sides(codes, labels, clusters_of(pl.concat(both, how="diagonal")))


def _codes(rows: pl.DataFrame, columns: Mapping[str, Bins]) -> np.ndarray:
    codes = np.full((rows.height, len(columns)), np.nan, dtype=np.float32)
    for place, (name, bins) in enumerate(columns.items()):
        if bins.kind == "tags":
            codes[:, place] = rows[name].list.len().fill_null(0).to_numpy()
            continue
        known, found = bins.codes(rows[name])
        codes[known, place] = found if bins.kind == "numeric" else np.minimum(found, _MOST_CODES - 1)
    return codes


def _fitted(sides: _Sides, chosen: np.ndarray, columns: Mapping[str, Bins]) -> HistGradientBoostingClassifier:
    from sklearn.ensemble import HistGradientBoostingClassifier

    model = HistGradientBoostingClassifier(
        max_iter=30,
        learning_rate=0.2,
        max_leaf_nodes=8,
        min_samples_leaf=50,
        early_stopping=False,
        categorical_features=[bins.kind == "categorical" for bins in columns.values()],
    )
    return model.fit(sides.codes[chosen], sides.live[chosen])


def _telling(
    model: HistGradientBoostingClassifier,
    sides: _Sides,
    chosen: np.ndarray,
    names: list[str],
    generator: np.random.Generator,
) -> str:
    """Return the column without which the classifier tells least: its values are shuffled."""
    codes, live, clusters = (part[chosen] for part in sides)
    left = []
    for place in range(len(names)):
        without = codes.copy()
        without[:, place] = generator.permutation(without[:, place])
        left.append(clustered_auc(live, model.predict_proba(without)[:, 1], clusters)[0])
    return names[int(np.argmin(left))]
