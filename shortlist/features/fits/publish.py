"""Publishing fitted views for serving: registered in Feast, materialised, and compared with the training table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import polars as pl

from shortlist.contracts import Columns, DataError, Files, NotMeasuredError
from shortlist.features.declared.slates import SLATE
from shortlist.features.feast.feast_store_location import FeastStoreLocation, feast_store_location
from shortlist.features.feast.materialised import MaterialisationRecord
from shortlist.features.feast.skew import FeatureSkewReport, check_skew
from shortlist.features.feast.store import apply, is_online_view
from shortlist.features.fits.previous_fit import newest_fit
from shortlist.features.rows.table_rows import read_day
from shortlist.features.rows.transform import Transformer
from shortlist.features.stored_views.view_index import ViewIndex
from shortlist.spec.runtime import Runtime
from shortlist.storage.artefacts import atomic_folder, sha256, write_json
from shortlist.storage.tables import DayPart, DayTable
from shortlist.system.progress import progress


def publish(  # noqa: PLR0913 - the sections and folders of one step
    project: str, store: Path | FeastStoreLocation, runtime: Runtime, rows: int, log: Path, fitted: Path,
    table: Path | None, out: Path, *, now: datetime | None = None, replaces: str = "",
) -> int:  # fmt: skip
    """Fill Feast up to what is known after the log's last day; write how its answers differ from the table.

    The online store is first filled to the moment as of which the newest rows of the training table are: that is what
    they were allowed to see, so there the two must agree. Then it is filled to the end, for serving.

    Args:
        project: Feast project.
        store: Location of its registry and online store.
        runtime: Online store, engine, seed.
        rows: Rows of all days, and again of the newest day, that are compared.
        log: The valid log.
        fitted: Folder of the fit.
        table: The feature table; None where only statistics changed. No gate follows then, so a difference is refused.
        out: Folder to write `skew.json` into.
        now: The present moment, where the log's newest day may not be over: tiles that are not complete, or whose
            outcomes are not known, stay out. Given or not, that holds where tiles are shorter than a day.
        replaces: Path or address of the served fit where this one replaces it, past values included: the store's other
            slot is filled while servers keep reading, and they switch at once. Empty: the served features are extended.

    Returns:
        Number of rows compared.

    Raises:
        NotMeasuredError: Answers differ because another run or refresh replaced the features while they were compared.
        DataError: There is no table and Feast's answers differ from the views, or another fit than `replaces` is
            served; servers keep the features that they have.
    """
    _check_served(store, replaces)
    transformer = Transformer.load(fitted, runtime.engine)
    declared = transformer.plan.declared
    days = DayTable.open(log, Files.LOG)
    newest_day = days.days[-1]
    tiles = transformer.tiles
    times = pl.scan_parquet(days.paths({newest_day.day}), hive_partitioning=False).select(pl.col(Columns.TIME).max())
    newest_time = times.collect().item()
    seen_until = tiles.known_at(newest_time)
    until = tiles.known_from(newest_day.day)
    if now is None and tiles.within_days:
        now = datetime.now(UTC)
    if now is not None and newest_time <= now:  # a generated log may hold future days
        until = min(until, tiles.known_at(now))
    with progress("feast", total=4, unit="steps") as advance:
        views = fitted / "views"
        location = _location_to_fill(feast_store_location(store), ViewIndex.read(views), declared.data.user, replaces)
        address = f"{location.publish(fitted, 'fits')}/views" if location.publishes else ""
        feast = apply(views, location, project, runtime.online_store, declared.data.user, address)
        advance(1, "registered")
        feast.materialize(seen_until)
        advance(1, "materialised to the newest rows")
        written = feast.written_views()
        sample = _sample(transformer, days, table, rows, runtime.seed)
        newest_sample = _compare_day(transformer, days, table, newest_day, rows, runtime.seed)
        report = check_skew(feast, sample.log, newest_sample.log, transformer.answer)
        advance(1, "compared")
        differing = report.historical_mismatches + report.online_mismatches
        if differing or not report.row_count_ok:
            _check_not_replaced(written, feast.written_views(), differing)
        if table is None and (differing or not report.row_count_ok):
            named = ", ".join(name for name, count in report.columns.items() if count)
            raise DataError(
                f"{differing} of {report.keys_checked} answers of Feast differ from the views ({named or 'lost rows'});"
                " servers keep the features that they have. A training fills the store anew"
            )
        feast.materialize(until)
        advance(1, "materialised to the end")
    _check_served(store, replaces)  # a refresh may have published meanwhile
    announce_views(views, location, until, log, counted_until=tiles.counted_until(until))
    with atomic_folder(out) as staging:
        write_json(staging / Files.SKEW, _with_features(report, sample, newest_sample).model_dump(mode="json"))
    return report.rows_checked


def announce_views(
    views: Path, store: Path | FeastStoreLocation, until: datetime, log: Path, counted_until: datetime | None = None
) -> None:
    """Write into the store which views servers read beside it; they notice when the file changes.

    Where servers are on other machines, the fit of the views and the log are published before: both are then addresses,
    as `shortlist.storage.objects.local_copy` reads them.

    Args:
        views: The folder of the views that the store was filled from.
        store: The store.
        until: The moment up to which it was filled.
        log: The valid log behind them; a replay plays its newest days.
        counted_until: The end of the newest tile that they count; `until` by default.
    """
    location = feast_store_location(store)
    fit = location.publish(views.parent, "fits")
    folders = {"views": f"{fit}#{views.name}" if location.publishes else str(views.resolve())}
    folders["log"] = location.publish(log, "logs")
    moments = {"until": until, "published": datetime.now(UTC), "counted_until": counted_until or until}
    digests = {path.name: sha256(path) for path in sorted(views.glob("*.parquet"))}
    slot = {"slot": location.slot} if location.slot else {}
    location.announce(
        {**folders, **slot, **{name: moment.isoformat() for name, moment in moments.items()}, "digests": digests}
    )


def _location_to_fill(
    location: FeastStoreLocation, views: ViewIndex, user: str | None, replaces: str
) -> FeastStoreLocation:
    """Return the location with the slot to fill: the served one unless past values must be replaced."""
    online = [view for view in views.views if is_online_view(view, user)]
    served = MaterialisationRecord(location.served_location, views)
    if not replaces or all(served.past_is_unchanged(view) for view in online):
        return location.served_location
    return location.spare_location


def _check_served(store: Path | FeastStoreLocation, replaces: str) -> None:
    served = newest_fit(store)
    if replaces and served != replaces:
        raise DataError(
            f"newer features were published while these were counted ({served}, not {replaces}); nothing of them is"
            " lost, and nothing of these is served. Run the backfill again"
        )


def _check_not_replaced(records_before: Mapping[str, Any], records_after: Mapping[str, Any], differing: int) -> None:
    """Refuse a comparison during which another process wrote the views; see `MaterialisationRecord.by_view`."""
    rewritten = [name for name, record in records_before.items() if records_after.get(name) != record]
    if not rewritten:
        return
    record = next((records_after[name] for name in rewritten if name in records_after), None)
    writer = f"from {record['views']}, {record['written']}" if record else "by a run or refresh that is not over"
    raise NotMeasuredError(
        f"gate 'skew' is not measured: the features in the online store were replaced meanwhile ({writer}), so"
        f" {differing} compared answers differ. The same command measures again"
    )


class _ComparedRows:
    """Rows of the log with their keys, and how often their recomputed features differ from the table's."""

    def __init__(self, log: pl.DataFrame, differing: dict[str, int]) -> None:
        self.log = log
        self.differing = differing


