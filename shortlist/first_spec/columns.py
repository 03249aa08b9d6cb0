"""What the values of a column say about it: its type, how many there are, and what stands for none."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import polars as pl

from shortlist.contracts import DataError
from shortlist.data.reading.clock import event_times, likely_notations
from shortlist.data.reading.convert import convert_columns
from shortlist.spec.data import Column, ColumnType, EventClock

_NO_VALUE: Final = ("\\N", "NULL", "null", "NaN", "nan")
"""Texts that mean "no value" in any column."""
_NO_NUMBER: Final = (*_NO_VALUE, "NA", "N/A", "n/a", "None", "none", "")
"""Texts that mean "no value" among numbers, and may be a value among texts."""
_RECBOLE_NAME: Final = re.compile(r"^(?P<name>.+):(?P<kind>token|float|token_seq|float_seq)$")
"""As RecBole writes headers: `user_id:token`."""
_PAIRS_PATTERN: Final = r"^\S+-[01]( +\S+-[01])*$"
_SEPARATORS: Final = ("|", ",", ";", " ")
_MAX_INVALID_SHARE: Final = 0.005
"""Largest share of values that are not of a column's type; their rows end in quarantine, which takes 1 %."""
_SAMPLE_ROWS: Final = 2_000
_NUMBER_TYPES: Final[tuple[ColumnType, ...]] = ("integer", "number")
_BOUND: Final = f"text, because integers end at 2^63 - 1 = {2**63 - 1}"
_SIGNED_LIMIT: Final = 2**63 - 1
_KEY_NAME: Final = r"(^|_)(u?id|uuid|guid|key|code|sku|asin|hash|zip|phone)$|user|item|product|session|visitor|customer"
_DECIMAL_COMMA: Final = r"^[+-]?(\d+|\d{1,3}(\.\d{3})+)(,\d+)?$"
_LEADING_ZEROS: Final = r"^[+-]?0\d"
_BEYOND_INTEGERS: Final = r"^[+-]?[1-9]\d{18,}$"


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
    decimal_comma: bool = False
    """Whether its numbers have a comma before their decimals."""
    pairs: bool = False
    """Whether each value lists items with what became of them: `N12-0 N7-1`."""
    note: str = ""
    """What is odd about it, so that it becomes no feature."""
    comment: str = ""
    """What the spec says of its values."""

    @property
    def rows(self) -> int:
        """Rows that were looked at."""
        return len(self.values)

    @property
    def is_usable(self) -> bool:
        """Whether it can become a feature."""
        return self.distinct > 1 and not self.note and not self.pairs and self.type != "vector"

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
    if raw.dtype in (pl.Categorical, pl.Enum):
        raw = raw.cast(pl.String())
    if raw.dtype == pl.String():
        return _profile_texts(source, name, raw, kind, typed)
    return _profile_typed(source, name, raw)


def _profile_typed(source: str, name: str, raw: pl.Series) -> ColumnProfile:
    if raw.dtype.is_nested() or raw.dtype == pl.Null() or isinstance(raw.dtype, pl.Binary | pl.Time | pl.Duration):
        return ColumnProfile(source, name, "string", raw, 0, raw.null_count(), note=f"{raw.dtype} cannot be read")
    if isinstance(raw.dtype, pl.Datetime | pl.Date):
        clock = _likely_clock(source, raw)
        return ColumnProfile(source, name, "date", raw.cast(pl.Date()), raw.n_unique(), raw.null_count(), clock=clock)
    if raw.dtype == pl.UInt64() and _is_beyond(raw.max()):
        return replace(_profile_strings(source, name, raw.cast(pl.String()), ()), comment=_BOUND)
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
    filled = text.drop_nulls()
    if not typed and len(filled) and bool((filled.str.contains("^'.*'$")).mean() > 0.5):  # type: ignore[operator]
        example = filled.filter(filled.str.contains("^'.*'$"))[0]
        raise DataError(
            f"column '{source}': its texts are in single quotes, such as {example}, which would become part of them;"
            ' write the file again with double quotes: "'
        )
    values = text.set(text.is_in(_NO_NUMBER).fill_null(False), None)
    if values.drop_nulls().is_empty():
        return ColumnProfile(source, name, "string", values, 0, values.null_count(), note="has no values")
    texts = text.set(text.is_in(["", *_NO_VALUE]).fill_null(False), None)
    null_texts = _texts_among(text, _NO_VALUE)
    if kind in ("token_seq", "float_seq"):
        return _profile_tags(source, name, texts, null_texts, " ", is_vector=kind == "float_seq")
    if not typed and (numbers := _profile_as_numbers(source, name, values)) is not None:
        return replace(numbers, null_texts=_texts_among(text, _NO_NUMBER))
    if not typed and (numbers := _profile_decimal_commas(source, name, values)) is not None:
        return replace(numbers, null_texts=_texts_among(text, _NO_NUMBER))
    profile = _profile_strings(source, name, texts, null_texts)
    return replace(profile, comment=_describe_texts(values)) if profile.type == "string" and not typed else profile


