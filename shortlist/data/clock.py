"""The time of an impression: read from a column, or declared from the order of the rows."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

import polars as pl

from shortlist.contracts import Columns, DataError, did_you_mean
from shortlist.data.failures import shown
from shortlist.spec.data import EventClock, RowClock

_MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1}
_DAY_MICROSECONDS = 86_400_000_000
_SECONDS_PER_YEAR = 31_556_952
# A few wrong times are bad rows; when it is half of some, nobody wrote them as the clock is declared.
_MAX_FAILED_SHARE = 0.5
_MIN_FAILED_ROWS = 20
_UNITS = ("s", "ms", "us")
_MOST_TRIED = 1_000
_MAX_MISFITS = 0.02
_DATES = (
    "%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d", "%Y.%m.%d", "%Y%m%d",
    "%d %b %Y", "%d-%b-%Y", "%b %d, %Y", "%B %d, %Y", "%d/%m/%y", "%m/%d/%y", "%d.%m.%y",
)  # fmt: skip
_HOURS = ("", " %H:%M:%S", " %H:%M", " %I:%M:%S %p", " %I:%M %p", " %H:%M:%S%.f", "T%H:%M:%S", "%H%M%S")
_FORMATS = (
    *(date + hours for date in _DATES for hours in _HOURS),
    "%d/%b/%Y:%H:%M:%S %z", "%a, %d %b %Y %H:%M:%S %z", "%a %b %d %H:%M:%S %Y",
)  # fmt: skip
"""What logs that are not in ISO 8601 are usually written in."""
_LOCAL_FORMATS = ("%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%dT%H:%M", "%Y-%m-%d")


def check_timezone(clock: EventClock) -> None:
    """Refuse a timezone that does not exist.

    Raises:
        DataError: With the name that was probably meant.
    """
    try:
        ZoneInfo(clock.timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        near = did_you_mean(clock.timezone, available_timezones())
        raise DataError(f"data.clock.timezone: '{clock.timezone}' is no IANA timezone{near}") from None


def event_times(raw: pl.Series, clock: EventClock) -> pl.Series:
    """Return the times in a clock column.

    Args:
        raw: Values as a reader gives them. A Parquet timestamp is taken as it is, whatever the unit. Text, and a
            timestamp, without an offset from UTC is local time in the clock's timezone.
        clock: The declaration.

    Returns:
        Datetime("us", "UTC"); null where there is no time, or none between `earliest` and `latest`.
    """
    if isinstance(raw.dtype, pl.Datetime | pl.Date):
        times = _utc(raw.cast(pl.Datetime("us", getattr(raw.dtype, "time_zone", None))), clock)
    elif clock.is_text and not raw.dtype.is_nested():
        times = _parsed(raw.cast(pl.String(), strict=False), clock)
    else:
        times = _counted(raw, _MICROSECONDS.get(clock.unit or "", 1))
    low, high = _limits(clock)
    return times.set(~times.is_between(low, high, closed="left").fill_null(True), None).alias(Columns.TIME)


def event_days(times: pl.Series, clock: EventClock) -> pl.Series:
    """Return the Date of each time in the clock's timezone."""
    return times.dt.convert_time_zone(clock.timezone).dt.date().alias(Columns.DAY)


