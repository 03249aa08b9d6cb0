"""The log that a model was trained on, read in parts to make bins, counts and a sample for its reference."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Final

import polars as pl

from monitoring.reference.column_counts import ColumnCounts
from monitoring.reference.distributions import Bins, compared_columns, make_bins
from monitoring.windows.group_sample import GroupSample
from monitoring.windows.known_columns import SLATE_SIZE, empty_as_null, log_columns, with_side_columns
from monitoring.windows.kpi import SCORE
from shortlist.contracts import Columns, DataError, Files
from shortlist.evaluation.metrics.measure import scores_file
from shortlist.features.declared.plan import plan
from shortlist.features.declared.slates import SLATE, whole_slates
from shortlist.features.rows.preprocessing import Preprocessing
from shortlist.spec.data import Data
from shortlist.spec.features import Features
from shortlist.spec.monitoring import Monitoring
from shortlist.storage.artefacts import read_json
from shortlist.storage.tables import DayTable
from shortlist.system.progress import progress

SAMPLE_ROWS: Final = 20_000
BINNED_ROWS: Final = 200_000
"""Rows of the training days from which bins are made."""
_SLICE_ROWS: Final = 100_000
"""Rows that are joined with their side tables at once."""
_USER_HASH: Final = ":user"


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
        self.vocabularies = Preprocessing.load(fitted).vocabularies
        days_by_part = {
            part: tuple(map(date.fromisoformat, days))
            for part, days in read_json(fitted / Files.FEATURES)["split"].items()
        }
        days_with_rows = {part.day for part in self._table.days if part.rows}
        self._training = tuple(day for day in days_by_part["train"] if day in days_with_rows)
        self.days = tuple(
            day for part in ("train", "validation", "test") for day in days_by_part[part] if day in days_with_rows
        )
        """Training, validation and test days, in order."""
        if not self._training:
            raise DataError(
                f"{log}: got no rows of the days that {fitted} was fitted on; wanted the log of that training"
            )
        self.compared = compared_columns(plan(data, features), settings.drift)

    def count(self, scores: Mapping[str, Path]) -> tuple[ColumnCounts, pl.DataFrame]:
        """Return the counts of every compared column, and a sample of rows of whole users.

        Args:
            scores: File of scores, or its folder, by model; the sample gets them as `score:<model>`.
        """
        counts = ColumnCounts(self._bins(), self.days, self.vocabularies, self._training[-1])
        sample = GroupSample(_USER_HASH, SAMPLE_ROWS)
        row_count = sum(part.rows for part in self._table.days if part.day in self.days)
        with progress("reference", total=row_count) as advance:
            for day, part in self._iter_slices(self.days):
                counts.add(day, part)
                sample.add(self._with_user_hash(day, part))
                advance(part.height, str(day))
        return counts, self._join_scores(sample.rows().drop(_USER_HASH), scores)

    def _bins(self) -> dict[str, Bins]:
        row_count = sum(part.rows for part in self._table.days if part.day in self._training)
        fraction = min(1.0, BINNED_ROWS / row_count)
        samples = [
            frame.sample(fraction=fraction, seed=number)
            for number, frame in enumerate(self._iter_frames(self._training))
        ]
        sample = self._add_side_columns(pl.concat(samples))
        return {name: make_bins(sample[name], kind, self._settings.drift) for name, kind in self.compared.items()}

    def _iter_slices(self, days: Collection[date]) -> Iterator[tuple[date, pl.DataFrame]]:
        for frame in self._iter_frames(days):
            for rows in frame.iter_slices(_SLICE_ROWS):
                yield rows[Columns.DAY][0], self._add_side_columns(rows)

    def _iter_frames(self, days: Collection[date]) -> Iterator[pl.DataFrame]:
        keys = [table.key for table in self._data.side_tables]
        key_columns = (Columns.IMPRESSION, Columns.DAY, Columns.TIME, Columns.LABEL, self._data.user, *keys)
        columns = list(dict.fromkeys(name for name in (*key_columns, *log_columns(self._data)) if name))
        if SLATE_SIZE not in self.compared:
            for path in self._table.paths(set(days)):
                yield pl.read_parquet(path, columns=columns, hive_partitioning=False)
            return
        slate_size = pl.len().over(SLATE).cast(pl.Float64).alias(SLATE_SIZE)
        for day in self._table.days:
            if day.day in days:
                yield from (rows.with_columns(slate_size).drop(SLATE) for rows in
                            whole_slates(self._table, day, self._data, columns) if rows.height)  # fmt: skip

    def _add_side_columns(self, rows: pl.DataFrame) -> pl.DataFrame:
        return empty_as_null(with_side_columns(rows, self._data, self._log))

    def _with_user_hash(self, day: date, rows: pl.DataFrame) -> pl.DataFrame:
        user = pl.lit(None, pl.String) if self._data.user is None else pl.col(self._data.user).cast(pl.String)
        with_user = rows.with_columns(user.alias(Columns.USER))
        # A row without a user is a user of its own.
        user_hash = pl.coalesce(Columns.USER, pl.format("row {}", Columns.IMPRESSION)).hash(seed=0).alias(_USER_HASH)
        row_columns = Columns.IMPRESSION, Columns.DAY, Columns.TIME, Columns.USER, Columns.LABEL
        return with_user.select(user_hash, *row_columns, *self.compared)

    def _join_scores(self, sample: pl.DataFrame, scores: Mapping[str, Path]) -> pl.DataFrame:
        for model, path in scores.items():
            scored = pl.scan_parquet(scores_file(path)).select(
                Columns.IMPRESSION, pl.col(SCORE).alias(f"score:{model}")
            )
            sampled = sample.lazy().select(Columns.IMPRESSION)
            model_scores = scored.join(sampled, on=Columns.IMPRESSION, how="semi").collect(engine="streaming")
            sample = sample.join(model_scores, on=Columns.IMPRESSION, how="left", maintain_order="left")
        return sample.drop(Columns.IMPRESSION)
