"""Incremental reader of append-only folders of Parquet parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import Final

import polars as pl

from shortlist.serving.log.log_reader import files_of

ROWS_PER_FRAME: Final = 200_000
"""Approximate number of rows of one frame; a part is never split."""
MAX_MISSES: Final = 50
"""Number of consecutive parts older than the rollout after which still older ones are skipped."""
_OPTIONAL_COLUMNS: Final = {"routed_by_user": pl.Boolean(), "slate:asked": pl.Int32()}
"""Columns that earlier versions did not write; they are read as null."""
_MAX_CLOCK_SKEW: Final = timedelta(minutes=5)
"""Largest difference between the clocks of a writer and of the controller."""


class PartReader:
    """Reads the parts below a folder: one writer per subfolder, whose parts are numbered in the order of writing.

    The first reading goes backwards from the newest part, and only as far as the rollout: a server that has been up
    for days has written a part every second. The newest parts need not belong to the rollout: a controller that takes
    over late, when all users are on one version again, finds the rollout's parts further back.
    """

    def __init__(
        self,
        folder: Path,
        columns: Sequence[str],
        key: str,
        belongs: Callable[[pl.Series], bool],
        since: datetime | None = None,
        derived: Mapping[str, pl.Expr] | None = None,
    ) -> None:
        """Prepare to read.

        Args:
            folder: Folder of the log, which has a column `time`; it need not exist yet.
            columns: Columns to read.
            key: Column by which parts of the rollout are recognised.
            belongs: Whether values of the key column belong to the rollout.
            since: When the rollout began; None reads all parts.
            derived: Further columns by name; source columns that a part lacks are read as null.
        """
        self._folder, self._columns = folder, list(columns)
        self._derived = [expression.alias(name) for name, expression in (derived or {}).items()]
        self._key, self._belongs = key, belongs
        self._oldest = None if since is None else since - _MAX_CLOCK_SKEW
        self._last_numbers: dict[Path, tuple[int, str]] = {}
        self.unreadable = 0
        """Number of parts that are no Parquet files with these columns."""

    def read(self) -> Iterator[pl.DataFrame]:
        """Yield the rows of the parts written since the last reading."""
        frames: list[pl.DataFrame] = []
        for path in self._new_paths():
            frame = self._rows(path, self._columns, self._derived)
            if frame is not None:
                frames.append(frame)
            if sum(frame_read.height for frame_read in frames) >= ROWS_PER_FRAME:
                yield pl.concat(frames)
                frames = []
        if frames:
            yield pl.concat(frames)

    def _new_paths(self) -> Iterator[Path]:
        part_paths = files_of(self._folder, "**/part-*.parquet")
        for folder, paths in groupby(sorted(part_paths, key=_sort_key), key=lambda path: path.parent):
            last = self._last_numbers.get(folder)
            new = [path for path in paths if last is None or _part_number(path) > last]
            if new:
                self._last_numbers[folder] = _part_number(new[-1])
            yield from new if last else self._rollout_paths(new)

    def _rollout_paths(self, paths: list[Path]) -> list[Path]:
        if self._oldest is None or len(paths) <= MAX_MISSES:
            return paths
        misses = 0
        for count, path in enumerate(reversed(paths), start=1):
            misses = misses + 1 if self._has_only_early_rows(path, self._oldest) else 0
            if misses == MAX_MISSES:
                return paths[-count:]
        return paths

    def _has_only_early_rows(self, path: Path, moment: datetime) -> bool:
        frame = self._rows(path, ["time", self._key])
        if frame is None or self._belongs(frame[self._key]):
            return False
        return frame.filter(pl.col("time") >= moment).is_empty()

    def _rows(self, path: Path, columns: list[str], derived: Sequence[pl.Expr] = ()) -> pl.DataFrame | None:
        columns_to_read = {*columns, *(name for expression in derived for name in expression.meta.root_names())}
        optional = _OPTIONAL_COLUMNS.keys() | columns_to_read - {*columns}
        try:
            present_columns = columns_to_read & pl.read_parquet_schema(path).keys()
            missing = [
                pl.lit(None, _OPTIONAL_COLUMNS.get(name)).alias(name)
                for name in (columns_to_read - present_columns) & optional
            ]
            return (
                pl.read_parquet(path, columns=sorted(present_columns)).with_columns(missing).select(*columns, *derived)
            )
        except FileNotFoundError:  # an old part that its owner removed
            return None
        except (pl.exceptions.PolarsError, OSError):
            self.unreadable += 1
            return None


def is_routed_by_user() -> pl.Expr:
    """Return whether the track of a request in the prediction log was chosen by its user."""
    return pl.col("user").is_not_null() & pl.col("routed_by_user").fill_null(True)


def _part_number(path: Path) -> tuple[int, str]:
    return len(path.name), path.name  # numbers grow beyond their zeros


def _sort_key(path: Path) -> tuple[Path, tuple[int, str]]:
    return path.parent, _part_number(path)
