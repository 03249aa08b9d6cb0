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
from shortlist.features.feast_store_location import FeastStoreLocation
from shortlist.features.feature_kind import FeatureKind
from shortlist.features.plan import Plan
from shortlist.features.preprocessing import Preprocessing
from shortlist.features.previous_fit import DayRange
from shortlist.features.view_index import View, ViewIndex
from shortlist.storage.artefacts import read_json

_THERE = ":there"
_NOW = ":now"


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DayChange(_Record):
    """A day, before and after; None where it was not in the log, or is not known."""

    day: date
    rows_before: int | None
    rows_after: int | None
    quarantined_before: int | None
    quarantined_after: int | None
    counted_again: bool


class ColumnChange(_Record):
    """A column of a view: its values that servers read at one moment, before and after."""

    view: str
    column: str
    keys: int
    """That have a value before or after."""
    changed: int
    """Of these, those with another value; new keys and keys that are gone are among them."""
    largest: float | None
    """Largest absolute difference of a number that is there before and after; None for texts, lists and vectors."""
    mean: float | None
    """Mean absolute difference of those that differ; None when none does."""
    features: tuple[str, ...]
    """The declared features that read it."""


class ReadBy(_Record):
    """A registered model that reads changed features."""

    version: int
    model: str
    alias: str
    features: tuple[str, ...]


class FeatureChanges(_Record):
    """All that a backfill changes."""

    first: date
    last: date
    at: datetime
    """The moment as of which values are compared: that of what servers read."""
    days: tuple[DayChange, ...]
    """Those of the range, and those that were counted again."""
    columns: tuple[ColumnChange, ...]
    """Every column of every view."""
    history_rows: dict[str, int]
    """View -> rows of its history, which training reads, that are new, gone or different."""
    read_by: tuple[ReadBy, ...] = ()

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
        """Give all of it for people."""
        again = sum(day.counted_again for day in self.days)
        yield f"Backfill {self.first}..{self.last}: {again} day(s) were counted again."
        if again:
            yield f"  {'day':<12}{'rows before':>14}{'now':>12}{'quarantined before':>22}{'now':>12}"
        for day in self.days:
            if day.counted_again:
                numbers = day.rows_before, day.rows_after, day.quarantined_before, day.quarantined_after
                shown = ("unknown" if number is None else f"{number:,}" for number in numbers)
                yield f"  {day.day!s:<12}" + "".join(f"{x:>{w}}" for x, w in zip(shown, (14, 12, 22, 12), strict=True))
        if not self.changed:
            yield f"No value that servers read as of {self.at:%Y-%m-%d %H:%M} UTC changes."
        for one in self.changed:
            size = (
                ""
                if one.largest is None or one.mean is None
                else f", by up to {one.largest:g}, {one.mean:g} on average"
            )
            read = f"; read by {', '.join(one.features)}" if one.features else ""
            yield (
                f"  {one.view}:{one.column} changes for {one.changed:,} of {one.keys:,} keys"
                f" ({one.changed / one.keys:.1%}){size}{read}"
            )
        for view, rows in self.history_rows.items():
            if rows:
                yield f"  {view}: {rows:,} rows of its history change, which trainings read"
        for model in self.read_by:
            yield f"Version {model.version} ({model.model}, {model.alias}) reads {', '.join(model.features)}."


def compare_fits(before: Path, after: Path, corrected: DayRange, at: datetime) -> FeatureChanges:
    """Return what is different between two fits of the same declaration.

    Args:
        before: Folder of the earlier fit.
        after: Folder of the later one.
        corrected: The range that was counted again.
        at: The moment as of which served values are compared.
    """
    then, now = (ViewIndex.read(folder / "views") for folder in (before, after))
    planned = Preprocessing.load(after).plan
    readers = _readers(planned)
    known = {view.name: view for view in then.views}
    columns = tuple(
        column for view in now.views if view.name in known for column in _columns(view, then, now, at, readers)
    )
    moved = {view.name: _history(view, then, now) for view in now.views if view.name in known and not view.static}
    days = tuple(_days(read_json(before / Files.FEATURES), read_json(after / Files.FEATURES), corrected))
    return FeatureChanges(
        first=corrected.first, last=corrected.last, at=at, days=days, columns=columns, history_rows=moved
    )


