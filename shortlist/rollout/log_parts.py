"""Append-only folders of Parquet parts, read on from where the last reading ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import Final

import polars as pl

from shortlist.serving.log.log_reader import files_of

ROWS: Final = 200_000
"""Rows yielded at once, about; a part is never cut."""
MOST_MISSES: Final = 50
"""Parts in a row, all older than the rollout, before those that are older still are left alone."""
_LATER: Final = {"routed_by_user": pl.Boolean(), "slate:asked": pl.Int32()}
"""Columns that earlier versions did not write; they are null then."""
_CLOCKS_APART: Final = timedelta(minutes=5)
"""A writer's clock may be behind by so much, or have been set right since."""


class PartReader:
    """The parts below a folder: one writer per inner folder, whose parts are numbered in the order of writing.

    What was there before the first reading is looked through from its newest part backwards, and only as far as the
    rollout goes: a server that has been up for days leaves a part for every second of them. Its newest parts need not
    be the rollout's: whoever takes over late, when everybody is on one version again, finds its own far behind.
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
            folder: Of the log, which has a column `time`; it need not be there yet.
            columns: To read.
            key: Column that says whether a part has anything to do with the rollout ...
            belongs: ... as this tells from its values.
            since: When the rollout began; None reads everything that is there.
            derived: Further columns by name, of columns that a part may lack; these are null there.
        """
        self._folder, self._columns = folder, list(columns)
        self._derived = [one.alias(name) for name, one in (derived or {}).items()]
        self._key, self._belongs = key, belongs
        self._oldest = None if since is None else since - _CLOCKS_APART
        self._last: dict[Path, tuple[int, str]] = {}
        self.unreadable = 0
        """Parts that are no Parquet files with these columns."""

    def read(self) -> Iterator[pl.DataFrame]:
        """Yield the rows of the parts written since the last reading."""
        frames: list[pl.DataFrame] = []
        for path in self._new():
            frame = self._rows(path, self._columns, self._derived)
            if frame is not None:
                frames.append(frame)
            if sum(one.height for one in frames) >= ROWS:
                yield pl.concat(frames)
                frames = []
        if frames:
            yield pl.concat(frames)

    def _new(self) -> Iterator[Path]:
        found = files_of(self._folder, "**/part-*.parquet")
        for folder, paths in groupby(sorted(found, key=_order), key=lambda path: path.parent):
            last = self._last.get(folder)
            new = [path for path in paths if last is None or _number(path) > last]
            if new:
                self._last[folder] = _number(new[-1])
            yield from new if last else self._of_rollout(new)

    def _of_rollout(self, paths: list[Path]) -> list[Path]:
        if self._oldest is None or len(paths) <= MOST_MISSES:
            return paths
        misses = 0
        for count, path in enumerate(reversed(paths), start=1):
            misses = misses + 1 if self._is_older(path, self._oldest) else 0
            if misses == MOST_MISSES:
                return paths[-count:]
        return paths

    def _is_older(self, path: Path, moment: datetime) -> bool:
        frame = self._rows(path, ["time", self._key])
        if frame is None or self._belongs(frame[self._key]):
            return False
        return frame.filter(pl.col("time") >= moment).is_empty()

    def _rows(self, path: Path, columns: list[str], derived: Sequence[pl.Expr] = ()) -> pl.DataFrame | None:
        wanted = {*columns, *(name for one in derived for name in one.meta.root_names())}
        optional = _LATER.keys() | wanted - {*columns}
        try:
            there = wanted & pl.read_parquet_schema(path).keys()
            missing = [pl.lit(None, _LATER.get(name)).alias(name) for name in (wanted - there) & optional]
            return pl.read_parquet(path, columns=sorted(there)).with_columns(missing).select(*columns, *derived)
        except FileNotFoundError:  # an old part that its owner removed
            return None
        except (pl.exceptions.PolarsError, OSError):
            self.unreadable += 1
            return None


def is_routed_by_user() -> pl.Expr:
    """Return whether rows of the prediction log are of requests whose track was chosen by their user."""
    return pl.col("user").is_not_null() & pl.col("routed_by_user").fill_null(True)


def _number(path: Path) -> tuple[int, str]:
    return len(path.name), path.name  # numbers grow beyond their zeros


def _order(path: Path) -> tuple[Path, tuple[int, str]]:
    return path.parent, _number(path)
