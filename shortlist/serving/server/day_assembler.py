"""Assembles tensors for rows of the valid log as a server does, to compare serving with the training table."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime

import numpy as np
import polars as pl

from shortlist.contracts import Columns
from shortlist.features.counts.tiles import moment_of
from shortlist.features.declared.plan import Plan
from shortlist.features.declared.slates import SLATE
from shortlist.features.stored_views.view_index import ViewIndex
from shortlist.features.values.columns import DeclaredColumns
from shortlist.features.values.vectors import matrix
from shortlist.serving.export.signature import Signature
from shortlist.serving.server.features.columns import Column, Ragged, to_codes
from shortlist.serving.server.features.feature_requirements import FeatureRequirements
from shortlist.serving.server.features.snapshot import Snapshot, load_with_users
from shortlist.serving.server.features.tensor_assembler import TensorAssembler, Tensors
from shortlist.serving.server.protocols.v2 import read_body
from shortlist.serving.server.request_inputs.input_reader import InputReader, derive_column


class DayAssembler:
    """Assembles the tensors of rows of the valid log, with every view as of the start of their day.

    With tiles within days, the views are as of the time of the rows; all rows of a call must then see the same tiles
    (see `Tiles.known_at`).
    """

    def __init__(self, plan: Plan, signature: Signature, views: ViewIndex) -> None:
        self._assembler = TensorAssembler(plan, signature)
        self._declared = plan.declared
        self._views = views
        self._moment: datetime | None = None
        self._snapshot: Snapshot | None = None

    def tensors(self, rows: pl.DataFrame, day: date) -> Tensors:
        """Return the model's inputs for rows of one day; all rows of a slate must be passed together.

        Raises:
            ShortlistError: A view cannot be read.
        """
        slates = rows[SLATE].to_numpy() if SLATE in rows.columns else None
        columns = self.columns(rows)
        return self._assembler.tensors(
            columns, self._snapshot_for(day, columns[Columns.TIME]).tables, rows.height, slates
        )

    def request_tensors(self, body: bytes, header_length: str | None, rows: int, day: date) -> Tensors:
        """Return the model's inputs for a request body, with views as in `tensors`.

        Args:
            body: Body of an HTTP request.
            header_length: Header with the length of its JSON.
            rows: Number of its rows.
            day: Day of the rows.

        Raises:
            BadRequestError: The request is invalid.
        """
        reader = InputReader(self.requirements, self.widths, rows)
        inputs = reader.read(read_body(body, header_length).tensors, 0)
        tables = self._snapshot_for(day, inputs.columns[Columns.TIME]).tables
        return self._assembler.tensors(inputs.columns, tables, inputs.rows)

    @property
    def requirements(self) -> FeatureRequirements:
        """Columns and views that the model needs."""
        return self._assembler.requirements

    @property
    def open_lists(self) -> tuple[str, ...]:
        """Columns of the lists of the open tiles."""
        return self._assembler.open_lists

    @property
    def widths(self) -> Mapping[str, int]:
        """Widths of vectors, by column."""
        return self._assembler.widths

    def _snapshot_for(self, day: date, times: Column) -> Snapshot:
        tiles = self._views.tiles
        moment = self._views.start_of(day)
        if tiles.within_days:
            assert isinstance(times, np.ndarray)
            ends = {tiles.known_at(moment_of(time)) for time in (times.min(), times.max())}
            assert len(ends) == 1, f"rows of several moments: {', '.join(map(str, ends))}"
            (moment,) = ends
        if self._snapshot is None or self._moment != moment:
            self._snapshot = load_with_users(self._assembler, self._views, moment)
            self._moment = moment
        return self._snapshot

    def columns(self, rows: pl.DataFrame) -> dict[str, Column]:
        """Return rows of the log as the columns of a request."""
        requirements, widths = self._assembler.requirements, self._assembler.widths
        columns = {
            name: log_column(rows[name], name, self._declared, widths.get(name)) for name in requirements.columns
        }
        columns[Columns.TIME] = rows[Columns.TIME].dt.epoch("us").to_numpy()
        derived = {
            column.row_column(self._declared): derive_column(column, rows[column.source])
            for column in requirements.derived_columns
        }
        counted = {place: rows[place].to_numpy() for place in requirements.counted_places if place in rows.columns}
        lists = {place: _to_ragged(rows[place]) for place in self._assembler.open_lists if place in rows.columns}
        return {**columns, **derived, **counted, **lists}


def _to_ragged(lists: pl.Series) -> Ragged:
    """Return lists of the open tiles; lists of numbers keep their numbers."""
    if lists.dtype != pl.List(pl.Float32):
        return Ragged.from_series(lists)
    lengths = lists.list.len().fill_null(0).to_numpy().astype(np.intp)
    numbers = lists.explode(empty_as_null=False, keep_nulls=False).to_numpy()
    return Ragged(numbers, np.cumsum(lengths) - lengths, lengths)


def log_column(values: pl.Series, name: str, declared: DeclaredColumns, width: int | None) -> Column:
    """Return a column of the valid log as the server reads it from a request.

    Args:
        values: The column.
        name: Its name in the log.
        declared: The declared columns.
        width: Width of a vector column.
    """
    match declared.column(name).type:
        case "number":
            numbers = values.cast(pl.Float64).fill_null(np.nan).to_numpy()
            return np.where(np.isfinite(numbers), numbers, np.nan)  # as in the training table
        case "tags":
            return Ragged.from_series(values)
        case "vector":
            assert width is not None
            return matrix(values, width)
        case _:
            return to_codes(values)
