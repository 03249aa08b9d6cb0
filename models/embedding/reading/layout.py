"""The layout of features: dense floats, or rows of the fused embedding table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from shortlist.contracts import ShortlistError, label_column
from shortlist.ranking.inputs import TableFeature
from shortlist.ranking.matrix import float_names

_MAX_ROWS = 2**31 - 1  # fused rows are int32: half the memory traffic of int64, and sorting them is twice as fast


class AttendedSequence(NamedTuple):
    """A sequence of ids whose rows a network looks up one by one, in the table of the target id."""

    history: str
    """Name of the sequence feature: a list of ids, the newest first."""
    target: str
    """Name of the target feature, an id of the same vocabulary."""


@dataclass(frozen=True)
class Layout:
    """The features of a network, by how they enter it.

    Attributes:
        dense: Features that are floats: dense ones and vectors.
        singles: Features with one id per row.
        lists: Features with a list of ids per row; their embeddings are averaged.
        starts: First row of every table of `singles`, then of `lists`, in the fused table.
        rows: Rows of the fused table.
        labels: Columns of the further labels that are learnt; empty where rows are only scored.
        history: A sequence with a slot per place behind the slots of `singles`, whose length is the last of the floats;
            None: there is none.
        target: Index in `singles` of the id whose table the history shares.
    """

    dense: tuple[TableFeature, ...]
    singles: tuple[TableFeature, ...]
    lists: tuple[TableFeature, ...]
    starts: tuple[int, ...]
    rows: int
    labels: tuple[str, ...] = ()
    history: TableFeature | None = None
    target: int = 0

    @classmethod
    def from_features(
        cls, features: Sequence[TableFeature], labels: Sequence[str] = (), attended: AttendedSequence | None = None
    ) -> Layout:
        """Return the layout of some features, and of further labels by name.

        Args:
            features: The features.
            labels: The further labels.
            attended: Sequence to look up one by one; None: all lists are averaged.

        Raises:
            ShortlistError: The tables together have too many rows.
        """
        singles = tuple(feature for feature in features if feature.kind == "id")
        lists = tuple(
            feature
            for feature in features
            if feature.kind == "ids" and (not attended or feature.name != attended.history)
        )
        history, target = (None, 0) if attended is None else _find_attended(features, singles, attended)
        *starts, rows = accumulate((feature.size or 0 for feature in (*singles, *lists)), initial=0)
        if rows > _MAX_ROWS:
            raise ShortlistError(
                f"features: {rows:,} ids in all; the fused table holds at most {_MAX_ROWS:,}."
                " Declare fewer buckets or smaller vocabularies."
            )
        dense = tuple(feature for feature in features if feature.kind in ("dense", "vector"))
        return cls(dense, singles, lists, tuple(starts), rows, tuple(map(label_column, labels)), history, target)

    @property
    def tables(self) -> tuple[TableFeature, ...]:
        """Features with a table, in the order of the fused one."""
        return self.singles + self.lists

    @property
    def widths(self) -> dict[str, int]:
        """Width of each vector feature."""
        return {feature.name: feature.width for feature in self.dense if feature.width is not None}

    @property
    def events(self) -> int:
        """Number of places of the history; 0 where there is none."""
        return (self.history.events or 0) if self.history is not None else 0

    @property
    def slots(self) -> int:
        """Slots of a row with one looked-up id each: the single ids, then the places of the history."""
        return len(self.singles) + self.events

    @property
    def plain_floats(self) -> int:
        """Number of floats of features; 1 (a column of zeros) where none is dense, so that a bias is still learnt."""
        return max(1, len(float_names(self.dense)))

    @property
    def floats(self) -> int:
        """Width of the dense matrix: the features' floats, then the length of the history, where there is one."""
        return self.plain_floats + (self.history is not None)


def _find_attended(
    features: Sequence[TableFeature], singles: Sequence[TableFeature], attended: AttendedSequence
) -> tuple[TableFeature, int]:
    """Return the sequence feature, and the index of its target among the single ids.

    Raises:
        ShortlistError: A feature is missing or of another kind, or they have different vocabularies.
    """
    by_name = {feature.name: feature for feature in features}
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
    return history, [feature.name for feature in singles].index(attended.target)
