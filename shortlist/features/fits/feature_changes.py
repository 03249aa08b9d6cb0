"""What a backfill changes: rows of days, and values of features that servers read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from pydantic import BaseModel, ConfigDict

from shortlist.contracts import Columns, Files
from shortlist.features.declared.feature_interfaces import DerivingFeature, MeanVectorFeature
from shortlist.features.declared.feature_kind import FeatureKind
from shortlist.features.declared.plan import Plan
from shortlist.features.feast.feast_store_location import FeastStoreLocation
from shortlist.features.fits.previous_fit import DayRange
from shortlist.features.rows.preprocessing import Preprocessing
from shortlist.features.stored_views.view_index import StoredView, ViewIndex
from shortlist.storage.artefacts import read_json

_PRESENT = ":there"
_NEW_SUFFIX = ":now"


class _ChangeRecord(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DayChange(_ChangeRecord):
    """A day, before and after; None where it was not in the log, or is not known."""

    day: date
    rows_before: int | None
    rows_after: int | None
    quarantined_before: int | None
    quarantined_after: int | None
    counted_again: bool


class ColumnChange(_ChangeRecord):
    """A column of a view: its values that servers read at one moment, before and after."""

    view: str
    column: str
    keys: int
    """Keys that have a value before or after."""
    changed: int
    """Keys whose value differs, new and removed keys among them."""
    largest: float | None
    """Largest absolute difference of a number before and after; None for texts, lists and vectors."""
    mean: float | None
    """Mean absolute difference of the numbers that differ; None when none does."""
    features: tuple[str, ...]
    """The declared features that read it."""


class AffectedModel(_ChangeRecord):
    """A registered model that reads changed features."""

    version: int
    model: str
    alias: str
    features: tuple[str, ...]


class FeatureChanges(_ChangeRecord):
    """The report of a backfill: changed days, columns, histories and models."""

    first: date
    last: date
    at: datetime
    """The moment as of which values are compared, which is that of the served features."""
    days: tuple[DayChange, ...]
    """Days of the range, and days that were counted again."""
    columns: tuple[ColumnChange, ...]
    """Every column of every view."""
    history_rows: dict[str, int]
    """Rows that are new, removed or different in each view's history, which training reads."""
    read_by: tuple[AffectedModel, ...] = ()

    @property
    def changed(self) -> tuple[ColumnChange, ...]:
        """The columns with changed values."""
        return tuple(column for column in self.columns if column.changed)

    @property
    def features(self) -> tuple[str, ...]:
        """The declared features that read a changed column, or a view whose history changed."""
        views = {name for name, rows in self.history_rows.items() if rows}
        columns = (column for column in self.columns if column.changed or column.view in views)
        return tuple(dict.fromkeys(name for column in columns for name in column.features))

    def lines(self) -> Iterator[str]:
        """Yield the report as lines of text."""
        recounted_days = sum(day.counted_again for day in self.days)
        yield f"Backfill {self.first}..{self.last}: {recounted_days} day(s) were counted again."
        if recounted_days:
            yield f"  {'day':<12}{'rows before':>14}{'now':>12}{'quarantined before':>22}{'now':>12}"
        for day in self.days:
            if day.counted_again:
                numbers = day.rows_before, day.rows_after, day.quarantined_before, day.quarantined_after
                formatted = ("unknown" if number is None else f"{number:,}" for number in numbers)
                yield f"  {day.day!s:<12}" + "".join(
                    f"{text:>{width}}" for text, width in zip(formatted, (14, 12, 22, 12), strict=True)
                )
        if not self.changed:
            yield f"No value that servers read as of {self.at:%Y-%m-%d %H:%M} UTC changes."
        for column_change in self.changed:
            size = (
                ""
                if column_change.largest is None or column_change.mean is None
                else f", by up to {column_change.largest:g}, {column_change.mean:g} on average"
            )
            readers = f"; read by {', '.join(column_change.features)}" if column_change.features else ""
            yield (
                f"  {column_change.view}:{column_change.column} changes for {column_change.changed:,} of"
                f" {column_change.keys:,} keys ({column_change.changed / column_change.keys:.1%}){size}{readers}"
            )
        for view, rows in self.history_rows.items():
            if rows:
                yield f"  {view}: {rows:,} rows of its history change, which trainings read"
        for model in self.read_by:
            yield f"Version {model.version} ({model.model}, {model.alias}) reads {', '.join(model.features)}."


def compare_fits(old_fit: Path, new_fit: Path, corrected: DayRange, at: datetime) -> FeatureChanges:
    """Return the differences between two fits of the same declaration.

    Args:
        old_fit: Folder of the earlier fit.
        new_fit: Folder of the later one.
        corrected: The range of days that was counted again.
        at: The moment as of which served values are compared.
    """
    old_index, new_index = (ViewIndex.read(folder / "views") for folder in (old_fit, new_fit))
    planned = Preprocessing.load(new_fit).plan
    readers = _readers(planned)
    old_views = {view.name: view for view in old_index.views}
    columns = tuple(
        column
        for view in new_index.views
        if view.name in old_views
        for column in _column_changes(view, old_index, new_index, at, readers)
    )
    history_rows = {
        view.name: _count_history_changes(view, old_index, new_index)
        for view in new_index.views
        if view.name in old_views and not view.static
    }
    days = tuple(_day_changes(read_json(old_fit / Files.FEATURES), read_json(new_fit / Files.FEATURES), corrected))
    return FeatureChanges(
        first=corrected.first, last=corrected.last, at=at, days=days, columns=columns, history_rows=history_rows
    )


