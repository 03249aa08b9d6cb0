"""The AUC of scores of rows that come from users, several rows alike from each."""

from __future__ import annotations

import numpy as np
from scipy.special import stdtr
from scipy.stats import rankdata

from monitoring.drift.sampling import Floats, Ints


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
