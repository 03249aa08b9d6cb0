"""The steps of a fit, each writing its part of the artefact."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from functools import partial
from pathlib import Path

import polars as pl

from shortlist.features.counts.integer_count import is_large
from shortlist.features.counts.keyed import KeyedView
from shortlist.features.counts.vocabulary import VocabularyLimits, build_vocabulary, write_vocabulary
from shortlist.features.declared.feature_interfaces import TrainedFeature
from shortlist.features.declared.plan import Plan, PlannedView
from shortlist.features.declared.static_view_plan import StaticView
from shortlist.features.declared.training_log import LEARNT, TrainingLog
from shortlist.features.fits.counted_days import STATISTICS
from shortlist.features.fits.counting import DayRecord, LogCounter
from shortlist.features.fits.partitioned_counts import CountedLog, count_partitioned
from shortlist.features.stored_views.lookup import ViewFile
from shortlist.features.stored_views.partitioned_views import build_vocabularies, write_views
from shortlist.features.stored_views.static_views import static_valid_from, write_static
from shortlist.features.stored_views.user_histories import UserHistories
from shortlist.features.stored_views.view_index import INDEX, ViewColumn, ViewIndex
from shortlist.features.stored_views.view_index import StoredView as IndexedView
from shortlist.features.stored_views.views import ViewSize, ViewWriter, day_file, history_file
from shortlist.features.values.parallel_map import parallel_map, workers
from shortlist.features.values.ranges import write_frames
from shortlist.spec.runtime import Runtime
from shortlist.spec.split import SplitDays
from shortlist.storage.artefacts import write_json
from shortlist.storage.side_tables import SIDE_FOLDER
from shortlist.storage.tables import DayTable
from shortlist.system.partitions import InProcess, PartitionEngine
from shortlist.system.progress import progress


@dataclass(frozen=True)
class Fitting:
    """Writes a fitted artefact, step by step, into one folder."""

    plan: Plan
    runtime: Runtime
    log: DayTable
    out: Path
    partitions: PartitionEngine = field(default_factory=InProcess)

    @property
    def scratch(self) -> Path:
        """Folder of temporary files."""
        return self.out / "scratch"

    @property
    def statistics(self) -> Path:
        """Folder of the statistics per day."""
        return self.out / STATISTICS

    @property
    def views(self) -> Path:
        """Folder of the views."""
        return self.out / "views"

    @property
    def side(self) -> Path:
        """Folder of the log's side tables."""
        return self.log.folder / SIDE_FOLDER

    def write_side_tables(self, views: Sequence[StaticView]) -> dict[str, ViewSize]:
        """Write views of side tables; return their sizes by name."""
        declared, rows = self.plan.declared, self.runtime.chunk_rows
        return {view.name: write_static(view, self.side, self._file(view), declared, rows) for view in views}

    def write_mean_views(self) -> dict[str, ViewSize]:
        """Write the mean vectors of users' lists; return their sizes by name."""
        sizes = {}
        for mean_view in self.plan.mean_views:
            mean_frames = self._histories().mean_vectors(mean_view)
            rows = write_frames(
                self._file(mean_view),
                (frame.select(*mean_view.keys, static_valid_from(), *mean_view.features) for frame in mean_frames),
            )
            sizes[mean_view.name] = ViewSize(rows, rows)
        return sizes

    def count(self, days: Collection[date]) -> dict[date, DayRecord]:
        """Write the statistics of some days of the log; return their records.

        The side tables with columns to be counted must have been written.
        """
        days_to_count = [part for part in self.log.days if part.day in days]
        if self.partitions.partitions > 1:
            counted_log = CountedLog(
                self.plan, self.log.folder, self.views, self.runtime.chunk_rows, self.runtime.engine
            )
            return count_partitioned(self.partitions, counted_log, days_to_count, self.statistics)
        engine, timezone = self.runtime.engine, self.plan.declared.timezone
        sides = [ViewFile(self._file(view), view, 0, timezone, engine) for view in self.plan.counted_sides]
        rows = self.runtime.chunk_rows
        counter = LogCounter(self.plan, self.log, sides, self.statistics, self.scratch, rows, engine)
        with progress("counting days", sum(part.rows for part in days_to_count)) as advance:
            return counter.count(days_to_count, advance)

    def write_vocabularies(self, days: Sequence[date], previous: Path | None) -> None:
        """Write the vocabularies of the values seen on some days."""
        if self.partitions.partitions > 1:
            self._write_partitioned_vocabularies(days, previous)
            return
        rows = -(-self.runtime.chunk_rows // workers(self.runtime.engine))  # they share the memory
        write = partial(self._write_vocabulary, days=days, previous=previous, rows=rows)
        with progress("vocabularies", len(self.plan.vocabularies), "columns") as advance:
            for name in parallel_map(write, self.plan.vocabularies, self.runtime.engine):
                advance(1, name)

    def _write_vocabulary(
        self, limits: VocabularyLimits, days: Sequence[date], previous: Path | None, rows: int
    ) -> str:  # fmt: skip
        key, counted = self._statistics_of(limits, days)
        engine = self.runtime.engine
        vocabulary = build_vocabulary(counted, key, limits, rows, engine, compiled=self._is_compiled)
        self._save_vocabulary(limits, vocabulary, previous)
        return limits.column

    def _write_partitioned_vocabularies(self, days: Sequence[date], previous: Path | None) -> None:
        keys = [(limits, *self._statistics_of(limits, days)) for limits in self.plan.vocabularies]
        rows, engine = self.runtime.chunk_rows, self.runtime.engine
        vocabularies = build_vocabularies(self.partitions, keys, rows, engine, compiled=self._is_compiled)
        for limits, vocabulary in zip(self.plan.vocabularies, vocabularies, strict=True):
            self._save_vocabulary(limits, vocabulary, previous)

    def _statistics_of(self, limits: VocabularyLimits, days: Sequence[date]) -> tuple[str, list[Path]]:
        """Return the key of a vocabulary's column, and its statistics on some days."""
        (key,) = self.plan.declared.key((limits.column,))
        return key, [day_file(self.statistics, f"by_{key}", day) for day in days]

    @property
    def _is_compiled(self) -> bool:
        return is_large(self.log.rows, self.plan.counted_views, self.plan.declared, self.runtime.engine)

    def _save_vocabulary(self, limits: VocabularyLimits, vocabulary: pl.DataFrame, previous: Path | None) -> None:
        file = Path("vocabularies") / f"{limits.column}.parquet"
        write_vocabulary(self.out / file, vocabulary, previous / file if previous is not None else None)

    def write_trained(self, split: SplitDays, digests: Mapping[date, str], previous: Path | None) -> None:
        """Train the features that learn from the log, and write their models.

        Args:
            split: Split of the log's days.
            digests: Digest of the rows of every day.
            previous: An earlier fit, whose models are reused where nothing changed.
        """
        for feature in self.plan.features:
            if isinstance(feature, TrainedFeature):
                subfolder = Path(LEARNT) / feature.outputs[0]
                previous_folder = None if previous is None else previous / subfolder
                training_log = TrainingLog(
                    self.log,
                    self.plan.declared,
                    self.plan.tiles.delay,
                    split,
                    digests,
                    self.runtime.seed,
                    previous_folder,
                )
                (self.out / subfolder).mkdir(parents=True)
                feature.train(training_log, self.out / subfolder)

    def write_keyed(self, days: Sequence[date]) -> dict[str, ViewSize]:
        """Write the point-in-time views; return their sizes by name."""
        keyed = [view for view in self.plan.counted_views if view.looked_up]
        writer = ViewWriter(
            self.statistics, days, self.plan.declared.timezone, self.runtime.chunk_rows * 2, self.runtime.engine,
            self.plan.tiles.delay,
        )  # fmt: skip
        for view in keyed:
            for history in view.histories:
                self._histories().write_count(view, history, history_file(self.statistics, view.name, history))
        if self.partitions.partitions > 1:
            return write_views(self.partitions, writer, [(view, self._file(view)) for view in keyed])
        sizes = {}
        with progress("views", len(keyed), "views") as advance:
            for view in keyed:
                sizes[view.name] = writer.write(view, self._file(view))
                advance(1, view.name)
        return sizes

    def _histories(self) -> UserHistories:
        return UserHistories(self.plan.declared, self.side, self.scratch, self.runtime.chunk_rows, self.runtime.engine)

    def write_index(self, sizes: Mapping[str, ViewSize], days: Sequence[date]) -> None:
        """Write `views.json`."""
        index = ViewIndex(
            folder=self.views,
            views=tuple(self._index_view(view, sizes[view.name]) for view in self.plan.views),
            first_day=min(days),
            last_day=max(days),
            timezone=self.plan.declared.timezone,
            tile_seconds=self.plan.tiles.length // timedelta(seconds=1),
            delay_seconds=self.plan.tiles.delay // timedelta(seconds=1),
        )
        self.views.mkdir(exist_ok=True)  # a log without keys has no view
        write_json(self.views / INDEX, index.model_dump(mode="json"))

    def _index_view(self, view: PlannedView, size: ViewSize) -> IndexedView:
        path = self._file(view)
        schema = pl.read_parquet_schema(path)
        return IndexedView(
            name=view.name,
            keys=tuple(ViewColumn(name=name, dtype=str(schema[name])) for name in view.keys),
            features=tuple(ViewColumn(name=name, dtype=str(schema[name])) for name in view.features),
            path=path.name,
            static=not isinstance(view, KeyedView),
            rows=size.rows,
            newest_keys=size.newest_keys,
        )

    def _file(self, view: PlannedView) -> Path:
        return self.views / f"{view.name}.parquet"
