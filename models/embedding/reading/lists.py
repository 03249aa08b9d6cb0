"""Lengths of the lists in a feature table's files, which a loader keeps whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import numpy as np
import polars as pl

from models.objectives import list_column, list_lengths, list_owner, sorted_by_list
from shortlist.contracts import DataError
from shortlist.ranking.inputs import LearningTable


class FileLists:
    """Number of rows of each list of each file, in the order of `models.objectives.read_sorted_by_list`."""

    def __init__(self, lengths: Mapping[Path, np.ndarray], owner: str) -> None:
        self._lengths = lengths
        self._owner = owner

    @classmethod
    def read(cls, learning: LearningTable) -> Self | None:
        """Read the lists of the training and validation days; None where no order is learnt."""
        column = list_column(learning.columns)
        if column is None:
            return None
        frames = (
            (path, pl.read_parquet(path, columns=[column], hive_partitioning=False))
            for path in learning.paths("train", "validation")
        )
        lengths = {path: list_lengths(sorted_by_list(numbers)) for path, numbers in frames}
        return cls(lengths, list_owner(learning))

    def lengths(self, paths: Sequence[Path]) -> np.ndarray:
        """Return the number of rows of every list in some files, one file after another; int64."""
        return np.concatenate([np.empty(0, np.int64), *(self._lengths[path] for path in paths)])

    def check_batch_size(self, paths: Sequence[Path], batch_size: int, name: str, workers: int = 1) -> None:
        """Check that every list fits into a batch, as its rows are compared in one step.

        Args:
            paths: The files to learn from.
            batch_size: Rows of a batch of one worker.
            name: Key of the model in the spec.
            workers: Number of workers that share a batch.

        Raises:
            DataError: A list has more rows than a batch.
        """
        longest = int(self.lengths(paths).max(initial=0))
        if longest > batch_size:
            shared = f" for {workers} workers" if workers > 1 else ""
            raise DataError(
                f"models.{name}.batch_size: a {self._owner} has {longest:,} rows in one file of the training days,"
                f" and a batch of one worker {batch_size:,}; the rows of a list are compared in one step. Declare"
                f" batch_size: {longest * workers} or more{shared}, or objective: pointwise"
            )