def _profile_as_numbers(source: str, name: str, values: pl.Series) -> ColumnProfile | None:
    """Return the profile of texts that a run reads as numbers; None where they are no numbers."""
    filled = values.drop_nulls()
    # Codes with leading zeros and integers beyond 64 bits are keys, not numbers.
    if bool(filled.str.contains(_LEADING_ZEROS).any()) or bool(filled.str.contains(_BEYOND_INTEGERS).any()):
        return None
    for kind in _NUMBER_TYPES:
        converted = convert_columns(values.to_frame(source), [Column(name=name, source=source, type=kind)], ())
        failed = converted.failed.get(name)
        if failed is None:
            return _profile_numbers(source, name, converted.columns[name], kind)
        wrong = values.filter(failed)
        if len(wrong) > _MAX_INVALID_SHARE * len(filled):
            continue
        if re.search(_KEY_NAME, name):
            return None
        profile = _profile_numbers(source, name, converted.columns[name], kind)
        rows = "row of" if len(wrong) == 1 else "rows of"
        comment = f"{len(wrong)} {rows} {len(values):,} looked at hold no number, such as '{wrong[0]}': quarantined"
        return replace(profile, comment=comment)
    return None


def _profile_decimal_commas(source: str, name: str, values: pl.Series) -> ColumnProfile | None:
    """Return the profile of numbers with a decimal comma; None for other texts, such as lists of integers."""
    filled = values.drop_nulls()
    fractions = filled.str.extract(r",(\d+)$")
    if filled.str.contains(_DECIMAL_COMMA).mean() < 1 - _MAX_INVALID_SHARE or fractions.null_count() == len(filled):  # type: ignore[operator]
        return None
    digits = fractions.drop_nulls().str.len_chars()
    # Pairs of integer keys have a second one of any length, and none that begins with 0.
    if digits.n_unique() > 1 and not fractions.str.contains("^0").any():
        return None
    column = Column(name=name, source=source, type="number", decimal_comma=True)
    converted = convert_columns(values.to_frame(source), [column], ()).columns[name]
    profile = _profile_numbers(source, name, converted, "number")
    return replace(profile, type="number", values=converted, decimal_comma=True, comment="numbers with a decimal comma")


def _describe_texts(values: pl.Series) -> str:
    """Return why texts of digits are no numbers; empty where they are other texts."""
    digits = values.drop_nulls().str.contains(r"^[+-]?\d+$")
    if not digits.all():
        return ""
    if values.drop_nulls().str.contains(_LEADING_ZEROS).any():
        return "text, because of leading zeros: '0101' and '101' are two"
    return _BOUND


def _is_beyond(value: object) -> bool:
    return isinstance(value, int) and value > _SIGNED_LIMIT


def _texts_among(text: pl.Series, words: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted(set(text.unique().drop_nulls().to_list()) & set(words) - {""}))


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
        if times.null_count() <= 4 * _MAX_INVALID_SHARE * len(times):
            return clock
    if filled.dtype.is_integer() and filled.n_unique() < 50_000:
        texts = filled.cast(pl.String())
        if bool((texts.str.len_chars() == 8).all()) and texts.str.to_date("%Y%m%d", strict=False).null_count() == 0:
            return EventClock.model_validate({**limits, "format": "%Y%m%d"})
    return None
