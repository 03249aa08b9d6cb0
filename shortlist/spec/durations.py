"""Lengths of time in a spec: `90s`, `10m`, `1h`, `1d`."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Final

from pydantic import Field

Duration = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,5}[smhd])$")]
"""A whole number and its unit: `s`, `m`, `h` or `d`; `0` is none."""

_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def length_of(duration: str) -> timedelta:
    """Return how long a duration is.

    >>> length_of("10m")
    datetime.timedelta(seconds=600)
    >>> length_of("0")
    datetime.timedelta(0)
    """
    return timedelta() if duration == "0" else timedelta(seconds=int(duration[:-1]) * _UNITS[duration[-1]])
