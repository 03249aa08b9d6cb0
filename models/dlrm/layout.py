"""Where each feature goes: dense floats, or rows of the one fused embedding table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from models.inputs import FeatureColumn
from models.matrix import float_names
from shortlist.contracts import ShortlistError, label_column

_MOST_ROWS = 2**31 - 1  # fused rows are int32: half the memory traffic of int64, and sorting them is twice as fast


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
    """

    dense: tuple[FeatureColumn, ...]
    singles: tuple[FeatureColumn, ...]
    lists: tuple[FeatureColumn, ...]
    starts: tuple[int, ...]
    rows: int
    labels: tuple[str, ...] = ()

    @classmethod
    def of(cls, features: Sequence[FeatureColumn], labels: Sequence[str] = ()) -> Layout:
        """Return the layout of some features, and of further labels by name.

        Raises:
            ShortlistError: The tables together have too many rows.
        """
        singles = tuple(one for one in features if one.kind == "id")
        lists = tuple(one for one in features if one.kind == "ids")
        *starts, rows = accumulate((one.size or 0 for one in (*singles, *lists)), initial=0)
        if rows > _MOST_ROWS:
            raise ShortlistError(
                f"models.dlrm.features: {rows:,} ids in all; the fused table holds at most {_MOST_ROWS:,}."
                " Declare fewer buckets or smaller vocabularies."
            )
        dense = tuple(one for one in features if one.kind in ("dense", "vector"))
        return cls(dense, singles, lists, tuple(starts), rows, tuple(map(label_column, labels)))

    @property
    def tables(self) -> tuple[FeatureColumn, ...]:
        """Features with a table, in the order of the fused one."""
        return self.singles + self.lists

    @property
    def floats(self) -> int:
        """Width of the dense matrix; 1 (a column of zeros) when no feature is dense, so that a bias is still learnt."""
        return max(1, len(float_names(self.dense)))
