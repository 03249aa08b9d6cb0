"""Source `als`: items by factors of who took what, alternating least squares (Hu et al. 2008, Rendle et al. 2022)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from shortlist.slates.retrieval.catalogue import Rows, open_mapped_array
from shortlist.slates.retrieval.histories import HistorySourceKind
from shortlist.slates.retrieval.index import build_index
from shortlist.slates.retrieval.source import ROW, USER_NUMBER, FitInputs, Queries, Source
from shortlist.slates.retrieval.vector_source import Matrix, VectorSource
from shortlist.system.progress import progress

_GRAM: Final = "gram.npy"
_BLOCK_NUMBERS: Final = 2**22
"""Most numbers of a block of equations, 16 MiB of float32."""
_TUNING_QUERIES: Final = 500


class Als(HistorySourceKind):
    """Inner product of an item's factors with those that fit a user's recent items best."""

    kind: Literal["als"]
    """Factors of who took what."""
    factors: int = Field(default=64, ge=2, le=512)
    """Numbers per item and user."""
    passes: int = Field(default=10, ge=1, le=200)
    """Number of times that users' and items' factors are solved for, each by the other."""
    unobserved_weight: float = Field(default=0.1, gt=0.0, le=1.0)
    """Weight of an item that a user did not take, where one that was taken weighs 1."""
    regularization: float = Field(default=0.03, gt=0.0)
    """Weight of the squared factors of a user or item, times the sum of the weights of all its pairs."""

    def fit(self, inputs: FitInputs, folder: Path) -> None:
        """Solve for the factors, and write those of the items with their index."""
        pairs = inputs.taken_items(inputs.last_days(self.window_days), self.histories)
        users, rows = pairs[USER_NUMBER].to_numpy(), pairs[ROW].to_numpy()
        by_user = _Lists.of(users, rows, int(users[-1]) + 1)
        by_item = _Lists.of(rows, users, inputs.catalogue.size)
        random = np.random.default_rng(inputs.seed)
        items = random.normal(0, 0.1 / self.factors**0.5, (inputs.catalogue.size, self.factors)).astype(np.float32)
        items[by_item.lengths == 0] = 0
        with progress("als", total=self.passes, unit="passes") as advance:
            for number in range(1, self.passes + 1):
                user_factors = self._solve(by_user, items)
                items = self._solve(by_item, user_factors)
                advance(1, f"pass {number}")
        np.save(folder / _GRAM, items.T @ items)
        queries = user_factors[random.permutation(len(user_factors))[:_TUNING_QUERIES]]
        build_index(items, queries, inputs.index, inputs.max_items, folder, inputs.seed)
        self.write_histories(inputs, folder)

    def load(self, folder: Path) -> Source:
        """Return the items' factors in a folder."""
        return self.add_histories(AlsItems(folder, self.unobserved_weight, self.regularization), folder)

    def _solve(self, lists: _Lists, factors: Matrix) -> Matrix:
        """Return the factors of one side by those of the other; zeros for what has none."""
        gram = factors.T @ factors
        solved = np.zeros((len(lists.lengths), factors.shape[1]), np.float32)
        for numbers, member_lists in lists.blocks(factors.shape[1]):
            solved[numbers] = solve_factors(member_lists, factors, gram, self.unobserved_weight, self.regularization)
        return solved


class _Lists:
    """Lists of numbers, concatenated: the items of every user, or the users of every item."""

    def __init__(self, lengths: NDArray[np.int64], members: NDArray[np.integer[Any]]) -> None:
        self.lengths, self._members = lengths, members
        self._starts = np.cumsum(lengths) - lengths

    @classmethod
    def of(cls, owners: NDArray[np.integer[Any]], members: NDArray[np.integer[Any]], count: int) -> _Lists:
        """Return the members of each of `count` owners, from pairs in any order."""
        order = np.argsort(owners, kind="stable")
        return cls(np.bincount(owners, minlength=count), members[order])

    def blocks(self, width: int) -> Iterator[tuple[NDArray[np.intp], Rows]]:
        """Yield numbers of lists of about one length, and the lists, shape (B, L), padded with -1; no empty ones.

        Args:
            width: Factors of a member: a block has at most `_BLOCK_NUMBERS` numbers, or one list.
        """
        by_length = np.argsort(self.lengths, kind="stable")
        by_length = by_length[self.lengths[by_length] > 0][::-1]
        start = 0
        while start < len(by_length):
            length = int(self.lengths[by_length[start]])
            numbers = by_length[start : start + max(1, _BLOCK_NUMBERS // (width * max(length, width)))]
            place = np.arange(length)
            is_member = place < self.lengths[numbers, None]
            positions = np.where(is_member, self._starts[numbers, None] + place, 0)
            yield numbers, np.where(is_member, self._members[positions], -1).astype(np.int32)
            start += len(numbers)


def solve_factors(
    lists: Rows, factors: Matrix, gram: Matrix, unobserved_weight: float, regularization: float
) -> Matrix:
    """Return the factors of B users, or items, by those of what each took, or was taken by.

    They minimise, over all items, the squared distance of the inner product from 1 for what was taken, and from 0, with
    `unobserved_weight`, for everything; plus the squared factors, times `regularization`, times the sum of the weights.

    Args:
        lists: Numbers of the taken items, shape (B, L); -1 where there are no more.
        factors: Factors of all items, shape (N, D).
        gram: Product of `factors` with itself, shape (D, D).
        unobserved_weight: Weight of the squared inner product with any item.
        regularization: Weight of the squared factors.

    Returns:
        Shape (B, D).
    """
    pair_weights = (lists >= 0).sum(axis=1) + unobserved_weight * len(factors)
    coefficients = (regularization * pair_weights).astype(np.float32)[:, None, None] * np.eye(
        len(gram), dtype=np.float32
    )
    coefficients += np.float32(unobserved_weight) * gram
    constants = np.zeros((len(lists), len(gram)), np.float32)
    places_at_once = max(1, _BLOCK_NUMBERS // (max(1, len(lists)) * len(gram)))
    for place in range(0, lists.shape[1], places_at_once):  # a list may be longer than there is memory for its factors
        part = lists[:, place : place + places_at_once]
        taken_factors = factors[np.maximum(part, 0)] * (part >= 0)[:, :, None].astype(np.float32)
        coefficients += taken_factors.transpose(0, 2, 1) @ taken_factors
        constants += taken_factors.sum(axis=1)
    solved: Matrix = np.linalg.solve(coefficients, constants[:, :, None])[:, :, 0]
    return solved


class AlsItems(VectorSource):
    """Items by the inner product of their factors with a query's.

    Args:
        folder: Folder that `Als.fit` wrote.
        unobserved_weight: See `Als`.
        regularization: See `Als`.
    """

    def __init__(self, folder: Path, unobserved_weight: float, regularization: float) -> None:
        super().__init__(folder)
        self._gram = np.array(open_mapped_array(folder / _GRAM))
        self._unobserved_weight, self._regularization = unobserved_weight, regularization

    def query_vectors(self, queries: Queries) -> Matrix:
        """Return the factors that fit the recent items of every query best; zeros where there are none."""
        return solve_factors(queries.recent, self.vectors, self._gram, self._unobserved_weight, self._regularization)
