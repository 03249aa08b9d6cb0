"""Compares what servers looked up with what the feature table has, and names the likely cause of differences."""

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
from monitoring.windows.answered import ROWS
from monitoring.windows.feature_sample import (
    COUNTED_UNTIL,
    Tensors,
    log_rows,
    logged_tensors,
    without_sent_vectors,
    without_streamed,
)
from shortlist.contracts import Columns
from shortlist.features.tiles import Tiles
from shortlist.features.transform import Transformer
from shortlist.features.view_index import ViewIndex
from shortlist.serving.export.encoding import encode
from shortlist.serving.export.signature import CODES, NO_CODE, NUMBERS, SCORE, SECOND_OF_DAY, WEEKDAY, Signature

_CLOCK: Final = {SECOND_OF_DAY: (86_400.0, 1.0), WEEKDAY: (7.0, 86_400.0), Columns.DAY: (0.0, 86_400.0)}
"""Columns of the clock: after how much they begin again (0: never), and their unit in seconds."""
_MOST: Final = 0.9
"""Share of the unequal values that has to agree for a constant shift, or a constant default, to be named."""
_SCORE_TOLERANCE: Final = {"graph": 1e-4, "trees": 1e-4, "network": 0.02}
"""Largest difference of equal scores, by what computes them: networks may run in bf16."""
_ADVICE_STALE: Final = (
    "publish statistics more often (schedule.refresh, make refresh), or see why servers keep old ones"
)
_ADVICE_CLOCK: Final = "compare the server's time zone with data.clock.timezone"
_ADVICE_DEFAULT: Final = "find out what fills the value in before the model; the exported graph has the default"
_ADVICE_MISSING: Final = "find out why the server's snapshot, or the online store, lacks these keys"
_ADVICE_OTHER: Final = "count again (shortlist backfill, make run) if rows came late; else compare how both compute it"

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class ServedModelFiles:
    """What is needed of a version."""

    preprocessing: Path
    signature: Signature
    serving: Path
    """Folder of its exported graph."""


@dataclass(frozen=True)
class Comparison:
    """What was found in the requests of one version."""

    columns: dict[str, ServedColumn]
    requests: int
    rows: int
    first: datetime | None
    last: datetime | None


def comparable(requests: pl.DataFrame, tiles: Tiles, until: datetime) -> tuple[pl.Series, pl.Series]:
    """Return which requests can be compared, and which others know more than the feature table lets them see.

    Args:
        requests: Columns of the prediction log.
        tiles: By which statistics are counted.
        until: The moment up to which the views hold everything.

    Returns:
        Two masks. A request in neither waits for statistics that are not counted yet.
    """
    times = requests.select(
        pl.col(Columns.TIME).list.min().fill_null(pl.col("time")).alias("first"),
        pl.col(Columns.TIME).list.max().fill_null(pl.col("time")).alias("last"),
    )
    known = [tiles.known_at(time) for time in times["last"].to_list()]
    seen = [tiles.counted_until(tiles.known_at(time)) for time in times["first"].to_list()]
    is_counted = pl.Series([one <= until for one in known], dtype=pl.Boolean)
    served = requests[COUNTED_UNTIL].to_list()
    pairs = zip(served, seen, strict=True)
    is_ahead = pl.Series([one is not None and one > other for one, other in pairs], dtype=pl.Boolean)
    return is_counted & ~is_ahead, is_ahead


