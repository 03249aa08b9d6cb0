"""The index of the views of a fit, `views.json`: the keys, features and file of every view."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Final, Literal, Self
from zoneinfo import ZoneInfo

import polars as pl
from pydantic import BaseModel, ConfigDict, Field

from shortlist.contracts import Columns, ShortlistError, did_you_mean
from shortlist.features.counts.tiles import Tiles, start_of
from shortlist.storage.artefacts import read_json

INDEX: Final = "views.json"

# Feast keeps timestamps in whole seconds, and takes no null inside a list: times are Int64 microseconds.
ViewType = Literal["Int64", "Float64", "String", "List(Int64)", "List(String)", "List(Float32)"]

_POLARS: Final[dict[str, pl.DataType]] = {
    "Int64": pl.Int64(),
    "Float64": pl.Float64(),
    "String": pl.String(),
    "List(Int64)": pl.List(pl.Int64),
    "List(String)": pl.List(pl.String),
    "List(Float32)": pl.List(pl.Float32),
}


class ViewColumn(BaseModel):
    """A key or a feature."""

    model_config = ConfigDict(frozen=True)

    name: str
    dtype: ViewType

    @property
    def polars(self) -> pl.DataType:
        """Type of the column in a Polars frame."""
        return _POLARS[self.dtype]


class StoredView(BaseModel):
    """A view: values of a key from a moment on, in one Parquet file sorted by that moment."""

    model_config = ConfigDict(frozen=True)

    name: str
    keys: tuple[ViewColumn, ...] = Field(min_length=1)
    features: tuple[ViewColumn, ...] = Field(min_length=1)
    path: str
    static: bool
    rows: int = Field(ge=0)
    newest_keys: int = Field(ge=0)
    """Distinct keys at the end of the log."""

    @property
    def key_names(self) -> tuple[str, ...]:
        """Names of the key columns."""
        return tuple(key.name for key in self.keys)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features."""
        return tuple(feature.name for feature in self.features)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the features as lookups give them: `<view>:<feature>`."""
        return tuple(f"{self.name}:{name}" for name in self.feature_names)


class ViewIndex(BaseModel):
    """The views of a fit."""

    model_config = ConfigDict(frozen=True)

    folder: Path = Field(exclude=True)
    views: tuple[StoredView, ...]
    first_day: date
    last_day: date
    timezone: str
    tile_seconds: int = 86_400
    delay_seconds: int = 0
    """Time after an impression until its outcome is known."""

    @property
    def tiles(self) -> Tiles:
        """The tiles at whose ends values change."""
        length, delay = (timedelta(seconds=seconds) for seconds in (self.tile_seconds, self.delay_seconds))
        return Tiles(length, delay, self.timezone)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Return the index in a folder of views."""
        return cls(folder=folder.resolve(), **read_json(folder / INDEX))

    def view(self, name: str) -> StoredView:
        """Return the view of that name.

        Raises:
            ShortlistError: There is none.
        """
        by_name = {view.name: view for view in self.views}
        if name not in by_name:
            raise ShortlistError(f"{self.folder / INDEX}: no view '{name}'{did_you_mean(name, by_name)}")
        return by_name[name]

    def path(self, view: StoredView) -> Path:
        """Return the view's Parquet file."""
        return self.folder / view.path

    def snapshot(self, name: str, moment: datetime) -> pl.DataFrame:
        """Return the values of a view that hold at a moment: one row per key (keys, features)."""
        view = self.view(name)
        past = pl.scan_parquet(self.path(view)).filter(pl.col(Columns.VALID_FROM) <= moment)
        newest = past.group_by(view.key_names).agg(pl.col(Columns.VALID_FROM).max())
        rows = past.join(newest, on=[*view.key_names, Columns.VALID_FROM], how="semi")
        return rows.select(*view.key_names, *view.feature_names).collect(engine="streaming")

    def start_of(self, day: date) -> datetime:
        """Return the moment, in UTC, at which a day of the log's own clock begins."""
        return start_of(day, self.timezone)

    def day_of(self, moment: datetime) -> date:
        """Return the day of the log's own clock in which a moment lies."""
        return moment.astimezone(ZoneInfo(self.timezone)).date()
