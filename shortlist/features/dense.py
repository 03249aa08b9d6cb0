"""Numbers of a row, as expressions over what was looked up."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

import polars as pl

from shortlist.config.features import Age, Count, Cyclic, Feature, Lag, Numeric, Target, TimeSince
from shortlist.contracts import Columns
from shortlist.features.columns import Declared
from shortlist.features.keyed import LAST_TIME, KeyedView, Total, totals_of_target, view_of
from shortlist.features.moments import Moments
from shortlist.frames import Engine, resolve

_HOUR_US: Final = 3_600_000_000
_DAY_SECONDS: Final = 86_400
Limit = Callable[[pl.Expr, float, float | None], pl.Expr]
"""limit(value, low, high) keeps a value within bounds."""
_NO_ROWS_MEAN: Final = 0.5
"""Mean of a target encoding while nothing at all has been seen."""


def dense_columns(
    feature: Feature, declared: Declared, moments: Mapping[str, Moments], engine: Engine = "cpu"
) -> list[pl.Expr]:
    """Return an operation's Float32 columns; none for operations that give ids or vectors.

    Args:
        feature: The operation.
        declared: The declared columns.
        moments: Mean and deviation of what is standardised, by feature name.
        engine: Who will execute them; the values are the same bits.
    """
    limit = _limit_by_comparison if resolve(engine) == "gpu" else _limit
    match feature:
        case Numeric():
            values = [_standardised(feature, name, declared, moments, limit) for name in feature.each]
        case Age():
            values = [_age(declared.place(name), limit) for name in feature.each]
        case Count():
            values = [_count(feature, declared)]
        case Target():
            values = [_target(feature, declared)]
        case TimeSince():
            values = [_time_since(feature, declared, limit)]
        case Lag():
            view = view_of(feature, declared)
            values = [_filled(_looked_up(view, f"last_{view.lasts[0]}"), feature.fill)]
        case Cyclic():
            turn = _turn(feature, declared.timezone)
            values = [turn.sin(), turn.cos()]
        case _:
            values = []
    return [value.cast(pl.Float32).alias(name) for name, value in zip(feature.outputs, values, strict=False)]


def _limit(value: pl.Expr, low: float, high: float | None) -> pl.Expr:
    return value.clip(low, high)


def _limit_by_comparison(value: pl.Expr, low: float, high: float | None) -> pl.Expr:
    """Do as `clip`, which cuDF has not (cudf-polars 26.06); on the CPU it would take 1.7 times as long."""
    limited = pl.when(value < low).then(low)
    return (limited if high is None else limited.when(value > high).then(high)).otherwise(value)


def plain_number(feature: Numeric, name: str, declared: Declared, limit: Limit = _limit) -> pl.Expr:
    """Return a number filled, clipped and logged, not yet standardised; NaN and infinity count as null."""
    value = pl.col(declared.place(name)).cast(pl.Float64)
    if declared.is_fraction(name):
        value = pl.when(value.is_finite()).then(value)
    value = _filled(value, feature.fill)
    if feature.clip is not None:
        value = limit(value, *feature.clip)
    if not feature.log:
        return value
    # Without what changes nothing (an integer is finite, a clipped number clipped), logs take a third less time.
    is_positive = feature.clip is not None and feature.clip[0] >= 0
    return ((value if is_positive else limit(value, 0.0, None)) + 1.0).log()


def _standardised(
    feature: Numeric, name: str, declared: Declared, moments: Mapping[str, Moments], limit: Limit
) -> pl.Expr:
    value = plain_number(feature, name, declared, limit)
    if not feature.standardise:
        return value
    output = feature.outputs[feature.each.index(name)]
    return (value - moments[output].mean) / moments[output].deviation


def _count(feature: Count, declared: Declared) -> pl.Expr:
    view = view_of(feature, declared)
    name = f"count_{feature.of}" if feature.of else Total(Columns.ROWS, feature.window_days or 0).name
    return (_number(view, name) + 1.0).log()


def _target(feature: Target, declared: Declared) -> pl.Expr:
    rows, total = totals_of_target(feature, declared)
    view, everything = view_of(feature, declared), KeyedView((Columns.EVERYTHING,))
    scale = float(declared.scale(total.measure.removeprefix("sum_")))
    all_rows = _number(everything, rows.name)
    mean = pl.when(all_rows > 0).then(_number(everything, total.name) / scale / all_rows).otherwise(_NO_ROWS_MEAN)
    return (_number(view, total.name) / scale + feature.prior * mean) / (_number(view, rows.name) + feature.prior)


def _time_since(feature: TimeSince, declared: Declared, limit: Limit) -> pl.Expr:
    view = view_of(feature, declared)
    elapsed = pl.col(Columns.TIME).cast(pl.Int64) - _looked_up(view, LAST_TIME)
    hours = (elapsed.cast(pl.Float64) / _HOUR_US).fill_null(feature.cap_hours)
    return (limit(hours, 0.0, feature.cap_hours) + 1.0).log()


def _age(place: str, limit: Limit) -> pl.Expr:
    days = pl.col(Columns.DAY).cast(pl.Int32).cast(pl.Int64) - pl.col(place).cast(pl.Int64)
    return (limit(days.cast(pl.Float64), 0.0, None) + 1.0).log()


def _turn(feature: Cyclic, timezone: str) -> pl.Expr:
    """Angle of the wall clock, 0 at midnight (of Monday, for a week)."""
    local = pl.col(Columns.TIME).dt.convert_time_zone(timezone).dt
    second = local.hour().cast(pl.Float64) * 3600 + local.minute() * 60.0 + local.second() + local.microsecond() / 1e6
    if feature.period == "day":
        return second * (2 * math.pi / _DAY_SECONDS)
    return (second + (local.weekday() - 1) * float(_DAY_SECONDS)) * (2 * math.pi / (7 * _DAY_SECONDS))


def _looked_up(view: KeyedView, name: str) -> pl.Expr:
    return pl.col(f"{view.name}:{name}")


def _number(view: KeyedView, name: str) -> pl.Expr:
    return _looked_up(view, name).cast(pl.Float64).fill_null(0.0)


def _filled(value: pl.Expr, fill: float | None) -> pl.Expr:
    return value if fill is None else value.fill_null(fill)