def compare(
    requests: pl.DataFrame, files: ServedModelFiles, views: Path, max_age: timedelta | None = None
) -> Comparison:
    """Return how the feature values that scored some requests agree with those of the feature table.

    Args:
        requests: Comparable ones of one version, with columns of the prediction log and rows.
        files: The version's.
        views: Folder of the published views, which hold the values of every moment.
        max_age: By how much a snapshot may be older than what the table sees; None: any age.

    Raises:
        ShortlistError: The views lack one that the version reads, or the model cannot be read.
    """
    transformer = Transformer.load(views.parent, "cpu", files.preprocessing)
    declared, index = transformer.plan.declared, ViewIndex.read(views)
    signature = without_streamed(without_sent_vectors(files.signature, declared), transformer.plan)
    rows = log_rows(requests, declared)
    if not rows.height:
        return Comparison({}, 0, 0, None, None)
    served = logged_tensors(requests, files.signature)
    if NUMBERS in served:
        kept = [number for number, place in enumerate(files.signature.numbers) if place in signature.numbers]
        served[NUMBERS] = served[NUMBERS][:, kept]
    own = {each.tensor for each in signature.vectors}
    served = {name: one for name, one in served.items() if not name.startswith("vector_") or name in own}
    table = _encoded(transformer, rows, rows[Columns.DAY], signature)
    counts = requests[ROWS].to_numpy()
    until = requests[COUNTED_UNTIL].gather(np.repeat(np.arange(requests.height), counts))
    ages = _ages(rows[Columns.TIME], until, index.tiles)
    stale = ages > 0
    then = table
    if stale.any():
        then = _as_of_snapshot(transformer, rows, until, index, signature, table)
    excused = stale & ((ages <= max_age.total_seconds()) if max_age is not None else True)
    rest = _Rows(ages, stale, excused, declared.timezone, rows)
    found = {
        place: rest.column(place, *values, is_code=is_code)
        for place, is_code, values in _columns(signature, served, table, then)
    }
    if signature == files.signature:
        unequal = _any_unequal(signature, served, table, rows.height)
        scores = requests["scores"].explode(empty_as_null=False, keep_nulls=False).to_numpy()
        found[SCORE] = _score(scores, table, unequal, excused, files)
    times = rows[Columns.TIME]
    first, last = times.min(), times.max()
    assert isinstance(first, datetime)
    assert isinstance(last, datetime)
    return Comparison(found, requests.height, rows.height, first, last)


def _encoded(transformer: Transformer, rows: pl.DataFrame, days: pl.Series, signature: Signature) -> Tensors:
    """Return the table's values of rows as tensors; a row is looked up as of its `event_time` and its day in `days`."""
    true_times = rows[Columns.TIME] if ":true" not in rows.columns else rows[":true"]
    numbered = rows.with_columns(days.alias(":day"), true_times.alias(":true")).with_row_index(":at")
    parts = []
    for (day,), some in numbered.group_by(":day", maintain_order=True):
        looked_up = transformer.look_up(some, day)
        parts.append(looked_up.with_columns(pl.col(":true").alias(Columns.TIME)))
    every = pl.concat(parts).sort(":at")
    return encode(every, signature, transformer.plan.declared)


def _as_of_snapshot(
    transformer: Transformer, rows: pl.DataFrame, until: pl.Series, index: ViewIndex, signature: Signature,
    table: Tensors,
) -> Tensors:  # fmt: skip
    """Return the table's values as of the moment up to which each row's snapshot was counted."""
    if until.null_count() == rows.height:
        return table
    moments = {one: one + index.tiles.delay for one in until.unique().drop_nulls().to_list()}
    times = [moments.get(one, time) for one, time in zip(until.to_list(), rows[Columns.TIME].to_list(), strict=True)]
    as_of = pl.Series(Columns.TIME, times, dtype=rows.schema[Columns.TIME])
    days = as_of.dt.convert_time_zone(index.timezone).dt.date()
    moved = rows.with_columns(rows[Columns.TIME].alias(":true"), as_of)
    return _encoded(transformer, moved, days, signature)


def _ages(times: pl.Series, until: pl.Series, tiles: Tiles) -> npt.NDArray[np.float64]:
    """Return by how many seconds each row's snapshot is older than what the table sees; 0 where it is not."""
    pairs = zip(times.to_list(), until.to_list(), strict=True)
    ages = (
        0.0 if one is None else (tiles.counted_until(tiles.known_at(at)) - one).total_seconds() for at, one in pairs
    )
    return np.maximum(np.fromiter(ages, np.float64, times.len()), 0.0)


