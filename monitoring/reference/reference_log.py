"""The log that a model was trained on, as a reference needs it: binned, counted, sampled; read part by part."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Final

import polars as pl

from monitoring.reference.column_counts import ColumnCounts
from monitoring.reference.distributions import Bins, bins_of, compared_columns
from monitoring.reference.model_quality import scores_by_impression
from monitoring.windows.group_sample import GroupSample
from monitoring.windows.known_columns import SLATE_SIZE, empty_as_null, log_columns, with_side_columns
from shortlist.contracts import Columns, DataError, Files
from shortlist.features.plan import plan
from shortlist.features.preprocessing import Preprocessing
from shortlist.features.slates import SLATE, whole_slates
from shortlist.spec.data import Data
from shortlist.spec.features import Features
from shortlist.spec.monitoring import Monitoring
from shortlist.storage.artefacts import read_json
from shortlist.storage.tables import DayTable
from shortlist.system.progress import progress

SAMPLED_ROWS: Final = 20_000
BINNED_ROWS: Final = 200_000
"""Rows of the training days from which bins are made."""
_SLICE: Final = 100_000
"""Rows that have their side tables' columns at once."""
_KEY: Final = ":user"


class ReferenceLog:
    """The training, validation and test days of a log.

    Args:
        data: The log's declaration.
        features: The declared features.
        settings: How columns are compared.
        log: Folder of the valid log.
        fitted: Folder of the fitted features.

    Raises:
        DataError: The log has no day that the features were fitted on.
    """

    def __init__(self, data: Data, features: Features, settings: Monitoring, log: Path, fitted: Path) -> None:
        self._data, self._settings, self._log = data, settings, log
        self._table = DayTable.open(log, Files.LOG)
        self._vocabularies = Preprocessing.load(fitted).vocabularies
        split = {
            part: tuple(map(date.fromisoformat, days))
            for part, days in read_json(fitted / Files.FEATURES)["split"].items()
        }
        there = {part.day for part in self._table.days if part.rows}
        self._training = tuple(day for day in split["train"] if day in there)
        self.days = tuple(day for part in ("train", "validation", "test") for day in split[part] if day in there)
        """Training, validation and test days, in order."""
        if not self._training:
            raise DataError(
                f"{log}: got no rows of the days that {fitted} was fitted on; wanted the log of that training"
            )
        self._compared = compared_columns(plan(data, features), settings.drift)

    def count(self, scores: Mapping[str, Path]) -> tuple[ColumnCounts, pl.DataFrame]:
        """Return the counts of every compared column, and a sample of rows of whole users.

        Args:
            scores: File of scores, or its folder, by model; the sample gets them as `score:<model>`.
        """
        counts = ColumnCounts(self._bins(), self.days, self._vocabularies, self._training[-1])
        sample = GroupSample(_KEY, SAMPLED_ROWS)
        rows = sum(part.rows for part in self._table.days if part.day in self.days)
        with progress("reference", total=rows) as advance:
            for day, part in self._parts(self.days):
                counts.add(day, part)
                sample.add(self._with_users(day, part))
                advance(part.height, str(day))
        return counts, self._scored(sample.rows().drop(_KEY), scores)

    def _bins(self) -> dict[str, Bins]:
        rows = sum(part.rows for part in self._table.days if part.day in self._training)
        share = min(1.0, BINNED_ROWS / rows)
        some = [part.sample(fraction=share, seed=number) for number, part in enumerate(self._frames(self._training))]
        sample = self._complete(pl.concat(some))
        return {name: bins_of(sample[name], kind, self._settings.drift) for name, kind in self._compared.items()}

    def _parts(self, days: Collection[date]) -> Iterator[tuple[date, pl.DataFrame]]:
        for frame in self._frames(days):
            for part in frame.iter_slices(_SLICE):
                yield part[Columns.DAY][0], self._complete(part)

    def _frames(self, days: Collection[date]) -> Iterator[pl.DataFrame]:
        keys = [table.key for table in self._data.side_tables]
        own = (Columns.IMPRESSION, Columns.DAY, Columns.TIME, Columns.LABEL, self._data.user, *keys)
        columns = list(dict.fromkeys(name for name in (*own, *log_columns(self._data)) if name))
        if SLATE_SIZE not in self._compared:
            for path in self._table.paths(set(days)):
                yield pl.read_parquet(path, columns=columns, hive_partitioning=False)
            return
        size = pl.len().over(SLATE).cast(pl.Float64).alias(SLATE_SIZE)
        for day in self._table.days:
            if day.day in days:
                yield from (rows.with_columns(size).drop(SLATE) for rows in
                            whole_slates(self._table, day, self._data, columns) if rows.height)  # fmt: skip

    def _complete(self, rows: pl.DataFrame) -> pl.DataFrame:
        return empty_as_null(with_side_columns(rows, self._data, self._log))

    def _with_users(self, day: date, rows: pl.DataFrame) -> pl.DataFrame:
        user = pl.lit(None, pl.String) if self._data.user is None else pl.col(self._data.user).cast(pl.String)
        named = rows.with_columns(user.alias(Columns.USER))
        # A row without a user is a user of its own.
        key = pl.coalesce(Columns.USER, pl.format("row {}", Columns.IMPRESSION)).hash(seed=0).alias(_KEY)
        own = Columns.IMPRESSION, Columns.DAY, Columns.TIME, Columns.USER, Columns.LABEL
        return named.select(key, *own, *self._compared)

    def _scored(self, sample: pl.DataFrame, scores: Mapping[str, Path]) -> pl.DataFrame:
        for model, path in scores.items():
            known = scores_by_impression(path).select(Columns.IMPRESSION, pl.col("score").alias(f"score:{model}"))
            sample = sample.join(known, on=Columns.IMPRESSION, how="left", maintain_order="left")
        return sample.drop(Columns.IMPRESSION)