def served_until(place: FeastStoreLocation) -> datetime:
    """Return the moment as of which servers read features.

    Raises:
        IntegrityError: None were published.
    """
    return datetime.fromisoformat(place.expected()["until"])


def _days(before: dict[str, Any], after: dict[str, Any], corrected: DayRange) -> Iterator[DayChange]:
    for text in sorted({*before["days"], *after["days"]}):
        then, now = (each["days"].get(text, {}) for each in (before, after))
        again = then.get("digest") != now.get("digest")
        if again or corrected.has(date.fromisoformat(text)):
            refused = (each["quarantined"].get(text, 0) if "quarantined" in each else None for each in (before, after))
            yield DayChange(
                day=date.fromisoformat(text), rows_before=then.get("rows"), rows_after=now.get("rows"),
                quarantined_before=next(refused), quarantined_after=next(refused), counted_again=again,
            )  # fmt: skip


def _columns(
    view: View, then: ViewIndex, now: ViewIndex, at: datetime, readers: dict[str, tuple[str, ...]]
) -> Iterator[ColumnChange]:
    left, right = (index.snapshot(view.name, at).with_columns(pl.lit(True).alias(_THERE)) for index in (then, now))
    both = left.join(right, on=view.key_names, how="full", coalesce=True, nulls_equal=True, suffix=_NOW)
    one_sided = pl.col(_THERE).is_null() | pl.col(_THERE + _NOW).is_null()
    for feature in view.features:
        was, became = pl.col(feature.name), pl.col(feature.name + _NOW)
        number = feature.dtype in ("Int64", "Float64")
        differs = was.ne_missing(became) if not feature.dtype.startswith("List") else _other_list(was, became)
        differing = both.filter(one_sided | differs)
        sizes = np.empty(0)
        if number:
            moved = differing.select((became.cast(pl.Float64) - was.cast(pl.Float64)).abs()).to_series()
            sizes = moved.drop_nulls().drop_nans().to_numpy()
        yield ColumnChange(
            view=view.name, column=feature.name, keys=both.height, changed=differing.height,
            largest=float(sizes.max()) if len(sizes) else None, mean=float(sizes.mean()) if len(sizes) else None,
            features=readers.get(f"{view.name}:{feature.name}", ()),
        )  # fmt: skip


def _other_list(was: pl.Expr, became: pl.Expr) -> pl.Expr:
    return was.cast(pl.List(pl.String)).list.join(",").ne_missing(became.cast(pl.List(pl.String)).list.join(","))


def _history(view: View, then: ViewIndex, now: ViewIndex) -> int:
    names = [*view.key_names, Columns.VALID_FROM, *view.feature_names]
    old, new = (pl.scan_parquet(index.path(view)).select(names) for index in (then, now))
    gone, came = (
        one.join(other, on=names, how="anti", nulls_equal=True).select(pl.len()).collect(engine="streaming").item()
        for one, other in ((old, new), (new, old))
    )
    return max(int(gone), int(came))


def _readers(planned: Plan) -> dict[str, tuple[str, ...]]:
    """Return the declared features that read each column of a view."""
    found: dict[str, list[str]] = {}
    for feature in planned.features:
        for column in dict.fromkeys(_read(feature, planned)):
            found.setdefault(column, []).extend(feature.outputs)
    return {column: tuple(names) for column, names in found.items()}


def _read(feature: FeatureKind, planned: Plan) -> Iterator[str]:
    declared = planned.declared
    yield from (declared.place(name) for name in feature.reads if declared.owner(name) is not None)
    views: Sequence[Any] = (*feature.views(declared), *feature.means(declared))
    yield from (f"{view.name}:{column}" for view in views for column in view.features)