Compared = tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]
"""Values of a column: served, the table's, the table's when the snapshot was counted."""


def _columns(
    signature: Signature, served: Tensors, table: Tensors, then: Tensors
) -> Iterator[tuple[str, bool, Compared]]:  # fmt: skip
    """Yield every place, whether its values are codes, and its values; of lists and vectors, a row's number in all."""
    for tensor, places in ((NUMBERS, signature.numbers), (CODES, signature.codes)):
        for number, place in enumerate(places):
            named = f"{place} (key)" if tensor == CODES and place in signature.numbers else place
            yield named, tensor == CODES, tuple(each[tensor][:, number] for each in (served, table, then))  # type: ignore[misc]
    wide = [(each.place, each.tensor) for each in signature.lists]
    wide += [(each.place, each.tensor) for each in signature.vectors]
    for place, tensor in wide:
        yield place, True, _numbered(served[tensor], table[tensor], then[tensor])


def _numbered(*matrices: npt.NDArray[Any]) -> Compared:
    """Return rows of matrices as codes that are equal where the rows are; NO_CODE for an empty list or zeros."""
    width = max(matrix.shape[1] for matrix in matrices)
    is_list = matrices[0].dtype == np.int64
    nothing = NO_CODE if is_list else 0
    wide = np.concatenate(
        [np.pad(matrix, ((0, 0), (0, width - matrix.shape[1])), constant_values=nothing) for matrix in matrices]
    )
    codes = np.unique(wide, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
    codes[(wide == nothing).all(axis=1)] = NO_CODE
    served, table, then = np.split(codes, 3)
    return served, table, then


def _equal(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> Bools:
    if one.dtype == np.int64:
        return np.asarray(one == other)
    return np.asarray(np.isclose(one, other, rtol=1e-9, atol=0, equal_nan=True))


def _any_unequal(signature: Signature, served: Tensors, table: Tensors, rows: int) -> Bools:
    found = np.zeros(rows, np.bool_)
    for _, _, (one, other, _) in _columns(signature, served, table, table):
        found |= ~_equal(one, other)
    return found


@dataclass(frozen=True)
class _Rows:
    """What is known of the compared rows beside their values."""

    ages: npt.NDArray[np.float64]
    stale: Bools
    excused: Bools
    timezone: str
    rows: pl.DataFrame

    def column(
        self, place: str, served: npt.NDArray[Any], table: npt.NDArray[Any], then: npt.NDArray[Any], *, is_code: bool
    ) -> ServedColumn:  # fmt: skip
        unequal = ~_equal(served, table)
        rows, differing = len(served), int(unequal.sum())
        if not differing:
            return ServedColumn(compared=rows, equal=rows, largest_difference=0.0)
        of_snapshot = unequal & self.stale & _equal(served, then)
        counted = int((unequal & ~(of_snapshot & self.excused)).sum())
        largest = None if is_code else _largest(served, table)
        cause, why = self._cause(place, served, table, unequal, of_snapshot)
        return ServedColumn(
            compared=rows, equal=rows - differing, largest_difference=largest, stale=int(of_snapshot.sum()),
            counted=counted, cause=cause, reason=f"'{place}': {differing:,} of {rows:,} values differ: {why}",
        )  # fmt: skip

    def _cause(
        self, place: str, served: npt.NDArray[Any], table: npt.NDArray[Any], unequal: Bools, of_snapshot: Bools
    ) -> tuple[Cause, str]:
        """Return what most of the unequal values have in common."""
        if place in _CLOCK:
            return "time zone", self._clock_reason(place, served, table, unequal)
        lacking_there, lacking_here = _missing(table), _missing(served)
        filled, missing = unequal & lacking_there & ~lacking_here, unequal & lacking_here & ~lacking_there
        by_cause: Mapping[Cause, Bools] = {
            "stale snapshot": of_snapshot, "default": filled & ~of_snapshot, "missing": missing & ~of_snapshot,
        }  # fmt: skip
        named = of_snapshot | filled | missing
        sizes: dict[Cause, int] = {cause: int(mask.sum()) for cause, mask in by_cause.items()}
        sizes["other values"] = int((unequal & ~named).sum())
        cause = max(sizes, key=lambda one: sizes[one])
        return cause, self._reason(cause, sizes[cause], served, table, unequal & ~named, by_cause)

    def _reason(
        self, cause: Cause, count: int, served: npt.NDArray[Any], table: npt.NDArray[Any], others: Bools,
        by_cause: Mapping[Cause, Bools],
    ) -> str:  # fmt: skip
        if cause == "stale snapshot":
            hours = float(self.ages[by_cause[cause]].max()) / 3_600
            older = f"up to {hours:.3g} h older than what the table sees"
            return f"{count:,} are of a stale snapshot, {older}; {_ADVICE_STALE}"
        if cause == "default":
            used = served[by_cause[cause]]
            values, times = np.unique(used, return_counts=True)
            common = f"the default {values[times.argmax()]:g}" if times.max() >= _MOST * used.size else "a default"
            return f"in {count:,} the server used {common} where the table has no value; {_ADVICE_DEFAULT}"
        if cause == "missing":
            return f"in {count:,} the server had no value where the table has one; {_ADVICE_MISSING}"
        at = int(np.flatnonzero(others)[0])
        when = self.rows[Columns.TIME][at]
        return (
            f"e.g. {served[at]:g} served at {when:%Y-%m-%d %H:%M:%S} where the table has {table[at]:g}; {_ADVICE_OTHER}"
        )

    def _clock_reason(
        self, place: str, served: npt.NDArray[Any], table: npt.NDArray[Any], unequal: Bools
    ) -> str:  # fmt: skip
        period, unit = _CLOCK[place]
        apart = (served - table)[unequal]
        if period:
            apart = (apart + period / 2) % period - period / 2
        shifts, times = np.unique(np.round(apart * unit), return_counts=True)
        shift = float(shifts[times.argmax()])
        how = f"by {shift / 3_600:+g} h" if times.max() >= _MOST * times.sum() else "by several lengths of time"
        return f"the server's clock is of another time zone than {self.timezone} ({how}); {_ADVICE_CLOCK}"


def _missing(values: npt.NDArray[Any]) -> Bools:
    return np.asarray(values == NO_CODE if values.dtype == np.int64 else np.isnan(values))


def _largest(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> float | None:
    apart = np.abs(one - other)
    there = np.isfinite(apart)
    largest = float(apart[there].max(initial=0.0))
    return largest or None


def _score(
    logged: npt.NDArray[Any], table: Tensors, unequal: Bools, excused: Bools, files: ServedModelFiles
) -> ServedColumn:  # fmt: skip
    """Return how the scores that were answered agree with those of the registered graph on the table's values."""
    from shortlist.serving.export.onnx_session import session  # loads ONNX Runtime

    scores = session(files.serving).run([SCORE], table)[0].ravel()
    apart = np.abs(scores.astype(np.float64) - logged.astype(np.float64))
    differs = ~(apart <= _SCORE_TOLERANCE[files.signature.runs_as])
    rows, count = len(apart), int(differs.sum())
    if not count:
        return ServedColumn(compared=rows, equal=rows, largest_difference=float(apart.max(initial=0.0)))
    alone = int((differs & ~unequal).sum())
    cause: Cause = "model" if alone else "inputs"
    why = (
        f"in {alone:,} all inputs are equal, so another model than the registered one scored, or another engine"
        if alone
        else "their inputs differ"
    )
    largest = float(apart[np.isfinite(apart)].max(initial=0.0))
    return ServedColumn(
        compared=rows, equal=rows - count, largest_difference=largest, cause=cause,
        counted=int((differs & ~(unequal & excused)).sum()),
        reason=f"'{SCORE}': {count:,} of {rows:,} values differ: {why}",
    )  # fmt: skip
