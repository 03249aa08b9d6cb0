"""Source `ease`: items that a linear model of the user's recent items predicts, fitted in closed form (Steck 2019)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic import Field

from shortlist.slates.retrieval.histories import HistorySourceKind
from shortlist.slates.retrieval.source import ROW, USER_NUMBER, FitInputs, Source
from shortlist.slates.retrieval.sources.co_visitation import Neighbours, write_neighbours

if TYPE_CHECKING:
    from scipy.sparse import csr_array

_ROWS_AT_ONCE: Final = 512


class Ease(HistorySourceKind):
    """Weights between items, by ridge regression of every item on all others, without an item's weight on itself."""

    kind: Literal["ease"]
    """Linear model of the items that users took together."""
    regularization: float = Field(default=500.0, gt=0.0)
    """Added to the number of users of every item: the more, the more users a weight needs."""
    fitted_items: int = Field(default=5_000, ge=2, le=40_000)
    """Most items with weights, those that most users took. The fit holds 16 bytes per pair of them."""
    neighbours: int = Field(default=500, ge=1, le=10_000)
    """Number of weights per item that are kept, the largest in absolute value."""

    def fit(self, inputs: FitInputs, folder: Path) -> None:
        """Compute the weights, and write the largest of every item."""
        pairs = inputs.taken_items(inputs.last_days(self.window_days), self.histories)
        users_of_item = np.bincount(pairs[ROW].to_numpy(), minlength=inputs.catalogue.size)
        most_taken = np.argsort(-users_of_item, kind="stable")[: self.fitted_items]
        items = np.sort(most_taken[users_of_item[most_taken] > 0])
        weights = ease_weights(_user_items(pairs, items, inputs.catalogue.size), self.regularization)
        counts, columns, values = np.zeros(inputs.catalogue.size, np.int64), [], []
        for start in range(0, len(items), _ROWS_AT_ONCE):
            part = weights[start : start + _ROWS_AT_ONCE]
            largest = np.sort(np.argsort(-np.abs(part), axis=1, kind="stable")[:, : self.neighbours], axis=1)
            kept_weights = np.take_along_axis(part, largest, axis=1)
            is_weight = kept_weights != 0
            counts[items[start : start + _ROWS_AT_ONCE]] = is_weight.sum(axis=1)
            columns.append(items[largest][is_weight])
            values.append(kept_weights[is_weight])
        write_neighbours(folder, counts, np.concatenate(columns), np.concatenate(values))
        self.write_histories(inputs, folder)

    def load(self, folder: Path) -> Source:
        """Return the weights in a folder; a user's recent items count alike."""
        return self.add_histories(Neighbours.open(folder, decay=1.0), folder)


def ease_weights(user_items: csr_array, regularization: float) -> NDArray[np.float64]:
    """Return the weight of each item (row) in the score of each item (column), shape (items, items).

    They minimise the squared error of a user's items, plus `regularization` times the squared weights, where no item
    has a weight on itself: with P the inverse of the regularised number of users of two items, weight (i, j) is
    -P(i, j) / P(j, j).

    Args:
        user_items: 1 where a user took an item, shape (users, items).
        regularization: Positive.
    """
    from scipy.linalg import lapack  # here, as below: servers of other sources need no scipy

    gram = np.asfortranarray((user_items.T @ user_items).toarray(), np.float64)
    gram[np.diag_indices_from(gram)] += regularization
    factor, _ = lapack.dpotrf(gram, overwrite_a=1)
    upper, _ = lapack.dpotri(factor, overwrite_c=1)
    inverse = np.triu(upper)
    inverse += np.triu(upper, 1).T
    weights: NDArray[np.float64] = inverse / -np.diag(inverse)
    weights[np.diag_indices_from(weights)] = 0.0
    return weights


def _user_items(pairs: pl.DataFrame, items: NDArray[np.integer[Any]], size: int) -> csr_array:
    """Return who took which of some items, as a sparse matrix of users and these items."""
    from scipy.sparse import csr_array

    column_of_row = np.full(size, -1, np.int64)
    column_of_row[items] = np.arange(len(items))
    columns, users = column_of_row[pairs[ROW].to_numpy()], pairs[USER_NUMBER].to_numpy()
    is_fitted = columns >= 0
    values = np.ones(int(is_fitted.sum()), np.float32)
    return csr_array((values, (users[is_fitted], columns[is_fitted])), shape=(int(users[-1]) + 1, len(items)))
