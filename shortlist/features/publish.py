"""From fitted views to what serving reads: registered in Feast, materialised, and compared with the training table."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path

import polars as pl

from shortlist.contracts import Columns, Files
from shortlist.features.feast_store_location import FeastStoreLocation, feast_store_location
from shortlist.features.skew import SkewReport, check_skew
from shortlist.features.store import apply
from shortlist.features.transform import Transformer
from shortlist.spec.runtime import Runtime
from shortlist.storage.artefacts import atomic_folder, write_json
from shortlist.storage.tables import DayPart, DayTable
from shortlist.system.progress import progress


def publish(
    project: str, store: Path | FeastStoreLocation, runtime: Runtime, rows: int, log: Path, fitted: Path, table: Path,
    out: Path,
) -> int:  # fmt: skip
    """Bring Feast up to what is known after the log's last day, and write what its answers differ in from the table.

    The online store is first filled to the moment as of which the newest rows of the training table are: that is what
    they were allowed to see, so there the two must agree. Then it is filled to the end, for serving.

    Args:
        project: Feast project.
        store: Where its registry and online store are.
        runtime: Online store, engine, seed.
        rows: Rows of all days, and again of the newest day, that are compared.
        log: The valid log.
        fitted: What features were fitted to.
        table: The feature table.
        out: Folder to write `skew.json` into.

    Returns:
        Number of rows compared.
    """
    transformer = Transformer.load(fitted, runtime.engine)
    declared = transformer.plan.declared
    days = DayTable.open(log, Files.LOG)
    newest = days.days[-1]
    tiles = transformer.tiles
    times = pl.scan_parquet(days.paths({newest.day}), hive_partitioning=False).select(pl.col(Columns.TIME).max())
    seen = tiles.known_at(times.collect().item())
    until = tiles.known_after(newest.day)
    with progress("feast", total=4, unit="steps") as advance:
        place, views = feast_store_location(store), fitted / "views"
        address = f"{place.publish(fitted, 'fits')}/views" if place.shares else ""
        feast = apply(views, place, project, runtime.online_store, declared.data.user, address)
        advance(1, "registered")
        feast.materialize(seen)
        advance(1, "materialised to the newest rows")
        sample = _sample(transformer, days, table, rows, runtime.seed)
        current = _rows_of(transformer, days, table, newest, rows, runtime.seed)
        report = check_skew(feast, sample.log, current.log, transformer.answer)
        advance(1, "compared")
        feast.materialize(until)
        advance(1, "materialised to the end")
    announce_views(views, place, until, log)
    with atomic_folder(out) as staging:
        write_json(staging / Files.SKEW, _with_features(report, sample, current).model_dump(mode="json"))
    return report.rows_checked


def announce_views(views: Path, store: Path | FeastStoreLocation, until: datetime, log: Path) -> None:
    """Write into the store which views servers read beside it; they notice when the file changes.

    Where servers are elsewhere, the fit that the views belong to and the log are published before: both are addresses
    then, as `shortlist.storage.objects.local_copy` reads them.

    Args:
        views: The folder of the views that the store was filled from.
        store: The store.
        until: The moment up to which it was filled.
        log: The valid log behind them; a replay plays its newest days.
    """
    place = feast_store_location(store)
    fit = place.publish(views.parent, "fits")
    folders = {"views": f"{fit}#{views.name}" if place.shares else str(views.resolve())}
    folders["log"] = place.publish(log, "logs")
    moments = {"until": until.isoformat(), "published": datetime.now(UTC).isoformat()}
    place.announce({**folders, **moments})


class _Compared:
    """Rows of the log with their keys, and how often their features, made again, differ from the table's."""

    def __init__(self, log: pl.DataFrame, differing: dict[str, int]) -> None:
        self.log = log
        self.differing = differing


def _sample(transformer: Transformer, log: DayTable, table: Path, rows: int, seed: int) -> _Compared:
    """Rows spread evenly over all days."""
    per_day = math.ceil(rows / len(log.days))
    parts = [_rows_of(transformer, log, table, part, per_day, seed) for part in log.days]
    differing: dict[str, int] = {}
    for part in parts:
        for name, count in part.differing.items():
            differing[name] = differing.get(name, 0) + count
    return _Compared(pl.concat([part.log for part in parts]), differing)


def _rows_of(transformer: Transformer, log: DayTable, table: Path, part: DayPart, rows: int, seed: int) -> _Compared:
    """Rows of one day, from one of its files."""
    file = part.files[seed % len(part.files)]
    whole = pl.read_parquet(log.folder / file, hive_partitioning=False)
    chosen = whole.sample(min(rows, whole.height), seed=seed, shuffle=False)
    looked_up = transformer.look_up(chosen, part.day)
    again = transformer.compute(looked_up).with_columns(looked_up[Columns.IMPRESSION])
    built = DayTable.open(table, Files.TABLE).scan({part.day})
    stored = again.select(Columns.IMPRESSION).join(
        built.filter(pl.col(Columns.IMPRESSION).is_in(chosen[Columns.IMPRESSION].implode())).collect(),
        on=Columns.IMPRESSION,
        how="left",
        maintain_order="left",
    )
    features = [name for name in again.columns if name != Columns.IMPRESSION]
    return _Compared(_keys(transformer, looked_up), {name: _unequal(again[name], stored[name]) for name in features})


def _keys(transformer: Transformer, looked_up: pl.DataFrame) -> pl.DataFrame:
    declared = transformer.plan.declared
    names = {name for view in transformer.plan.views for name in view.keys} - {Columns.EVERYTHING}
    return looked_up.select(
        Columns.DAY, Columns.TIME, *(pl.col(declared.place(name)).alias(name) for name in sorted(names))
    )


def _unequal(left: pl.Series, right: pl.Series) -> int:
    if left.equals(right, null_equal=True):
        return 0
    different = left.ne_missing(right) if not left.dtype.is_nested() else left.cast(pl.String) != right.cast(pl.String)
    return max(1, int(different.sum()))


def _with_features(report: SkewReport, *parts: _Compared) -> SkewReport:
    """Add the features that differ from the table's to the views' columns that differ from Feast's."""
    features = {name: sum(part.differing[name] for part in parts) for name in parts[0].differing}
    return report.model_copy(
        update={
            "historical_mismatches": report.historical_mismatches + sum(features.values()),
            "columns": {**report.columns, **features},
        }
    )
