"""The time of an impression: parsed from a column, or derived from the order of the rows."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

import polars as pl

from shortlist.contracts import Columns, DataError, did_you_mean
from shortlist.data.rules.failures import format_values
from shortlist.spec.data import EventClock, RowClock

_MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1}
_DAY_MICROSECONDS = 86_400_000_000
_SECONDS_PER_YEAR = 31_556_952
# A few invalid times are bad rows; if half of the times are invalid, the declared clock is wrong.
_MAX_FAILED_SHARE = 0.5
_MIN_FAILED_ROWS = 20
_UNITS = ("s", "ms", "us")
_MAX_SAMPLE_VALUES = 1_000
_MAX_MISFITS = 0.02
_EARLIEST, _LATEST = date(2000, 1, 1), date(2100, 1, 1)
_DATES = (
    "%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d", "%Y.%m.%d", "%Y%m%d",
    "%d %b %Y", "%d-%b-%Y", "%b %d, %Y", "%B %d, %Y", "%d/%m/%y", "%m/%d/%y", "%d.%m.%y",
)  # fmt: skip
_HOURS = ("", " %H:%M:%S", " %H:%M", " %I:%M:%S %p", " %I:%M %p", " %H:%M:%S%.f", "T%H:%M:%S", "%H%M%S")
_FORMATS = (
    *(date + hours for date in _DATES for hours in _HOURS),
    "%d/%b/%Y:%H:%M:%S %z", "%a, %d %b %Y %H:%M:%S %z", "%a %b %d %H:%M:%S %Y",
)  # fmt: skip
"""Common formats of times that are not ISO 8601."""
_LOCAL_FORMATS = ("%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%dT%H:%M", "%Y-%m-%d")


def check_timezone(clock: EventClock) -> None:
    """Refuse a timezone that does not exist.

    Raises:
        DataError: There is no such timezone; suggests a similar name.
    """
    try:
        ZoneInfo(clock.timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        suggestion = did_you_mean(clock.timezone, available_timezones())
        raise DataError(f"data.clock.timezone: '{clock.timezone}' is no IANA timezone{suggestion}") from None


def event_times(raw: pl.Series, clock: EventClock) -> pl.Series:
    """Return the times in a clock column.

    Args:
        raw: Values as a reader returns them. A Parquet timestamp is used directly, whatever its unit. Text, and a
            timestamp, without an offset from UTC is local time in the clock's timezone.
        clock: The declaration.

    Returns:
        Datetime("us", "UTC"); null where there is no time, or it is not between `earliest` and `latest`.
    """
    if isinstance(raw.dtype, pl.Datetime | pl.Date):
        times = _to_utc(raw.cast(pl.Datetime("us", getattr(raw.dtype, "time_zone", None))), clock)
    elif clock.is_text and not raw.dtype.is_nested():
        times = _parse_texts(raw.cast(pl.String(), strict=False), clock)
    else:
        times = _parse_counts(raw, _MICROSECONDS.get(clock.unit or "", 1))
    low, high = time_limits(clock)
    return times.set(~times.is_between(low, high, closed="left").fill_null(True), None).alias(Columns.TIME)


def time_limits(clock: EventClock | RowClock) -> tuple[datetime, datetime]:
    """Return the first valid time of a row, and the first that is not.

    Without a time column a row may be from the log's first day, or 2000, to 2100.
    """
    if isinstance(clock, RowClock):
        return _midnight(min(clock.start, _EARLIEST), "UTC"), _midnight(_LATEST, "UTC")
    return _midnight(clock.earliest, clock.timezone), _midnight(clock.latest + timedelta(days=1), clock.timezone)


def event_days(times: pl.Series, clock: EventClock) -> pl.Series:
    """Return the Date of each time in the clock's timezone."""
    return times.dt.convert_time_zone(clock.timezone).dt.date().alias(Columns.DAY)


