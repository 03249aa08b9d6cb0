"""Accepted datatypes of each declared type, and the conversion of their values."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from typing import Any, Final, cast

import numpy as np

from shortlist.contracts import Columns
from shortlist.serving.export.signature import NO_CODE
from shortlist.serving.server.features.columns import Codes, Column, Numbers, as_numbers
from shortlist.serving.server.requests.request_errors import BadRequestError, shorten
from shortlist.serving.server.requests.tensors import BYTES, FLOATS, INTEGERS
from shortlist.spec.data import Column as Declaration

_HEX: Final = re.compile("(0[xX])?[0-9a-fA-F]{1,256}")
_DATE: Final = re.compile("(?P<date>[0-9]{4}-[0-9]{2}-[0-9]{2}|[0-9]{8})([T ].{0,64})?")
_EPOCH: Final = date(1970, 1, 1).toordinal()
_OTHER_UNITS: Final = {"milliseconds": 1_000, "seconds": 1_000_000}


TimeLimits = tuple[int, int]
"""First valid time, and the first that is not; microseconds since 1970-01-01 UTC."""


def accepted_datatypes(declared: Declaration) -> frozenset[str]:
    """Return the datatypes that a column accepts."""
    match declared.type:
        case "integer":
            return INTEGERS
        case "number":
            return INTEGERS | FLOATS
        case "string":
            return frozenset((BYTES,))
        case "vector":
            return FLOATS
        case "tags":
            return frozenset((BYTES,)) if declared.tag_type == "string" else INTEGERS
        case _:
            return INTEGERS | {BYTES}


def preferred_datatype(declared: Declaration) -> str:
    """Return the preferred datatype of a column."""
    text = declared.type == "string" or (declared.type == "tags" and declared.tag_type == "string")
    if text or declared.type in ("hex", "date"):
        return BYTES
    return {"number": "FP64", "vector": "FP32"}.get(declared.type, "INT64")


def describe_datatypes(declared: Declaration) -> str:
    """Return the accepted datatypes of a column, for an error message."""
    accepted = accepted_datatypes(declared)
    kinds = (("an integer type", INTEGERS), ("FP16, FP32 or FP64", FLOATS), (BYTES, frozenset((BYTES,))))
    return " or ".join(description for description, kind in kinds if kind <= accepted)


def finite_numbers(values: Any) -> Numbers:
    """Return INT64 or FP64 values as numbers; NaN for null and for values that are not finite."""
    numbers = as_numbers(values)
    return np.where(np.isfinite(numbers), numbers, np.nan)


def parse_texts(values: Sequence[str | None], parse: Callable[[str], int], name: str, expected: str) -> Codes:
    """Return the parsed texts; NO_CODE for null and blank ones.

    Raises:
        BadRequestError: A text cannot be parsed; the message contains `expected`.
    """
    codes = np.full(len(values), NO_CODE, np.int64)
    for row, value in enumerate(values):
        try:
            # As in a log, blank texts are null.
            codes[row] = parse(text) if value is not None and (text := value.strip()) else NO_CODE
        except (ValueError, OverflowError):
            raise BadRequestError(f"input '{name}': got {shorten(value)}; wanted {expected}") from None
    return codes


def parse_hex(text: str) -> int:
    """Return the 64 bits of hexadecimal digits as a signed integer, as in the log."""
    if _HEX.fullmatch(text) is None:  # `int` accepts more than the log's reader
        raise ValueError
    bits = int(text, 16)
    if not 0 <= bits < 2**64:
        raise ValueError
    return bits - 2**64 if bits >= 2**63 else bits  # 16 digits use all 64 bits, including the sign bit


def parse_day(text: str) -> int:
    """Return the days from 1970-01-01 to an ISO date; a time after the date is ignored."""
    match = _DATE.fullmatch(text)
    if match is None:
        raise ValueError
    return date.fromisoformat(match["date"]).toordinal() - _EPOCH


def request_times(sent_times: Column | None, now: int) -> Codes:
    """Return the times of a request's rows; the current time where none was sent."""
    if sent_times is None:
        return np.full(1, now, np.int64)
    times = cast(Codes, sent_times)
    return np.where(times == NO_CODE, now, times)


def check_times(sent_times: Column | None, limits: TimeLimits) -> None:
    """Check that the times that a request names lie within the limits of the log's times.

    Args:
        sent_times: Microseconds since 1970-01-01 UTC, or NO_CODE, shape (rows,); None where none was sent.
        limits: First valid time, and the first that is not; both in microseconds.

    Raises:
        BadRequestError: One does not; the message says which unit it probably has.
    """
    if sent_times is None:
        return
    (low, high), times = limits, cast(Codes, sent_times)
    wrong = times[(times != NO_CODE) & ((times < low) | (times >= high))]
    if not wrong.size:
        return
    time = int(wrong[0])
    unit = next((name for name, factor in _OTHER_UNITS.items() if low <= time * factor < high), "")
    looks = f", which looks like {unit}" if unit else ""
    first, last = (datetime.fromtimestamp(limit // 1_000_000, UTC).date() for limit in (low, high - 1))
    raise BadRequestError(
        f"input '{Columns.TIME}': got {time}{looks}; wanted microseconds since 1970-01-01 UTC, of {first} to {last}"
    )