def _sample(transformer: Transformer, log: DayTable, table: Path | None, rows: int, seed: int) -> _ComparedRows:
    """Return rows spread evenly over all days, compared with the table; days with more rows make up for short ones."""
    per_day, missing_rows, compared_by_day = math.ceil(rows / len(log.days)), rows, dict[date, _ComparedRows]()
    for number, part in enumerate(sorted(log.days, key=lambda part: part.rows)):
        wanted_rows = max(per_day, math.ceil(missing_rows / (len(log.days) - number)))
        compared_by_day[part.day] = _compare_day(transformer, log, table, part, wanted_rows, seed)
        missing_rows -= compared_by_day[part.day].log.height
    compared_days = [compared_by_day[part.day] for part in log.days]
    differing: dict[str, int] = {}
    for compared in compared_days:
        for name, count in compared.differing.items():
            differing[name] = differing.get(name, 0) + count
    return _ComparedRows(pl.concat([compared.log for compared in compared_days]), differing)


def _compare_day(
    transformer: Transformer, log: DayTable, table: Path | None, part: DayPart, rows: int, seed: int
) -> _ComparedRows:
    """Return rows of one day, from one of its files, compared with the table; slate features need whole slates."""
    piece = _read_piece(transformer, log, part, seed)
    sampled_rows = piece.sample(min(rows, piece.height), seed=seed, shuffle=False)
    slate_rows = sampled_rows
    if SLATE in piece.columns:
        slate_rows = piece.join(sampled_rows.select(SLATE).unique(), SLATE, "semi", maintain_order="left")
    is_sampled = pl.col(Columns.IMPRESSION).is_in(sampled_rows[Columns.IMPRESSION].implode())
    looked_up = transformer.look_up(slate_rows, part.day).filter(is_sampled)
    if table is None:
        return _ComparedRows(_key_columns(transformer, looked_up), {})
    recomputed = transformer.compute(looked_up).with_columns(looked_up[Columns.IMPRESSION])
    built = DayTable.open(table, Files.TABLE).scan({part.day})
    stored = recomputed.select(Columns.IMPRESSION).join(
        built.filter(pl.col(Columns.IMPRESSION).is_in(sampled_rows[Columns.IMPRESSION].implode())).collect(),
        on=Columns.IMPRESSION,
        how="left",
        maintain_order="left",
    )
    features = [name for name in recomputed.columns if name != Columns.IMPRESSION]
    return _ComparedRows(
        _key_columns(transformer, looked_up),
        {name: _count_differences(recomputed[name], stored[name]) for name in features},
    )