def row_times(numbers: pl.Series, rows: int, clock: RowClock) -> pl.DataFrame:
    """Return `event_time` and `day` of rows by their number in the log: equal days, with evenly spaced rows.

    Args:
        numbers: Int64 row numbers in the whole log, from 0.
        rows: Rows of the whole log.
        clock: The declaration.
    """
    number = pl.col(Columns.ROWS)
    # The day is computed in integers; only the time of day uses a float, which cannot reach the next midnight.
    day = pl.min_horizontal(number * clock.days // rows, clock.days - 1)
    microsecond_of_day = (number * clock.days % rows / rows * _DAY_MICROSECONDS).cast(pl.Int64())
    start = pl.lit(datetime.combine(clock.start, datetime.min.time(), UTC), pl.Datetime("us", "UTC"))
    moment = (start + pl.duration(days=day, microseconds=microsecond_of_day)).alias(Columns.TIME)
    return numbers.to_frame(Columns.ROWS).select(moment).with_columns(pl.col(Columns.TIME).dt.date().alias(Columns.DAY))


def check_time_unit(raw: pl.Series, times: pl.Series, clock: EventClock, file: str) -> None:
    """Refuse a clock column with mostly invalid values: no times, or not between `earliest` and `latest`.

    Raises:
        DataError: Names an example, the time that it was read as, and a unit or format that fits.
    """
    failed = raw.filter(raw.is_not_null() & times.is_null())
    if raw.dtype.is_nested() or raw.dtype.is_temporal():
        failed = format_values(failed)  # times that Python cannot represent
    if len(failed) < _MIN_FAILED_ROWS or len(failed) <= _MAX_FAILED_SHARE * (len(raw) - raw.null_count()):
        return
    value = failed[len(failed) // 2]
    notations = likely_notations(failed, clock)
    if notations:
        advice = "declare " + " or ".join(notations)
    elif isinstance(value, str):
        advice = "declare how it is written: format: '%d/%m/%Y %H:%M:%S'"
    else:
        advice = "check clock.column, unit, earliest and latest"
    as_text = isinstance(value, str) and not _is_count(value)
    wrong_key = "format" if as_text and (clock.is_text or notations[:1] != ["unit: iso"]) else "unit"
    expected = describe_valid_time(clock) if wrong_key == "format" else _describe_range(clock)
    raise DataError(
        f"{file}: the {wrong_key} of clock column '{clock.column}' is probably wrong: got e.g. {_format_value(value)}"
        f"{_describe_reading(value, clock)}, wanted {expected}; {advice} ({len(failed)} of {len(raw)} rows)"
    )


def likely_notations(values: pl.Series, clock: EventClock) -> list[str]:
    """Return other declarations under which nearly all values are times, each `unit: U` or `format: '...'`.

    Day and month are distinguished by values above 12; without such values both orders are returned.

    Args:
        values: Values of a clock column, without nulls.
        clock: Limits and timezone; its own notation is not returned.
    """
    sample = values.gather_every(max(1, len(values) // _MAX_SAMPLE_VALUES)).head(_MAX_SAMPLE_VALUES)
    if sample.dtype.is_numeric():
        units = [unit for unit in _UNITS if _fits(sample, clock, unit=unit)]
        return [f"unit: {unit}" for unit in units if unit != clock.unit]
    texts = sample.cast(pl.String(), strict=False)
    units = [unit for unit in (*_UNITS, "iso") if _fits(texts, clock, unit=unit)]
    if units:
        return [f"unit: {unit}" for unit in units if unit != clock.unit]
    formats = [form for form in _FORMATS if form != clock.format and _fits(texts, clock, format=form)]
    return [f"format: '{form}'" for form in formats[:2]]


def describe_valid_time(clock: EventClock) -> str:
    """Return a description of a clock's valid values."""
    if clock.format is not None:
        notation = f"a time as {clock.format}"
    else:
        notation = "ISO 8601 text" if clock.unit == "iso" else f"{clock.unit} since 1970"
    return f"{notation}, from {clock.earliest} to {clock.latest}"


def _describe_range(clock: EventClock) -> str:
    return f"a time from {clock.earliest} to {clock.latest}"


def _midnight(day: date, timezone: str) -> datetime:
    return datetime.combine(day, datetime.min.time(), ZoneInfo(timezone)).astimezone(UTC)


def _parse_counts(raw: pl.Series, factor: int) -> pl.Series:
    if raw.dtype.is_nested() or raw.dtype.is_temporal():
        return pl.repeat(None, len(raw), dtype=pl.Datetime("us", "UTC"), eager=True)
    text = raw.str.strip_chars() if raw.dtype == pl.String() else raw
    # A count that overflows microseconds becomes null, like other times out of range.
    micros = (text.cast(pl.Float64(), strict=False) * factor).round().cast(pl.Int64(), strict=False)
    return micros.cast(pl.Datetime("us", "UTC"))


def _parse_texts(text: pl.Series, clock: EventClock) -> pl.Series:
    if clock.format is not None:
        zone = "UTC" if "%z" in clock.format else None
        local_times = text.str.strip_chars().str.strptime(pl.Datetime("us", zone), clock.format, strict=False)
        return _to_utc(local_times, clock)
    text = text.str.strip_chars().str.replace(" ", "T", literal=True)
    times = text.str.to_datetime("%+", time_unit="us", time_zone="UTC", strict=False)
    for form in _LOCAL_FORMATS:
        if times.null_count() > text.null_count():
            local = text.set(times.is_not_null(), None).str.strptime(pl.Datetime("us"), form, strict=False)
            times = times.zip_with(times.is_not_null(), _to_utc(local, clock))
    return times


def _to_utc(times: pl.Series, clock: EventClock) -> pl.Series:
    kind = times.dtype
    assert isinstance(kind, pl.Datetime)
    if kind.time_zone is None:
        times = times.dt.replace_time_zone(clock.timezone, ambiguous="earliest", non_existent="null")
    return times.dt.convert_time_zone("UTC")


def _fits(values: pl.Series, clock: EventClock, unit: str | None = None, format: str | None = None) -> bool:
    """Whether nearly all values are times under another notation."""
    times = event_times(values, clock.model_copy(update={"unit": unit, "format": format}))
    return times.null_count() <= _MAX_MISFITS * len(values)


def _is_count(value: str) -> bool:
    return value.strip().removeprefix("-").replace(".", "", 1).isdigit()


def _format_value(value: object) -> str:
    return f"{value:.0f}" if isinstance(value, float) and value.is_integer() else f"{value!r}"


def _describe_reading(value: object, clock: EventClock) -> str:
    if clock.unit is None or clock.unit == "iso" or not isinstance(value, int | float):
        return ""
    year = 1970 + value * _MICROSECONDS[clock.unit] / 1e6 / _SECONDS_PER_YEAR
    return f" read as {clock.unit} = year {year:.0f}"
