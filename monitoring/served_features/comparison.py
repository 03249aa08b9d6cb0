"""Comparison of served feature values with the feature table's, with the likely cause of differences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from monitoring.served_features.record import Cause, ServedColumn
from monitoring.windows.answered_requests import ROWS
from monitoring.windows.feature_sample import (
    COUNTED_UNTIL,
    Tensors,
    drop_sent_vectors,
    drop_streamed_inputs,
    log_rows,
    logged_tensors,
)
from shortlist.contracts import Columns
from shortlist.features.counts.tiles import Tiles
from shortlist.features.declared.slates import at_slate_start, with_slates
from shortlist.features.rows.transform import Transformer
from shortlist.features.stored_views.view_index import ViewIndex
from shortlist.serving.export.encoding import encode
from shortlist.serving.export.signature import CODES, NO_CODE, NUMBERS, SCORE, SECOND_OF_DAY, WEEKDAY, Signature

_CLOCK: Final = {SECOND_OF_DAY: (86_400.0, 1.0), WEEKDAY: (7.0, 86_400.0), Columns.DAY: (0.0, 86_400.0)}
"""Columns of the clock: their period (0: none), and their unit in seconds."""
_MIN_AGREEMENT: Final = 0.9
"""Fewest share of the unequal values that must agree for a constant shift, or a constant default, to be named."""
_SCORE_TOLERANCE: Final = {"graph": 1e-4, "trees": 1e-4, "network": 0.02}
"""Largest difference of equal scores, by the engine that computes them: networks may run in bf16."""
_ADVICE_STALE: Final = (
    "publish statistics more often (schedule.refresh, .venv/bin/shortlist refresh), or see why servers keep old ones"
)
_ADVICE_CLOCK: Final = "compare the server's time zone with data.clock.timezone"
_ADVICE_DEFAULT: Final = "find out what fills the value in before the model; the exported graph has the default"
_ADVICE_MISSING: Final = "find out why the server's snapshot, or the online store, lacks these keys"
_ADVICE_OTHER: Final = "count again, by a backfill or a training, if rows came late; else compare how both compute it"

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class ServedModelFiles:
    """The files of a version that a comparison needs."""

    preprocessing: Path
    signature: Signature
    serving: Path
    """Folder of its exported graph."""


@dataclass(frozen=True)
class VersionComparison:
    """The comparison of one version's requests."""

    columns: dict[str, ServedColumn]
    requests: int
    rows: int
    first: datetime | None
    last: datetime | None


def comparable_masks(requests: pl.DataFrame, tiles: Tiles, until: datetime) -> tuple[pl.Series, pl.Series]:
    """Return which requests can be compared, and which saw newer statistics than the feature table has for them.

    Args:
        requests: Requests with the columns of the prediction log.
        tiles: Tiles by which statistics are counted.
        until: The moment up to which the views are complete.

    Returns:
        Two masks: comparable, and ahead. A request in neither waits for statistics that are not counted yet.
    """
    times = requests.select(
        pl.min_horizontal("time", pl.col(Columns.TIME).list.min()).alias("first"),
        pl.min_horizontal("time", pl.col(Columns.TIME).list.max()).alias("last"),
    )
    known_at = [tiles.known_at(time) for time in times["last"].to_list()]
    table_counted_until = [tiles.counted_until(tiles.known_at(time)) for time in times["first"].to_list()]
    is_counted = pl.Series([moment <= until for moment in known_at], dtype=pl.Boolean)
    served_counted_until = requests[COUNTED_UNTIL].to_list()
    pairs = zip(served_counted_until, table_counted_until, strict=True)
    is_ahead = pl.Series(
        [served_until is not None and served_until > table_until for served_until, table_until in pairs],
        dtype=pl.Boolean,
    )
    return is_counted & ~is_ahead, is_ahead


