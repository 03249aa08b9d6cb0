"""The steps of a fit, each writing its part of the artefact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

import polars as pl

from shortlist.artefacts import write_json
from shortlist.config.runtime import Runtime
from shortlist.features.counting import DayRecord, LogCounter
from shortlist.features.earlier import Earlier
from shortlist.features.histories import Histories
from shortlist.features.keyed import KeyedView
from shortlist.features.lookup import ViewFile
from shortlist.features.plan import Plan, View
from shortlist.features.ranges import write_frames
from shortlist.features.statics import always, write_static
from shortlist.features.view_index import INDEX, ViewColumn, ViewIndex
from shortlist.features.view_index import View as IndexedView
from shortlist.features.views import ViewSize, ViewWriter, day_file, history_file
from shortlist.features.vocabulary import build_vocabulary, write_vocabulary
from shortlist.progress import progress
from shortlist.tables import DayTable


@dataclass(frozen=True)
class Fitting:
    """Writes a fitted artefact, step by step, into one folder."""

    plan: Plan
    runtime: Runtime
    log: DayTable
    out: Path

    @property
    def scratch(self) -> Path:
        """Folder of what is gone at the end."""
        return self.out / "scratch"

    @property
    def statistics(self) -> Path:
        """Folder of what was counted per day."""
        return self.out / "statistics"

    @property
    def side(self) -> Path:
        """Folder of the log's side tables."""
        return self.log.folder / "side"

    def write_statics(self) -> dict[str, ViewSize]:
        """Write the views that hold always; return their sizes by name."""
        sizes = {}
        for view in self.plan.statics:
            path = self._file(view)
            sizes[view.name] = write_static(view, self.side, path, self.plan.declared, self.runtime.chunk_rows)
        for mean in self.plan.means:
            means = self._histories().mean_vectors(mean)
            rows = write_frames(self._file(mean), (each.select(*mean.keys, always(), *mean.features) for each in means))
            sizes[mean.name] = ViewSize(rows, rows)
        return sizes

    def count(self, earlier: Earlier) -> dict[date, DayRecord]:
        """Write the statistics of every day that was not counted earlier; return the records of all days.

        Raises:
            MisfitError: The earlier fit is no beginning of this one.
        """
        earlier.refuse_changed_sides(self.plan, self.out / "views", self.log)
        earlier.copy_statistics(self.plan, self.statistics)
        counter = LogCounter(
            self.plan,
            self.log,
            self._sides(),
            self.statistics,
            self.scratch,
            self.runtime.chunk_rows,
            self.runtime.engine,
        )
        new = [part for part in self.log.days if part.day not in earlier.records]
        records = dict(earlier.records)
        with progress("counting days", sum(part.rows for part in new)) as advance:
            for part in new:
                records[part.day] = counter.count_day(part, advance)
        return dict(sorted(records.items()))

    def write_vocabularies(self, days: Sequence[date], previous: Path | None) -> None:
        """Write the vocabularies of the values seen on some days."""
        with progress("vocabularies", len(self.plan.vocabularies), "columns") as advance:
            for setting in self.plan.vocabularies:
                (name,) = setting.each
                key = self.plan.declared.key((name,))
                counted = [day_file(self.statistics, f"by_{key[0]}", day) for day in days]
                built = build_vocabulary(counted, key[0], setting, self.runtime.chunk_rows, self.runtime.engine)
                file = Path("vocabularies") / f"{name}.parquet"
                write_vocabulary(self.out / file, built, previous / file if previous is not None else None)
                advance(1, name)

    def write_keyed(self, days: Sequence[date]) -> dict[str, ViewSize]:
        """Write the point-in-time views; return their sizes by name."""
        keyed = [view for view in self.plan.counted if view.looked_up]
        writer = ViewWriter(
            self.statistics, days, self.plan.declared.timezone, self.runtime.chunk_rows * 2, self.runtime.engine
        )
        sizes = {}
        with progress("views", len(keyed), "views") as advance:
            for view in keyed:
                for history in view.histories:
                    self._histories().write_count(view, history, history_file(self.statistics, view.name, history))
                sizes[view.name] = writer.write(view, self._file(view))
                advance(1, view.name)
        return sizes

    def _histories(self) -> Histories:
        return Histories(self.plan.declared, self.side, self.scratch, self.runtime.chunk_rows, self.runtime.engine)

    def _sides(self) -> list[ViewFile]:
        """The side tables' columns that are counted, without the vectors and texts that are not."""
        read = self.plan.read_for_counting
        sides = []
        for view in self.plan.statics:
            wanted = tuple(name for name in view.features if name in read)
            if wanted:
                path = self._file(view)
                counted = replace(view, features=wanted)
                sides.append(ViewFile(path, counted, 0, self.plan.declared.timezone, self.runtime.engine))
        return sides

    def write_index(self, sizes: Mapping[str, ViewSize], days: Sequence[date]) -> None:
        """Write `views.json`."""
        index = ViewIndex(
            folder=self.out / "views",
            views=tuple(self._indexed(view, sizes[view.name]) for view in self.plan.views),
            first_day=min(days),
            last_day=max(days),
            timezone=self.plan.declared.timezone,
        )
        (self.out / "views").mkdir(exist_ok=True)  # a log without keys has no view
        write_json(self.out / "views" / INDEX, index.model_dump(mode="json"))

    def _indexed(self, view: View, size: ViewSize) -> IndexedView:
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

    def _file(self, view: View) -> Path:
        return self.out / "views" / f"{view.name}.parquet"