def served_until(location: FeastStoreLocation) -> datetime:
    """Return the moment as of which servers read features.

    Raises:
        IntegrityError: No features were published.
    """
    return datetime.fromisoformat(location.require_announcement()["until"])


def _day_changes(old_notes: dict[str, Any], new_notes: dict[str, Any], corrected: DayRange) -> Iterator[DayChange]:
    for day_text in sorted({*old_notes["days"], *new_notes["days"]}):
        old_day, new_day = (notes["days"].get(day_text, {}) for notes in (old_notes, new_notes))
        is_recounted = old_day.get("digest") != new_day.get("digest")
        if is_recounted or corrected.contains(date.fromisoformat(day_text)):
            quarantined = (
                notes["quarantined"].get(day_text, 0) if "quarantined" in notes else None
                for notes in (old_notes, new_notes)
            )
            yield DayChange(
                day=date.fromisoformat(day_text), rows_before=old_day.get("rows"), rows_after=new_day.get("rows"),
                quarantined_before=next(quarantined), quarantined_after=next(quarantined), counted_again=is_recounted,
            )  # fmt: skip


def _column_changes(
    view: StoredView, old_index: ViewIndex, new_index: ViewIndex, at: datetime, readers: dict[str, tuple[str, ...]]
) -> Iterator[ColumnChange]:
    old_values, new_values = (
        index.snapshot(view.name, at).with_columns(pl.lit(True).alias(_PRESENT)) for index in (old_index, new_index)
    )
    joined = old_values.join(
        new_values, on=view.key_names, how="full", coalesce=True, nulls_equal=True, suffix=_NEW_SUFFIX
    )
    one_sided = pl.col(_PRESENT).is_null() | pl.col(_PRESENT + _NEW_SUFFIX).is_null()
    for feature in view.features:
        old, new = pl.col(feature.name), pl.col(feature.name + _NEW_SUFFIX)
        is_number = feature.dtype in ("Int64", "Float64")
        differs = old.ne_missing(new) if not feature.dtype.startswith("List") else _list_differs(old, new)
        differing = joined.filter(one_sided | differs)
        sizes = np.empty(0)
        if is_number:
            differences = differing.select((new.cast(pl.Float64) - old.cast(pl.Float64)).abs()).to_series()
            sizes = differences.drop_nulls().drop_nans().to_numpy()
        yield ColumnChange(
            view=view.name, column=feature.name, keys=joined.height, changed=differing.height,
            largest=float(sizes.max()) if len(sizes) else None, mean=float(sizes.mean()) if len(sizes) else None,
            features=readers.get(f"{view.name}:{feature.name}", ()),
        )  # fmt: skip


def _list_differs(old: pl.Expr, new: pl.Expr) -> pl.Expr:
    return old.cast(pl.List(pl.String)).list.join(",").ne_missing(new.cast(pl.List(pl.String)).list.join(","))


def _count_history_changes(view: StoredView, old_index: ViewIndex, new_index: ViewIndex) -> int:
    names = [*view.key_names, Columns.VALID_FROM, *view.feature_names]
    old_rows, new_rows = (pl.scan_parquet(index.path(view)).select(names) for index in (old_index, new_index))
    removed, added = (
        left_rows.join(right_rows, on=names, how="anti", nulls_equal=True)
        .select(pl.len())
        .collect(engine="streaming")
        .item()
        for left_rows, right_rows in ((old_rows, new_rows), (new_rows, old_rows))
    )
    return max(int(removed), int(added))


def _readers(planned: Plan) -> dict[str, tuple[str, ...]]:
    """Return the declared features that read each column of a view."""
    features_by_column: dict[str, list[str]] = {}
    for feature in planned.features:
        for column in dict.fromkeys(_columns_read(feature, planned)):
            features_by_column.setdefault(column, []).extend(feature.outputs)
    return {column: tuple(names) for column, names in features_by_column.items()}


def _columns_read(feature: FeatureKind, planned: Plan) -> Iterator[str]:
    declared = planned.declared
    yield from (declared.row_column(name) for name in feature.reads if declared.side_table_of(name) is not None)
    if isinstance(feature, DerivingFeature):
        yield from (column.row_column(declared) for column in feature.derived_columns())
    mean_views = feature.mean_views(declared) if isinstance(feature, MeanVectorFeature) else ()
    views: Sequence[Any] = (*feature.views(declared), *mean_views)
    yield from (f"{view.name}:{column}" for view in views for column in view.features)
