"""The lists of a feature table's files, as far as a loader keeps them whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import numpy as np
import polars as pl

from models.inputs import LearningTable
from models.objectives import list_lengths, sorted_by_list
from shortlist.contracts import Columns, DataError


class FileLists:
    """How many rows each list of each file has, in the order of `models.objectives.file_lists`."""

    def __init__(self, lengths: Mapping[Path, np.ndarray]) -> None:
        self._lengths = lengths

    @classmethod
    def of(cls, learning: LearningTable) -> Self | None:
        """Read the lists of the training and validation days; None where no order is learnt."""
        if Columns.USER not in learning.columns:
            return None
        read = (
            (path, pl.read_parquet(path, columns=[Columns.USER], hive_partitioning=False))
            for path in learning.paths("train", "validation")
        )
        return cls({path: list_lengths(sorted_by_list(users)) for path, users in read})

    def lengths(self, paths: Sequence[Path]) -> np.ndarray:
        """Return the rows of every list in some files, one file after another; int64."""
        return np.concatenate([np.empty(0, np.int64), *(self._lengths[path] for path in paths)])

    def check_batch_size(self, paths: Sequence[Path], batch_size: int, name: str, workers: int = 1) -> None:
        """Check that every list fits into a batch: its rows are compared with each other in one step.

        Args:
            paths: The files to learn from.
            batch_size: Rows of a batch of one worker.
            name: What the user calls the model.
            workers: That share a batch.

        Raises:
            DataError: A list is longer.
        """
        longest = int(self.lengths(paths).max(initial=0))
        if longest > batch_size:
            shared = f" for {workers} workers" if workers > 1 else ""
            raise DataError(
                f"models.{name}.batch_size: a user has {longest:,} rows in one file of the training days, and a batch"
                f" of one worker {batch_size:,}; the rows of a list are compared in one step. Declare batch_size:"
                f" {longest * workers} or more{shared}, or objective: pointwise"
            )