def row_times(numbers: pl.Series, rows: int, clock: RowClock) -> pl.DataFrame:
    """Return `event_time` and `day` of rows by their place in the log: equal days, evenly spread within each.

    Args:
        numbers: Int64 row numbers in the whole log, from 0.
        rows: Rows of the whole log.
        clock: The declaration.
    """
    number = pl.col(Columns.ROWS)
    # Integers decide the day; only the place within it goes through a float, which cannot reach the next midnight.
    day = pl.min_horizontal(number * clock.days // rows, clock.days - 1)
    within = (number * clock.days % rows / rows * _DAY_MICROSECONDS).cast(pl.Int64())
    start = pl.lit(datetime.combine(clock.start, datetime.min.time(), UTC), pl.Datetime("us", "UTC"))
    moment = (start + pl.duration(days=day, microseconds=within)).alias(Columns.TIME)
    return numbers.to_frame(Columns.ROWS).select(moment).with_columns(pl.col(Columns.TIME).dt.date().alias(Columns.DAY))


def check_time_unit(raw: pl.Series, times: pl.Series, clock: EventClock, file: str) -> None:
    """Stop when most values of a clock column are no time at all, or none between `earliest` and `latest`.

    Raises:
        DataError: With a value, what it was read as, and the unit that fits if one does.
    """
    failed = raw.filter(raw.is_not_null() & times.is_null())
    if raw.dtype.is_nested() or raw.dtype.is_temporal():
        failed = shown(failed)  # moments that Python cannot hold
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
    wrong = "format" if as_text and (clock.is_text or notations[:1] != ["unit: iso"]) else "unit"
    raise DataError(
        f"{file}: the {wrong} of clock column '{clock.column}' is probably wrong: got e.g. {_plain(value)}"
        f"{_read_as(value, clock)}, wanted {wanted_time(clock) if wrong == 'format' else _span(clock)}; {advice}"
        f" ({len(failed)} of {len(raw)} rows)"
    )


def likely_notations(values: pl.Series, clock: EventClock) -> list[str]:
    """Return the other declarations under which nearly all values are times, each `unit: U` or `format: '...'`.

    Day and month are told apart by values beyond the twelfth; where none is, both readings are given.

    Args:
        values: Of a clock column, without nulls.
        clock: Limits and timezone; its own notation is left out.
    """
    sample = values.gather_every(max(1, len(values) // _MOST_TRIED)).head(_MOST_TRIED)
    if sample.dtype.is_numeric():
        units = [unit for unit in _UNITS if _fits(sample, clock, unit=unit)]
        return [f"unit: {unit}" for unit in units if unit != clock.unit]
    texts = sample.cast(pl.String(), strict=False)
    units = [unit for unit in (*_UNITS, "iso") if _fits(texts, clock, unit=unit)]
    if units:
        return [f"unit: {unit}" for unit in units if unit != clock.unit]
    formats = [form for form in _FORMATS if form != clock.format and _fits(texts, clock, format=form)]
    return [f"format: '{form}'" for form in formats[:2]]


def wanted_time(clock: EventClock) -> str:
    """Return the words for what a clock's values must be."""
    if clock.format is not None:
        form = f"a time as {clock.format}"
    else:
        form = "ISO 8601 text" if clock.unit == "iso" else f"{clock.unit} since 1970"
    return f"{form}, from {clock.earliest} to {clock.latest}"


def _span(clock: EventClock) -> str:
    return f"a time from {clock.earliest} to {clock.latest}"


def _limits(clock: EventClock) -> tuple[datetime, datetime]:
    return _midnight(clock.earliest, clock), _midnight(clock.latest + timedelta(days=1), clock)


def _midnight(day: date, clock: EventClock) -> datetime:
    return datetime.combine(day, datetime.min.time(), ZoneInfo(clock.timezone)).astimezone(UTC)


def _counted(raw: pl.Series, factor: int) -> pl.Series:
    if raw.dtype.is_nested() or raw.dtype.is_temporal():
        return pl.repeat(None, len(raw), dtype=pl.Datetime("us", "UTC"), eager=True)
    text = raw.str.strip_chars() if raw.dtype == pl.String() else raw
    # A count that overflows microseconds becomes null, as any other time out of range.
    micros = (text.cast(pl.Float64(), strict=False) * factor).round().cast(pl.Int64(), strict=False)
    return micros.cast(pl.Datetime("us", "UTC"))


def _parsed(text: pl.Series, clock: EventClock) -> pl.Series:
    if clock.format is not None:
        zone = "UTC" if "%z" in clock.format else None
        written = text.str.strip_chars().str.strptime(pl.Datetime("us", zone), clock.format, strict=False)
        return _utc(written, clock)
    text = text.str.strip_chars().str.replace(" ", "T", literal=True)
    times = text.str.to_datetime("%+", time_unit="us", time_zone="UTC", strict=False)
    for form in _LOCAL_FORMATS:
        if times.null_count() > text.null_count():
            local = text.set(times.is_not_null(), None).str.strptime(pl.Datetime("us"), form, strict=False)
            times = times.zip_with(times.is_not_null(), _utc(local, clock))
    return times


def _utc(times: pl.Series, clock: EventClock) -> pl.Series:
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


def _plain(value: object) -> str:
    return f"{value:.0f}" if isinstance(value, float) and value.is_integer() else f"{value!r}"


def _read_as(value: object, clock: EventClock) -> str:
    if clock.unit is None or clock.unit == "iso" or not isinstance(value, int | float):
        return ""
    year = 1970 + value * _MICROSECONDS[clock.unit] / 1e6 / _SECONDS_PER_YEAR
    return f" read as {clock.unit} = year {year:.0f}"
