"""What the values of a column say about it: its type, how many there are, and what stands for none."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import polars as pl

from shortlist.contracts import DataError
from shortlist.data.reading.clock import event_times, likely_notations
from shortlist.spec.data import ColumnType, EventClock

NULLS: Final = ("\\N", "NULL", "null", "NA", "N/A", "NaN", "nan", "None", "none")
"""Texts that usually mean "no value"."""
_RECBOLE_NAME: Final = re.compile(r"^(?P<name>.+):(?P<kind>token|float|token_seq|float_seq)$")
"""As RecBole writes headers: `user_id:token`."""
_PAIRS_PATTERN: Final = r"^\S+-[01]( +\S+-[01])*$"
_SEPARATORS: Final = ("|", ",", ";", " ")
_MAX_INVALID_SHARE: Final = 0.02
_SAMPLE_ROWS: Final = 2_000


@dataclass(frozen=True, eq=False)
class ColumnProfile:
    """A column of a file."""

    source: str
    """Name in the file."""
    name: str
    """The same as a name for a spec."""
    type: ColumnType
    values: pl.Series
    """In its type; null where there is no value. Raw for times and lists."""
    distinct: int
    nulls: int
    null_texts: tuple[str, ...] = ()
    """Texts among its values that mean "no value"."""
    separator: str = ","
    """Separator of tags in text."""
    tag_type: str = "string"
    clock: EventClock | None = None
    """How it would be read as a clock."""
    date_format: str | None = None
    pairs: bool = False
    """Whether each value lists items with what became of them: `N12-0 N7-1`."""
    note: str = ""
    """What is odd about it."""

    @property
    def rows(self) -> int:
        """Rows that were looked at."""
        return len(self.values)

    @property
    def is_binary(self) -> bool:
        """Whether its values are 0 and 1, both of them."""
        if self.type not in ("integer", "number") or self.distinct != 2:
            return False
        return set(self.values.drop_nulls().unique().to_list()) == {0, 1}

    @property
    def rows_per_value(self) -> float:
        """Rows per value."""
        return (self.rows - self.nulls) / max(1, self.distinct)


def profile_column(source: str, raw: pl.Series, typed: bool) -> ColumnProfile:
    """Return what the values of a column say.

    Args:
        source: Its name in the file.
        raw: Its values; texts unless the file has types.
        typed: Whether the file has types of its own, so that texts are meant as texts.
    """
    header = _RECBOLE_NAME.match(source)
    name = _plain_name(header["name"] if header else source)
    kind = header["kind"] if header else ""
    if isinstance(raw.dtype, pl.List | pl.Array):
        return _profile_lists(source, name, raw)
    if raw.dtype.is_nested():
        return ColumnProfile(source, name, "string", raw, 0, raw.null_count(), note="nested values cannot be read")
    if raw.dtype == pl.String():
        return _profile_texts(source, name, raw, kind, typed)
    if isinstance(raw.dtype, pl.Datetime | pl.Date):
        clock = _likely_clock(source, raw)
        return ColumnProfile(source, name, "date", raw.cast(pl.Date()), raw.n_unique(), raw.null_count(), clock=clock)
    if raw.dtype == pl.Boolean() or raw.dtype.is_integer():
        return _profile_numbers(source, name, raw.cast(pl.Int64(), strict=False), "integer")
    return _profile_numbers(source, name, raw.cast(pl.Float64(), strict=False), "number")


def _plain_name(name: str) -> str:
    plain = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_").lower() or "column"
    return plain if not plain[0].isdigit() else f"column_{plain}"


def _profile_numbers(
    source: str, name: str, values: pl.Series, kind: ColumnType, nulls: tuple[str, ...] = ()
) -> ColumnProfile:
    is_whole = kind == "number" and values.drop_nulls().is_finite().all() and (values == values.round()).all()
    if is_whole and values.len() > values.null_count() and bool((values.abs() < 2.0**53).all()):
        values, kind = values.cast(pl.Int64()), "integer"
    clock = _likely_clock(source, values)
    distinct = values.drop_nulls().n_unique()
    return ColumnProfile(source, name, kind, values, distinct, values.null_count(), nulls, clock=clock)


def _profile_texts(source: str, name: str, raw: pl.Series, kind: str, typed: bool) -> ColumnProfile:
    text = raw.str.strip_chars()
    null_texts = tuple(sorted(set(text.unique().to_list()) & set(NULLS)))
    texts = text.set(text.is_in([*null_texts, ""]).fill_null(False), None)
    filled = texts.drop_nulls()
    if filled.is_empty():
        return ColumnProfile(source, name, "string", texts, 0, texts.null_count(), null_texts, note="has no values")
    sample = filled.head(_SAMPLE_ROWS)
    if kind in ("token_seq", "float_seq"):
        return _profile_tags(source, name, texts, null_texts, " ", is_vector=kind == "float_seq")
    if not typed:
        # Ids with leading zeros are texts.
        has_leading_zeros = sample.str.contains(r"^0\d").any()
        for number_type, dtype in (("integer", pl.Int64()), ("number", pl.Float64())):
            numbers = texts.cast(dtype, strict=False)
            if not has_leading_zeros and numbers.null_count() - texts.null_count() <= 0:
                return _profile_numbers(
                    source, name, numbers, "integer" if number_type == "integer" else "number", null_texts
                )
    return _profile_strings(source, name, texts, null_texts)


def _profile_strings(source: str, name: str, texts: pl.Series, null_texts: tuple[str, ...]) -> ColumnProfile:
    filled = texts.drop_nulls()
    sample, distinct, clock = filled.head(_SAMPLE_ROWS), filled.n_unique(), _likely_clock(source, texts)
    if clock is not None:
        dates = event_times(texts, clock).dt.date()
        return ColumnProfile(source, name, "date", dates, distinct, texts.null_count(), null_texts, clock=clock,
                          date_format=clock.format)  # fmt: skip
    if sample.str.contains(_PAIRS_PATTERN).mean() == 1.0:
        return ColumnProfile(source, name, "string", texts, distinct, texts.null_count(), null_texts, pairs=True)
    for separator in _SEPARATORS:
        if _is_list(sample, separator):
            return _profile_tags(source, name, texts, null_texts, separator, is_vector=False)
    return ColumnProfile(source, name, "string", texts, distinct, texts.null_count(), null_texts)


def _is_list(sample: pl.Series, separator: str) -> bool:
    """Whether values look like lists of a few keys: many hold the separator, and the parts come again and again."""
    lists = sample.filter(sample.str.contains(separator, literal=True))
    if separator in ",|" and len(lists) and lists.str.contains(rf"^\d+( *\{separator} *\d+)+$").all():
        return True
    share = int(sample.str.contains(separator, literal=True).sum()) / len(sample)
    if share < (0.2 if separator == "|" else 0.5 if separator == " " else 0.25):
        return False
    parts = sample.str.split(separator).explode().str.strip_chars()
    longest = int(parts.str.len_chars().max() or 0)  # type: ignore[arg-type]
    return parts.n_unique() * 4 < len(parts) and longest <= 40 and parts.n_unique() < sample.n_unique()


def _profile_tags(
    source: str, name: str, texts: pl.Series, null_texts: tuple[str, ...], separator: str, is_vector: bool
) -> ColumnProfile:
    parts = texts.str.split(separator).list.eval(pl.element().str.strip_chars().filter(pl.element() != ""))
    flat = parts.explode().drop_nulls()
    if is_vector:
        return ColumnProfile(
            source, name, "vector", parts, flat.n_unique(), texts.null_count(), null_texts, separator=separator
        )
    is_integer = flat.cast(pl.Int64(), strict=False).null_count() == 0
    kind = "integer" if is_integer else "string"
    return ColumnProfile(source, name, "tags", parts, flat.n_unique(), texts.null_count(), null_texts, separator, kind)


def _profile_lists(source: str, name: str, raw: pl.Series) -> ColumnProfile:
    lists = raw.arr.to_list() if isinstance(raw.dtype, pl.Array) else raw
    flat = lists.explode()
    if flat.dtype.is_nested():
        return ColumnProfile(source, name, "string", raw, 0, raw.null_count(), note="nested lists cannot be read")
    if flat.dtype.is_float():
        return ColumnProfile(source, name, "vector", raw, flat.n_unique(), raw.null_count())
    kind = "integer" if flat.dtype.is_integer() else "string"
    return ColumnProfile(source, name, "tags", raw, flat.drop_nulls().n_unique(), raw.null_count(), tag_type=kind)


def _likely_clock(source: str, values: pl.Series) -> EventClock | None:
    """Return how a column's values are read as times; None where they are none."""
    filled = values.drop_nulls()
    if filled.is_empty():
        return None
    limits = {"column": source, "earliest": "1990-01-01", "latest": "2040-01-01"}
    if values.dtype.is_temporal():
        return EventClock.model_validate({**limits, "unit": "iso"})
    # With a notation that fits nothing, all that fit are found.
    for notation in likely_notations(filled, EventClock.model_validate({**limits, "format": "%Y~%m~%d"})):
        kind, _, value = notation.partition(": ")
        clock = EventClock.model_validate({**limits, kind: value.strip("'")})
        try:
            times = event_times(filled.head(_SAMPLE_ROWS), clock)
        except DataError:
            continue
        if times.null_count() <= _MAX_INVALID_SHARE * len(times):
            return clock
    if filled.dtype.is_integer() and filled.n_unique() < 50_000:
        texts = filled.cast(pl.String())
        if bool((texts.str.len_chars() == 8).all()) and texts.str.to_date("%Y%m%d", strict=False).null_count() == 0:
            return EventClock.model_validate({**limits, "format": "%Y%m%d"})
    return None
