"""Where each feature goes: dense floats, or rows of the one fused embedding table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from models.inputs import FeatureColumn
from models.matrix import float_names
from shortlist.contracts import ShortlistError, label_column

_MOST_ROWS = 2**31 - 1  # fused rows are int32: half the memory traffic of int64, and sorting them is twice as fast


class Attended(NamedTuple):
    """A sequence of ids whose rows a network looks up one by one, in the table of the id that it is compared with."""

    history: str
    """Feature of the sequence: a list of ids, the newest first."""
    target: str
    """Feature of the id, of the same vocabulary."""


@dataclass(frozen=True)
class Layout:
    """The features of a DLRM, by what becomes of them.

    Attributes:
        dense: Features that are floats: dense ones and vectors.
        singles: Features with one id per row.
        lists: Features with a list of ids per row; their embeddings are averaged.
        starts: First row of every table of `singles`, then of `lists`, in the fused table.
        rows: Rows of the fused table.
        labels: Columns of the further labels that are learnt; empty where rows are only scored.
        history: A sequence that is no list: each of its places has a slot behind `singles`, and its length is the last
            of the floats; None: there is none.
        target: Number of the id among `singles` whose table the history shares.
    """

    dense: tuple[FeatureColumn, ...]
    singles: tuple[FeatureColumn, ...]
    lists: tuple[FeatureColumn, ...]
    starts: tuple[int, ...]
    rows: int
    labels: tuple[str, ...] = ()
    history: FeatureColumn | None = None
    target: int = 0

    @classmethod
    def of(
        cls, features: Sequence[FeatureColumn], labels: Sequence[str] = (), attended: Attended | None = None
    ) -> Layout:
        """Return the layout of some features, and of further labels by name.

        Args:
            features: The features.
            labels: The further labels.
            attended: Which of them is a sequence to look up one by one; None: lists are averaged.

        Raises:
            ShortlistError: The tables together have too many rows.
        """
        singles = tuple(one for one in features if one.kind == "id")
        lists = tuple(one for one in features if one.kind == "ids" and (not attended or one.name != attended.history))
        history, target = (None, 0) if attended is None else _attended(features, singles, attended)
        *starts, rows = accumulate((one.size or 0 for one in (*singles, *lists)), initial=0)
        if rows > _MOST_ROWS:
            raise ShortlistError(
                f"features: {rows:,} ids in all; the fused table holds at most {_MOST_ROWS:,}."
                " Declare fewer buckets or smaller vocabularies."
            )
        dense = tuple(one for one in features if one.kind in ("dense", "vector"))
        return cls(dense, singles, lists, tuple(starts), rows, tuple(map(label_column, labels)), history, target)

    @property
    def tables(self) -> tuple[FeatureColumn, ...]:
        """Features with a table, in the order of the fused one."""
        return self.singles + self.lists

    @property
    def widths(self) -> dict[str, int]:
        """Numbers of each vector."""
        return {one.name: one.width for one in self.dense if one.width is not None}

    @property
    def events(self) -> int:
        """Places of the history; 0 where there is none."""
        return (self.history.events or 0) if self.history is not None else 0

    @property
    def slots(self) -> int:
        """Slots of a row with one looked-up id each: the single ids, then the places of the history."""
        return len(self.singles) + self.events

    @property
    def plain_floats(self) -> int:
        """Floats that features are; 1 (a column of zeros) when none is dense, so that a bias is still learnt."""
        return max(1, len(float_names(self.dense)))

    @property
    def floats(self) -> int:
        """Width of the dense matrix: the features' floats, then the length of the history, where there is one."""
        return self.plain_floats + (self.history is not None)


def _attended(
    features: Sequence[FeatureColumn], singles: Sequence[FeatureColumn], attended: Attended
) -> tuple[FeatureColumn, int]:
    """Return the sequence, and which of the single ids it is compared with.

    Raises:
        ShortlistError: One of them is no such feature, or they are not of one vocabulary.
    """
    by_name = {one.name: one for one in features}
    history, target = by_name.get(attended.history), by_name.get(attended.target)
    if history is None or history.kind != "ids" or not history.events:
        raise ShortlistError(f"history: '{attended.history}' is no feature of kind sequence; declare one, and name it")
    if target is None or target.kind != "id":
        raise ShortlistError(f"target: '{attended.target}' has no one id per row; name a feature of kind vocabulary")
    if history.size != target.size:
        raise ShortlistError(
            f"target: '{attended.target}' has {target.size} ids, and history '{attended.history}' {history.size}; both"
            " look up one table, so declare them of the same column, with the same min_rows and max_size"
        )
    return history, [one.name for one in singles].index(attended.target)