def compare_version(
    requests: pl.DataFrame, files: ServedModelFiles, views: Path, max_age: timedelta | None = None
) -> VersionComparison:
    """Return the comparison of the feature values that scored a version's requests with the feature table.

    Args:
        requests: Comparable requests of one version, with the columns of the prediction log and rows.
        files: Files of the version.
        views: Folder of the published views, which hold the values at every moment.
        max_age: Longest time by which a snapshot may be older than the table's values; None: any.

    Raises:
        ShortlistError: A view that the version reads is missing, or the model cannot be read.
    """
    transformer = Transformer.load(views.parent, "cpu", files.preprocessing)
    declared, index = transformer.plan.declared, ViewIndex.read(views)
    signature = drop_streamed_inputs(drop_sent_vectors(files.signature, declared), transformer.plan)
    rows = log_rows(requests, declared)
    if transformer.plan.slates_have_moments:
        rows = at_slate_start(rows)
    if not rows.height:
        return VersionComparison({}, 0, 0, None, None)
    served = logged_tensors(requests, files.signature)
    if NUMBERS in served:
        number_indices = [number for number, place in enumerate(files.signature.numbers) if place in signature.numbers]
        served[NUMBERS] = served[NUMBERS][:, number_indices]
    vector_tensors = {vector.tensor for vector in signature.vectors}
    served = {
        name: values for name, values in served.items() if not name.startswith("vector_") or name in vector_tensors
    }
    table = _table_tensors(transformer, rows, rows[Columns.DAY], signature)
    counts = requests[ROWS].to_numpy()
    until = requests[COUNTED_UNTIL].gather(np.repeat(np.arange(requests.height), counts))
    ages = _snapshot_ages(rows[Columns.TIME], until, index.tiles)
    is_stale = ages > 0
    snapshot_table = table
    if is_stale.any():
        snapshot_table = _snapshot_tensors(transformer, rows, until, index, signature, table)
    is_excused = is_stale & ((ages <= max_age.total_seconds()) if max_age is not None else True)
    compared_rows = _ServedRows(ages, is_stale, is_excused, declared.timezone, rows)
    columns = {
        place: compared_rows.compare_column(place, *values, is_code=is_code)
        for place, is_code, values in _iter_columns(signature, served, table, snapshot_table)
    }
    if signature == files.signature:
        is_unequal = _any_unequal(signature, served, table, rows.height)
        scores = requests["scores"].explode(empty_as_null=False, keep_nulls=False).to_numpy()
        columns[SCORE] = _compare_scores(scores, table, is_unequal, is_excused, files)
    times = rows[Columns.TIME]
    first, last = times.min(), times.max()
    assert isinstance(first, datetime)
    assert isinstance(last, datetime)
    return VersionComparison(columns, requests.height, rows.height, first, last)


def _table_tensors(transformer: Transformer, rows: pl.DataFrame, days: pl.Series, signature: Signature) -> Tensors:
    """Return the table's values of rows as tensors; a row is looked up at its `event_time` and its day in `days`."""
    true_times = rows[Columns.TIME] if ":true" not in rows.columns else rows[":true"]
    numbered = rows.with_columns(days.alias(":day"), true_times.alias(":true")).with_row_index(":at")
    frames = []
    for (day,), day_rows in numbered.group_by(":day", maintain_order=True):
        looked_up = transformer.look_up(day_rows, day)
        looked_up = looked_up.with_columns(pl.col(":true").alias(Columns.TIME))
        frames.append(with_slates(looked_up, transformer.plan.slates))
    all_rows = pl.concat(frames).sort(":at")
    return encode(all_rows, signature, transformer.plan.declared)


def _snapshot_tensors(
    transformer: Transformer, rows: pl.DataFrame, until: pl.Series, index: ViewIndex, signature: Signature,
    table: Tensors,
) -> Tensors:  # fmt: skip
    """Return the table's values as of the moment up to which each row's snapshot was counted."""
    if until.null_count() == rows.height:
        return table
    moments = {
        counted_until: counted_until + index.tiles.delay for counted_until in until.unique().drop_nulls().to_list()
    }
    times = [
        moments.get(counted_until, time)
        for counted_until, time in zip(until.to_list(), rows[Columns.TIME].to_list(), strict=True)
    ]
    as_of = pl.Series(Columns.TIME, times, dtype=rows.schema[Columns.TIME])
    days = as_of.dt.convert_time_zone(index.timezone).dt.date()
    as_of_rows = rows.with_columns(rows[Columns.TIME].alias(":true"), as_of)
    return _table_tensors(transformer, as_of_rows, days, signature)


def _snapshot_ages(times: pl.Series, until: pl.Series, tiles: Tiles) -> npt.NDArray[np.float64]:
    """Return the age in seconds of each row's snapshot relative to the table's values, at least 0."""
    pairs = zip(times.to_list(), until.to_list(), strict=True)
    ages = (
        0.0 if counted_until is None else (tiles.counted_until(tiles.known_at(time)) - counted_until).total_seconds()
        for time, counted_until in pairs
    )
    return np.maximum(np.fromiter(ages, np.float64, times.len()), 0.0)


