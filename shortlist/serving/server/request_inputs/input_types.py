"""Accepted datatypes of each declared type, and the conversion of their values."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import date
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
_LARGEST_TIME: Final = 253_402_300_799_000_000  # the year 9999, the last of Python's dates


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
    """Return the times of a request's rows; the current time where none was sent.

    Raises:
        BadRequestError: A time is outside the years 1970 to 9999.
    """
    if sent_times is None:
        return np.full(1, now, np.int64)
    times = cast(Codes, sent_times)
    times = np.where(times == NO_CODE, now, times)
    if ((times < 0) | (times > _LARGEST_TIME)).any():
        raise BadRequestError(f"input '{Columns.TIME}': got a time outside the years 1970 to 9999; wanted microseconds")
    return times
