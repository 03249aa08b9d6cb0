"""What the values of a column say about it: its type, how many there are, and what stands for none."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import polars as pl

from shortlist.contracts import DataError
from shortlist.data.clock import event_times, likely_notations
from shortlist.spec.data import ColumnType, EventClock

NULLS: Final = ("\\N", "NULL", "null", "NA", "N/A", "NaN", "nan", "None", "none")
"""Texts that usually mean "no value"."""
_TYPED_NAME: Final = re.compile(r"^(?P<name>.+):(?P<kind>token|float|token_seq|float_seq)$")
"""As RecBole writes headers: `user_id:token`."""
_PAIRS: Final = r"^\S+-[01]( +\S+-[01])*$"
_SEPARATORS: Final = ("|", ",", ";", " ")
_MOST_WRONG: Final = 0.02
_FEW: Final = 2_000


@dataclass(frozen=True, eq=False)
class ColumnLook:
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
    """Of tags in text."""
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
    def repeats(self) -> float:
        """Rows per value."""
        return (self.rows - self.nulls) / max(1, self.distinct)


def look_at(source: str, raw: pl.Series, typed: bool) -> ColumnLook:
    """Return what the values of a column say.

    Args:
        source: Its name in the file.
        raw: Its values; texts unless the file has types.
        typed: Whether the file has types of its own, so that texts are meant as texts.
    """
    header = _TYPED_NAME.match(source)
    name = _plain(header["name"] if header else source)
    kind = header["kind"] if header else ""
    if isinstance(raw.dtype, pl.List | pl.Array):
        return _list(source, name, raw)
    if raw.dtype.is_nested():
        return ColumnLook(source, name, "string", raw, 0, raw.null_count(), note="nested values cannot be read")
    if raw.dtype == pl.String():
        return _text(source, name, raw, kind, typed)
    if isinstance(raw.dtype, pl.Datetime | pl.Date):
        clock = _as_clock(source, raw)
        return ColumnLook(source, name, "date", raw.cast(pl.Date()), raw.n_unique(), raw.null_count(), clock=clock)
    if raw.dtype == pl.Boolean() or raw.dtype.is_integer():
        return _number(source, name, raw.cast(pl.Int64(), strict=False), "integer")
    return _number(source, name, raw.cast(pl.Float64(), strict=False), "number")


def _plain(name: str) -> str:
    plain = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_").lower() or "column"
    return plain if not plain[0].isdigit() else f"column_{plain}"


def _number(source: str, name: str, values: pl.Series, kind: ColumnType, nulls: tuple[str, ...] = ()) -> ColumnLook:
    whole = kind == "number" and values.drop_nulls().is_finite().all() and (values == values.round()).all()
    if whole and values.len() > values.null_count() and bool((values.abs() < 2.0**53).all()):
        values, kind = values.cast(pl.Int64()), "integer"
    clock = _as_clock(source, values)
    distinct = values.drop_nulls().n_unique()
    return ColumnLook(source, name, kind, values, distinct, values.null_count(), nulls, clock=clock)


def _text(source: str, name: str, raw: pl.Series, kind: str, typed: bool) -> ColumnLook:
    text = raw.str.strip_chars()
    odd = tuple(sorted(set(text.unique().to_list()) & set(NULLS)))
    known = text.set(text.is_in([*odd, ""]).fill_null(False), None)
    filled = known.drop_nulls()
    if filled.is_empty():
        return ColumnLook(source, name, "string", known, 0, known.null_count(), odd, note="has no values")
    sample = filled.head(_FEW)
    if kind in ("token_seq", "float_seq"):
        return _tags(source, name, known, odd, " ", number=kind == "float_seq")
    if not typed:
        # Ids with leading zeros are texts.
        zeros = sample.str.contains(r"^0\d").any()
        for wanted, pattern in (("integer", pl.Int64()), ("number", pl.Float64())):
            made = known.cast(pattern, strict=False)
            if not zeros and made.null_count() - known.null_count() <= 0:
                return _number(source, name, made, "integer" if wanted == "integer" else "number", odd)
    return _words(source, name, known, odd)


def _words(source: str, name: str, known: pl.Series, odd: tuple[str, ...]) -> ColumnLook:
    filled = known.drop_nulls()
    sample, distinct, clock = filled.head(_FEW), filled.n_unique(), _as_clock(source, known)
    if clock is not None:
        dates = event_times(known, clock).dt.date()
        return ColumnLook(source, name, "date", dates, distinct, known.null_count(), odd, clock=clock,
                          date_format=clock.format)  # fmt: skip
    if sample.str.contains(_PAIRS).mean() == 1.0:
        return ColumnLook(source, name, "string", known, distinct, known.null_count(), odd, pairs=True)
    for separator in _SEPARATORS:
        if _is_list(sample, separator):
            return _tags(source, name, known, odd, separator, number=False)
    return ColumnLook(source, name, "string", known, distinct, known.null_count(), odd)


def _is_list(sample: pl.Series, separator: str) -> bool:
    """Whether values look like lists of a few keys: many hold the separator, and the parts come again and again."""
    within = sample.filter(sample.str.contains(separator, literal=True))
    if separator in ",|" and len(within) and within.str.contains(rf"^\d+( *\{separator} *\d+)+$").all():
        return True
    holds = int(sample.str.contains(separator, literal=True).sum()) / len(sample)
    if holds < (0.2 if separator == "|" else 0.5 if separator == " " else 0.25):
        return False
    parts = sample.str.split(separator).explode().str.strip_chars()
    longest = int(parts.str.len_chars().max() or 0)  # type: ignore[arg-type]
    return parts.n_unique() * 4 < len(parts) and longest <= 40 and parts.n_unique() < sample.n_unique()


def _tags(source: str, name: str, known: pl.Series, odd: tuple[str, ...], separator: str, number: bool) -> ColumnLook:
    parts = known.str.split(separator).list.eval(pl.element().str.strip_chars().filter(pl.element() != ""))
    flat = parts.explode().drop_nulls()
    if number:
        return ColumnLook(source, name, "vector", parts, flat.n_unique(), known.null_count(), odd, separator=separator)
    whole = flat.cast(pl.Int64(), strict=False).null_count() == 0
    kind = "integer" if whole else "string"
    return ColumnLook(source, name, "tags", parts, flat.n_unique(), known.null_count(), odd, separator, kind)


def _list(source: str, name: str, raw: pl.Series) -> ColumnLook:
    lists = raw.arr.to_list() if isinstance(raw.dtype, pl.Array) else raw
    flat = lists.explode()
    if flat.dtype.is_nested():
        return ColumnLook(source, name, "string", raw, 0, raw.null_count(), note="nested lists cannot be read")
    if flat.dtype.is_float():
        return ColumnLook(source, name, "vector", raw, flat.n_unique(), raw.null_count())
    kind = "integer" if flat.dtype.is_integer() else "string"
    return ColumnLook(source, name, "tags", raw, flat.drop_nulls().n_unique(), raw.null_count(), tag_type=kind)


def _as_clock(source: str, values: pl.Series) -> EventClock | None:
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
            times = event_times(filled.head(_FEW), clock)
        except DataError:
            continue
        if times.null_count() <= _MOST_WRONG * len(times):
            return clock
    if filled.dtype.is_integer() and filled.n_unique() < 50_000:
        texts = filled.cast(pl.String())
        if bool((texts.str.len_chars() == 8).all()) and texts.str.to_date("%Y%m%d", strict=False).null_count() == 0:
            return EventClock.model_validate({**limits, "format": "%Y%m%d"})
    return None