ComparedValues = tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]
"""Values of a column: served, of the table, and of the table when the snapshot was counted."""


def _iter_columns(
    signature: Signature, served: Tensors, table: Tensors, snapshot: Tensors
) -> Iterator[tuple[str, bool, ComparedValues]]:  # fmt: skip
    """Yield the name of every input, whether its values are codes, and its values; lists and vectors become codes."""
    for tensor, places in ((NUMBERS, signature.numbers), (CODES, signature.codes)):
        for number, place in enumerate(places):
            column_name = f"{place} (key)" if tensor == CODES and place in signature.numbers else place
            yield (
                column_name,
                tensor == CODES,
                tuple(tensors[tensor][:, number] for tensors in (served, table, snapshot)),
            )  # type: ignore[misc]
    row_inputs = [(list_input.place, list_input.tensor) for list_input in signature.lists]
    row_inputs += [(vector.place, vector.tensor) for vector in signature.vectors]
    for place, tensor in row_inputs:
        yield place, True, _number_rows(served[tensor], table[tensor], snapshot[tensor])


def _number_rows(*matrices: npt.NDArray[Any]) -> ComparedValues:
    """Return one code per matrix row, the same for equal rows; NO_CODE for an empty list or a vector of zeros."""
    width = max(matrix.shape[1] for matrix in matrices)
    is_list = matrices[0].dtype == np.int64
    padding = NO_CODE if is_list else 0
    stacked = np.concatenate(
        [np.pad(matrix, ((0, 0), (0, width - matrix.shape[1])), constant_values=padding) for matrix in matrices]
    )
    codes = np.unique(stacked, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
    codes[(stacked == padding).all(axis=1)] = NO_CODE
    served, table, snapshot = np.split(codes, 3)
    return served, table, snapshot


def _is_equal(served: npt.NDArray[Any], table: npt.NDArray[Any]) -> Bools:
    if served.dtype == np.int64:
        return np.asarray(served == table)
    return np.asarray(np.isclose(served, table, rtol=1e-9, atol=0, equal_nan=True))


def _any_unequal(signature: Signature, served: Tensors, table: Tensors, rows: int) -> Bools:
    is_unequal = np.zeros(rows, np.bool_)
    for _, _, (served_values, table_values, _) in _iter_columns(signature, served, table, table):
        is_unequal |= ~_is_equal(served_values, table_values)
    return is_unequal


@dataclass(frozen=True)
class _ServedRows:
    """The compared rows, with the ages of their snapshots."""

    ages: npt.NDArray[np.float64]
    is_stale: Bools
    is_excused: Bools
    timezone: str
    rows: pl.DataFrame

    def compare_column(
        self, place: str, served: npt.NDArray[Any], table: npt.NDArray[Any], snapshot: npt.NDArray[Any], *,
        is_code: bool,
    ) -> ServedColumn:  # fmt: skip
        is_unequal = ~_is_equal(served, table)
        rows, unequal_count = len(served), int(is_unequal.sum())
        if not unequal_count:
            return ServedColumn(compared=rows, equal=rows, largest_difference=0.0)
        is_snapshot_value = is_unequal & self.is_stale & _is_equal(served, snapshot)
        counted = int((is_unequal & ~(is_snapshot_value & self.is_excused)).sum())
        largest = None if is_code else _largest_difference(served, table)
        cause, reason = self._cause(place, served, table, is_unequal, is_snapshot_value)
        return ServedColumn(
            compared=rows, equal=rows - unequal_count, largest_difference=largest, stale=int(is_snapshot_value.sum()),
            counted=counted, cause=cause, reason=f"'{place}': {unequal_count:,} of {rows:,} values differ: {reason}",
        )  # fmt: skip

    def _cause(
        self, place: str, served: npt.NDArray[Any], table: npt.NDArray[Any], is_unequal: Bools, is_snapshot_value: Bools
    ) -> tuple[Cause, str]:
        """Return the cause of most unequal values, with a sentence about it."""
        if place in _CLOCK:
            return "time zone", self._clock_reason(place, served, table, is_unequal)
        missing_in_table, missing_in_served = _is_missing(table), _is_missing(served)
        is_filled, is_missing = (
            is_unequal & missing_in_table & ~missing_in_served,
            is_unequal & missing_in_served & ~missing_in_table,
        )
        masks: Mapping[Cause, Bools] = {
            "stale snapshot": is_snapshot_value,
            "default": is_filled & ~is_snapshot_value,
            "missing": is_missing & ~is_snapshot_value,
        }  # fmt: skip
        is_explained = is_snapshot_value | is_filled | is_missing
        count_by_cause: dict[Cause, int] = {cause: int(mask.sum()) for cause, mask in masks.items()}
        count_by_cause["other values"] = int((is_unequal & ~is_explained).sum())
        cause = max(count_by_cause, key=lambda cause: count_by_cause[cause])
        return cause, self._reason(cause, count_by_cause[cause], served, table, is_unequal & ~is_explained, masks)

    def _reason(
        self, cause: Cause, count: int, served: npt.NDArray[Any], table: npt.NDArray[Any], is_unexplained: Bools,
        masks: Mapping[Cause, Bools],
    ) -> str:  # fmt: skip
        if cause == "stale snapshot":
            hours = float(self.ages[masks[cause]].max()) / 3_600
            age = f"up to {hours:.3g} h older than what the table sees"
            return f"{count:,} are of a stale snapshot, {age}; {_ADVICE_STALE}"
        if cause == "default":
            defaults = served[masks[cause]]
            values, counts = np.unique(defaults, return_counts=True)
            default = (
                f"the default {values[counts.argmax()]:g}"
                if counts.max() >= _MIN_AGREEMENT * defaults.size
                else "a default"
            )
            return f"in {count:,} the server used {default} where the table has no value; {_ADVICE_DEFAULT}"
        if cause == "missing":
            return f"in {count:,} the server had no value where the table has one; {_ADVICE_MISSING}"
        example = int(np.flatnonzero(is_unexplained)[0])
        time = self.rows[Columns.TIME][example]
        return (
            f"e.g. {served[example]:g} served at {time:%Y-%m-%d %H:%M:%S} where the table has {table[example]:g};"
            f" {_ADVICE_OTHER}"
        )

    def _clock_reason(
        self, place: str, served: npt.NDArray[Any], table: npt.NDArray[Any], is_unequal: Bools
    ) -> str:  # fmt: skip
        period, unit = _CLOCK[place]
        differences = (served - table)[is_unequal]
        if period:
            differences = (differences + period / 2) % period - period / 2
        shifts, counts = np.unique(np.round(differences * unit), return_counts=True)
        shift = float(shifts[counts.argmax()])
        shift_text = (
            f"by {shift / 3_600:+g} h"
            if counts.max() >= _MIN_AGREEMENT * counts.sum()
            else "by several lengths of time"
        )
        return f"the server's clock is of another time zone than {self.timezone} ({shift_text}); {_ADVICE_CLOCK}"


def _is_missing(values: npt.NDArray[Any]) -> Bools:
    return np.asarray(values == NO_CODE if values.dtype == np.int64 else np.isnan(values))


def _largest_difference(served: npt.NDArray[Any], table: npt.NDArray[Any]) -> float | None:
    differences = np.abs(served - table)
    is_finite = np.isfinite(differences)
    largest = float(differences[is_finite].max(initial=0.0))
    return largest or None


def _compare_scores(
    logged_scores: npt.NDArray[Any], table: Tensors, has_unequal_inputs: Bools, is_excused: Bools,
    files: ServedModelFiles,
) -> ServedColumn:  # fmt: skip
    """Return the comparison of logged scores with those of the registered graph on the table's values."""
    from shortlist.serving.export.onnx_session import create_session  # loads ONNX Runtime

    scores = create_session(files.serving).run([SCORE], table)[0].ravel()
    differences = np.abs(scores.astype(np.float64) - logged_scores.astype(np.float64))
    differs = ~(differences <= _SCORE_TOLERANCE[files.signature.runs_as])
    rows, count = len(differences), int(differs.sum())
    if not count:
        return ServedColumn(compared=rows, equal=rows, largest_difference=float(differences.max(initial=0.0)))
    equal_inputs_count = int((differs & ~has_unequal_inputs).sum())
    cause: Cause = "model" if equal_inputs_count else "inputs"
    reason = (
        f"in {equal_inputs_count:,} all inputs are equal, so another model than the registered one scored, or another"
        " engine"
        if equal_inputs_count
        else "their inputs differ"
    )
    largest = float(differences[np.isfinite(differences)].max(initial=0.0))
    return ServedColumn(
        compared=rows, equal=rows - count, largest_difference=largest, cause=cause,
        counted=int((differs & ~(has_unequal_inputs & is_excused)).sum()),
        reason=f"'{SCORE}': {count:,} of {rows:,} values differ: {reason}",
    )  # fmt: skip
