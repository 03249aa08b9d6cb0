"""Numbers of a row, as expressions over what was looked up."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import polars as pl

from shortlist.config.features import Age, Count, Cyclic, Feature, Lag, Numeric, Target, TimeSince
from shortlist.contracts import Columns
from shortlist.features.columns import Declared
from shortlist.features.keyed import LAST_TIME, KeyedView, Total, totals_of_target, view_of
from shortlist.features.moments import Moments

_HOUR_US: Final = 3_600_000_000
_DAY_SECONDS: Final = 86_400
_NO_ROWS_MEAN: Final = 0.5
"""Mean of a target encoding while nothing at all has been seen."""


def dense_columns(feature: Feature, declared: Declared, moments: Mapping[str, Moments]) -> list[pl.Expr]:
    """Return an operation's Float32 columns; none for operations that give ids or vectors.

    Args:
        feature: The operation.
        declared: The declared columns.
        moments: Mean and deviation of what is standardised, by feature name.
    """
    match feature:
        case Numeric():
            values = [_standardised(feature, name, declared, moments) for name in feature.each]
        case Age():
            values = [_age(declared.place(name)) for name in feature.each]
        case Count():
            values = [_count(feature, declared)]
        case Target():
            values = [_target(feature, declared)]
        case TimeSince():
            values = [_time_since(feature, declared)]
        case Lag():
            view = view_of(feature, declared)
            values = [_filled(_looked_up(view, f"last_{view.lasts[0]}"), feature.fill)]
        case Cyclic():
            turn = _turn(feature, declared.timezone)
            values = [turn.sin(), turn.cos()]
        case _:
            values = []
    return [value.cast(pl.Float32).alias(name) for name, value in zip(feature.outputs, values, strict=False)]


def plain_number(feature: Numeric, name: str, declared: Declared) -> pl.Expr:
    """Return a number filled, clipped and logged, not yet standardised; NaN and infinity count as null."""
    value = pl.col(declared.place(name)).cast(pl.Float64)
    value = _filled(pl.when(value.is_finite()).then(value), feature.fill)
    if feature.clip is not None:
        value = value.clip(*feature.clip)
    return (value.clip(lower_bound=0.0) + 1.0).log() if feature.log else value


def _standardised(feature: Numeric, name: str, declared: Declared, moments: Mapping[str, Moments]) -> pl.Expr:
    value = plain_number(feature, name, declared)
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


def _time_since(feature: TimeSince, declared: Declared) -> pl.Expr:
    view = view_of(feature, declared)
    elapsed = pl.col(Columns.TIME).cast(pl.Int64) - _looked_up(view, LAST_TIME)
    hours = (elapsed.cast(pl.Float64) / _HOUR_US).fill_null(feature.cap_hours)
    return (hours.clip(0.0, feature.cap_hours) + 1.0).log()


def _age(place: str) -> pl.Expr:
    days = pl.col(Columns.DAY).cast(pl.Int32).cast(pl.Int64) - pl.col(place).cast(pl.Int64)
    return (days.cast(pl.Float64).clip(lower_bound=0.0) + 1.0).log()


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
