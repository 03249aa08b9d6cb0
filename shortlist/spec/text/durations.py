"""Lengths of time in a spec: `500ms`, `90s`, `10m`, `1h`, `1d`."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Final

from pydantic import Field

Duration = Annotated[str, Field(pattern=r"^\d{1,6}(ms|s|m|h|d)$")]
"""A whole number and its unit: `ms`, `s`, `m`, `h` or `d`."""

_UNITS: Final = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def parse_duration(duration: str) -> timedelta:
    """Return a duration as a `timedelta`.

    >>> parse_duration("10m")
    datetime.timedelta(seconds=600)
    """
    unit = duration.lstrip("0123456789")
    return timedelta(**{_UNITS[unit]: int(duration.removesuffix(unit))})