def _read_piece(transformer: Transformer, log: DayTable, part: DayPart, seed: int) -> pl.DataFrame:
    """Return the rows of one of a day's files, or as many whole slates."""
    file_number = seed % len(part.files)
    if not transformer.plan.slates:
        file_part = part.model_copy(update={"files": (part.files[file_number],)})
        return next(read_day(log, file_part, transformer.plan))
    piece = pl.DataFrame()
    for piece_number, rows in enumerate(read_day(log, part, transformer.plan)):
        piece = rows if rows.height else piece
        if piece_number >= file_number and piece.height:
            break
    return piece


def _key_columns(transformer: Transformer, looked_up: pl.DataFrame) -> pl.DataFrame:
    declared = transformer.plan.declared
    names = {name for view in transformer.plan.views for name in view.keys} - {Columns.GLOBAL_KEY}
    return looked_up.select(
        Columns.DAY, Columns.TIME, *(pl.col(declared.row_column(name)).alias(name) for name in sorted(names))
    )


def _count_differences(first_values: pl.Series, second_values: pl.Series) -> int:
    if first_values.equals(second_values, null_equal=True):
        return 0
    differs = (
        first_values.ne_missing(second_values)
        if not first_values.dtype.is_nested()
        else first_values.cast(pl.String) != second_values.cast(pl.String)
    )
    return max(1, int(differs.sum()))


def _with_features(report: FeatureSkewReport, *parts: _ComparedRows) -> FeatureSkewReport:
    """Add the features that differ from the table's to the views' columns that differ from Feast's."""
    features = {name: sum(part.differing[name] for part in parts) for name in parts[0].differing}
    return report.model_copy(
        update={
            "historical_mismatches": report.historical_mismatches + sum(features.values()),
            "columns": {**report.columns, **features},
        }
    )
